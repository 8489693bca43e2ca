"""Several processes that gather their rows have the losses and gradients of one process with all of them."""

import importlib.util
import re
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.distributed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from suprank.data import BalancedBatchSampler
from suprank.losses import EmbeddingMemory, SupAP, gather, roadmap
from suprank.losses.gather import _DTYPES, _Gather
from tests.losses import worker
from tests.training.runs import two_ranks

ROOT = Path(__file__).parents[2]
WORLDS = (2, 3)
PAGE = (ROOT / "docs" / "own-loops.md").read_text()
PROGRAMS = dict(re.findall(r"^```\{code-block\} python\n:caption: (\S+)\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL))
needs_gloo = pytest.mark.skipif(
    not (torch.distributed.is_available() and torch.distributed.is_gloo_available()), reason="needs torch.distributed with gloo"
)
CASES = [(world, name, counts) for world in WORLDS for name in worker.LOSSES for counts in worker.PARTS[world]]


@pytest.fixture(scope="module")
def together(forked, tmp_path_factory):
    """What each of 2 and each of 3 processes found, by their number."""
    folder = tmp_path_factory.mktemp("processes")
    variables = {"GLOO_SOCKET_IFNAME": "lo"}
    started = forked.start(folder, *WORLDS, cwd=ROOT, call="tests.losses.worker:command_line", variables=variables)
    started.succeed(timeout=120)
    return {world: [torch.load(folder / f"{world}.{rank}.pt") for rank in range(world)] for world in WORLDS}


@pytest.fixture(scope="module")
def alone():
    return {name: worker.alone(name) for name in worker.LOSSES}


def check_same(found, expected):
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)


@needs_gloo
@pytest.mark.parametrize(("world", "name", "counts"), CASES)
def test_parameters_get_the_gradient_of_one_process_with_the_whole_batch(alone, together, world, name, counts):
    expected = alone[name]
    assert all(gradient.abs().max() > 1e-4 for gradient in expected["gradients"])
    for found in (found["trained"][name, counts] for found in together[world]):
        torch.testing.assert_close(found["loss"], expected["loss"], rtol=1e-12, atol=0)
        check_same(found["gradients"], expected["gradients"])


@needs_gloo
@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("way", ["equal sizes", "own queries"])
def test_equal_parts_have_shorter_ways_to_the_same_gradient(alone, together, world, way):
    found = [one[way] for one in together[world]]
    mean = torch.stack([one["loss"] for one in found]).mean()
    torch.testing.assert_close(mean, alone["SupAP"]["loss"], rtol=1e-12, atol=0)
    for one in found:
        check_same(one["gradients"], alone["SupAP"]["gradients"])


@needs_gloo
@pytest.mark.parametrize("world", WORLDS)
def test_a_wrapped_loss_gathers_by_itself(alone, together, world):
    for found in (one["wrapped"] for one in together[world]):
        torch.testing.assert_close(found["loss"], alone["roadmap"]["loss"], rtol=1e-12, atol=0)
        check_same(found["gradients"], alone["roadmap"]["gradients"])


def test_a_wrapped_loss_of_one_process_is_the_loss_with_its_arguments_log_and_parameters():
    loss, embeddings = roadmap(3, 4), torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
    labels, ids = torch.arange(6) // 2, torch.arange(6)
    for options in ({}, {"ref_emb": embeddings.flip(0), "ref_labels": labels.flip(0), "ids": ids, "ref_ids": ids.flip(0)}):
        wrapped = gather(loss)
        assert torch.equal(wrapped(embeddings, labels, **options), loss(embeddings, labels, **options))
        assert wrapped.log is loss.log
    assert [*wrapped.parameters()] == [*loss.parameters()]
    relevance = (labels[:, None] == labels).float()
    assert torch.equal(gather(SupAP())(embeddings, relevance=relevance), SupAP()(embeddings, relevance=relevance))
    memory = gather(EmbeddingMemory(9, 4, loss=SupAP()))
    assert memory(embeddings, labels, ids=ids).isfinite()
    assert len(memory.loss) == 6
    again = (gather(EmbeddingMemory(9, 4, loss=SupAP())), EmbeddingMemory(9, 4, loss=SupAP()))
    assert again[0](embeddings, labels, ids) == again[1](embeddings, labels, ids)
    with pytest.raises(TypeError, match="too many positional arguments"):
        memory(embeddings, labels, ids, ids)


@needs_gloo
def test_pytorch_metric_learning_and_torch_find_the_same_gradients(together):
    for found in (found["other libraries"] for found in together[2]):
        assert found["gather"][0].abs().sum() > 0
        check_same(found["gather"], found["wrapper"])
        check_same(found["gather"], found["torch"])


@needs_gloo
@pytest.mark.parametrize("world", WORLDS)
def test_gradients_of_different_losses_are_added(together, world):
    weights = sum(rank + 1.0 for rank in range(world))
    for rank, found in enumerate(together[world]):
        expected = weights * torch.tensor([[2.0 * rank], [2 * rank + 1]])
        assert torch.equal(found["different losses"]["gradient"], expected)
        assert found["random losses"], "DDP keeps the copies the same"


@needs_gloo
@pytest.mark.parametrize("world", WORLDS)
def test_rows_of_every_dtype_and_shape_are_in_the_order_of_ranks(together, world):
    number = torch.cat([torch.arange(rank + 1) + 10 * rank for rank in range(world)])
    for rank, found in enumerate(one["values"] for one in together[world]):
        for dtype in (torch.int16, torch.int32, torch.int64, torch.uint8, torch.float16, torch.bfloat16, torch.float64):
            assert torch.equal(found[str(dtype)], number.to(dtype))
            assert found[str(dtype)].dtype == dtype
        assert torch.equal(found["bool"], number % 2 == 0)
        assert torch.equal(found["transposed"], torch.stack([number, -number], 1))
        assert torch.equal(found["three dimensions"], number[:, None, None].expand(-1, 2, 3))
        assert found["no rows"].shape == (0, 3)
        assert found["no columns"].shape == (len(number), 0)
        assert torch.equal(found["gradient in 16 bits"], torch.full((rank + 1, 1), 3.0 * world, dtype=torch.bfloat16))
        assert found["requires_grad"] == [False, False, True]
    for rank in (world - 2, world - 1):
        rows, gradient = together[world][rank]["values"]["group"]
        assert torch.equal(rows, number[-2 * world + 1 :].double())
        assert torch.equal(gradient, torch.full((rank + 1,), 2.0, dtype=torch.float64))


@needs_gloo
@pytest.mark.parametrize("world", WORLDS)
def test_what_differs_between_processes_is_refused_by_all_of_them(together, world):
    last = world - 1
    for found in (one["refusals"] for one in together[world]):
        assert (
            f"argument 1 of gather has 4 values in a row in process 0 and has 5 values in a row in process {last}"
            in (found["dimension"])
        )
        assert f"argument 2 of gather is torch.int64 in process 0 and is torch.int32 in process {last}" in found["dtype"]
        assert f"argument 1 of gather requires a gradient in process 0 and requires none in process {last}" in found["gradient"]


def test_one_process_gets_back_what_it_gave():
    embeddings, labels = torch.randn(3, 2, requires_grad=True), torch.arange(3)
    gathered = gather(embeddings, labels)
    assert gathered[0] is embeddings
    assert gathered[1] is labels
    assert gather(embeddings) is embeddings


@pytest.mark.parametrize(
    ("tensors", "says"),
    [
        ((), "gather needs tensors"),
        ((torch.zeros(()),), "argument 1 of gather is torch.float32 of shape \\(\\)"),
        ((torch.zeros(2, dtype=torch.complex64),), "but must be real numbers"),
        ((torch.zeros(3, 2), torch.zeros(2)), "argument 2 of gather has 2 rows and the first has 3"),
        ((torch.zeros(3, 2), torch.zeros(3, device="meta")), "argument 2 of gather is on meta and the first on cpu"),
    ],
)
def test_rows_that_do_not_belong_together_are_refused(tensors, says):
    with pytest.raises((TypeError, ValueError), match=says):
        gather(*tensors)


@pytest.fixture(scope="module")
def trained_alone():
    """The weights after the plain loop of one process that the programs of the page are about."""
    torch.manual_seed(0)
    dataset = TensorDataset(torch.randn(64, 32), torch.arange(64) // 4)
    model, criterion = nn.Linear(32, 8), roadmap(num_classes=16, embedding_size=8)
    optimizer = torch.optim.SGD([*model.parameters(), *criterion.parameters()], lr=0.1)
    before = model.weight.detach().clone()
    sampler = BalancedBatchSampler(dataset.tensors[1], batch_size=16, images_per_class=2)
    for _ in range(2):
        for images, labels in DataLoader(dataset, batch_sampler=sampler):
            optimizer.zero_grad()
            criterion(model(images), labels).backward()
            optimizer.step()
    assert (model.weight - before).abs().max() > 0.05
    return model.state_dict()


def test_processes_that_torch_does_not_know_of_are_refused(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(RuntimeError, match="WORLD_SIZE is 2, but torch.distributed knows of 1, .*init_process"):
        gather(torch.eye(2))
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert gather(torch.eye(2)).shape == (2, 2)


@pytest.mark.parametrize(("count", "refused"), [(2, True), (1, False), (None, False)])
def test_processes_that_accelerate_counts_otherwise_are_refused(monkeypatch, count, refused):
    state = SimpleNamespace(PartialState=SimpleNamespace(_shared_state={"num_processes": count} if count else {}))
    monkeypatch.setitem(sys.modules, "accelerate.state", state)
    with (
        pytest.raises(RuntimeError, match="num_processes is 2, but torch.distributed knows of 1, .* ACCELERATE_USE_CPU")
        if refused
        else nullcontext()
    ):
        assert gather(torch.eye(2)).shape == (2, 2)


def test_accelerate_keeps_its_count_where_gather_looks():
    state = pytest.importorskip("accelerate.state")
    assert isinstance(state.PartialState._shared_state, dict)
    assert state.PartialState(cpu=True).num_processes == state.PartialState._shared_state["num_processes"] == 1
    state.PartialState._reset_state()


NEEDS = {"train_ddp.py": (), "train_lightning.py": ("lightning",), "train_accelerate.py": ("accelerate",)}
NEEDS["train_hf.py"] = ("accelerate", "transformers")


def test_the_page_has_the_four_programs():
    assert list(PROGRAMS) == list(NEEDS)


@needs_gloo
@pytest.mark.parametrize("program", NEEDS)
def test_a_program_of_the_page_trains_two_processes_as_one(program, forked, trained_alone, tmp_path):
    missing = [package for package in NEEDS[program] if importlib.util.find_spec(package) is None]
    if missing:
        pytest.skip(f"needs {', '.join(missing)}")
    on_cpus = {"ACCELERATE_USE_CPU": "true", "CUDA_VISIBLE_DEVICES": ""}
    started = [forked.script(PROGRAMS[program], cwd=tmp_path, variables=rank | on_cpus) for rank in two_ranks()]
    try:
        ends = [process.end(timeout=60) for process in started]
    finally:
        for process in started:
            process.kill()
    assert [code for code, *_ in ends] == [0, 0], ends
    weights = torch.load(tmp_path / "model.pt")
    for name, value in trained_alone.items():
        torch.testing.assert_close(weights[name], value, rtol=0, atol=1e-4)  # they have changed by 0.05 and more


@pytest.mark.gpu
def test_nccl_knows_every_operation_and_type_that_gather_needs(tmp_path):
    """One process is all that one GPU allows: NCCL refuses two on the same device."""
    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group("nccl", store=store, rank=0, world_size=1, device_id=torch.device("cuda:0"))
    try:
        for dtype in _DTYPES:
            rows = torch.tensor([[1, 0, 2], [0, 3, 1]], device="cuda").to(dtype).requires_grad_(dtype.is_floating_point)
            gathered = _Gather.apply(rows, [2], None)
            assert gathered.dtype is dtype
            assert torch.equal(gathered, rows)
            if rows.requires_grad:
                gathered.backward(2 * rows.detach())
                assert torch.equal(rows.grad, 2 * rows.detach())
    finally:
        torch.distributed.destroy_process_group()
