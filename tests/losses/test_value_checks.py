"""Checks of values on a GPU are postponed, and one number is read for all. A tensor on "meta" stands for one on a GPU."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from suprank.losses import ProxySoftmax, SupAP, skip_value_checks
from suprank.losses.value_checks import check_values, reading_once

ELSEWHERE = torch.empty(3, device="meta")


@pytest.mark.parametrize(("numbers", "suspicious"), [([0.0, -1], False), ([0.0, -2], True), ([torch.nan, 0], True)])
def test_postponed_checks_run_at_the_end_if_any_number_is_suspicious(numbers, suspicious, monkeypatch):
    ran, reads = [], []
    item = torch.Tensor.item
    monkeypatch.setattr(torch.Tensor, "item", lambda tensor: reads.append(1) or item(tensor))
    with reading_once():
        for number in numbers:
            check_values(ELSEWHERE, lambda number=number: torch.tensor(number), lambda: ran.append("postponed"))
        check_values(torch.zeros(3), lambda: pytest.fail("a CPU is not waited for"), lambda: ran.append("now"))
        assert (ran, reads) == (["now"], [])
    assert ran == ["now"] + 2 * suspicious * ["postponed"]
    assert len(reads) == 1


def test_outside_of_a_loss_and_after_an_error_a_check_runs_at_once():
    ran = []
    with pytest.raises(ZeroDivisionError), reading_once():
        check_values(ELSEWHERE, lambda: torch.tensor(1 / 0), lambda: ran.append(1))
    check_values(ELSEWHERE, lambda: pytest.fail("nothing to postpone"), lambda: ran.append(2))
    with skip_value_checks():
        check_values(ELSEWHERE, lambda: torch.tensor(-5), lambda: ran.append(3))
    assert ran == [2]


def test_a_class_without_a_proxy_is_never_taken_for_another():
    loss, embeddings, labels = ProxySoftmax(3, 8), torch.randn(4, 8), torch.tensor([0, 1, 2, 3])
    with pytest.raises(ValueError, match="3 proxies stand for classes 0..2"):
        loss(embeddings, labels)
    with pytest.raises(IndexError, match="Target 3 is out of bounds"), skip_value_checks():  # torch's own error
        loss(embeddings, labels)


def test_checks_that_one_thread_skips_are_made_in_others():
    with ThreadPoolExecutor(1) as pool, skip_value_checks():
        other = pool.submit(SupAP(), torch.full((4, 2), torch.nan), torch.tensor([0, 0, 1, 1]))
        with pytest.raises(ValueError, match="finite"):
            other.result()


@pytest.mark.filterwarnings("default")  # torch.compile warns of itself
def test_a_compiled_function_may_skip_the_checks():
    loss, embeddings, labels = ProxySoftmax(2, 4), torch.randn(4, 4), torch.tensor([0, 0, 1, 1])

    def step(values):
        with skip_value_checks():
            return loss(values, labels)

    compiled = torch.compile(step, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(embeddings), step(embeddings))
