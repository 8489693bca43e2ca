"""Checks of values on a GPU are postponed, and one number is read for all. A tensor on "meta" stands for one on a GPU."""

from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest
import torch

from suprank.losses import ProxySoftmax, SupAP, skip_value_checks
from suprank.ranking.reading import Checks, Reading, may_read, note_choice, noting_choices, reading_at_most

ELSEWHERE = torch.empty(3, device="meta")


@pytest.mark.parametrize(("numbers", "suspicious"), [([0.0, -1], False), ([0.0, -2], True), ([torch.nan, 0], True)])
def test_postponed_checks_run_at_the_end_if_any_number_is_suspicious(numbers, suspicious, monkeypatch):
    ran, reads = [], []
    item = torch.Tensor.item
    monkeypatch.setattr(torch.Tensor, "item", lambda tensor: reads.append(1) or item(tensor))
    checks = Checks(postpone=True)
    for number in numbers:
        checks.add(ELSEWHERE, lambda number=number: torch.tensor(number), lambda: ran.append("postponed"))
    checks.add(torch.zeros(3), lambda: pytest.fail("a CPU is not waited for"), lambda: ran.append("now"))
    assert (ran, reads) == (["now"], [])
    checks.run()
    assert ran == ["now"] + 2 * suspicious * ["postponed"]
    assert len(reads) == 1


def test_outside_of_a_loss_a_check_runs_at_once_and_a_skipped_one_never():
    ran = []
    Checks().add(ELSEWHERE, lambda: pytest.fail("nothing to postpone"), lambda: ran.append(1))
    with skip_value_checks():
        Checks().add(ELSEWHERE, lambda: torch.tensor(-5), lambda: ran.append(2))
    assert ran == [1]


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


def test_checks_are_made_again_after_two_threads_skipped_them_at_once():
    entered, left = Event(), Event()

    def skip_for_longer():
        with skip_value_checks():
            entered.set()
            assert left.wait(10)

    with ThreadPoolExecutor(1) as pool:
        with skip_value_checks():
            other = pool.submit(skip_for_longer)
            assert entered.wait(10)
        left.set()
        other.result()
    with pytest.raises(ValueError, match="finite"):
        SupAP()(torch.full((4, 2), torch.nan), torch.tensor([0, 0, 1, 1]))


def test_an_inner_context_allows_no_more_than_the_outer_one():
    with reading_at_most(Reading.NOTHING), reading_at_most(Reading.TO_CHECK):
        assert not may_read(Reading.TO_CHOOSE)
    assert may_read(Reading.TO_CHECK)


def test_the_choices_of_another_thread_are_not_noted():
    with ThreadPoolExecutor(1) as pool, noting_choices() as choices:
        pool.submit(note_choice, "gridded").result()
        assert choices == []
        with skip_value_checks():
            note_choice("gridded")
    assert choices == ["gridded"]


def test_nothing_is_read_of_what_torch_func_transforms():
    seen = []
    torch.func.grad(lambda value: seen.append(may_read(Reading.TO_CHOOSE)) or value)(torch.tensor(1.0))
    assert seen == [False]


@pytest.mark.filterwarnings("default")  # torch.compile warns of itself
def test_a_compiled_function_may_skip_the_checks():
    loss, embeddings, labels = ProxySoftmax(2, 4), torch.randn(4, 4), torch.tensor([0, 0, 1, 1])

    def step(values):
        with skip_value_checks():
            return loss(values, labels)

    compiled = torch.compile(step, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(embeddings), step(embeddings))
