import builtins
import importlib
import math
import time

import pytest
import torch

from suprank.bench import CASES, Case, Workload
from suprank.bench.cases import SimilarityProduct
from suprank.bench.timing import CpuMeter, in_child, in_process

CPU = torch.device("cpu")


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if not case.graphed])
def test_every_case_runs(name):
    pytest.importorskip("pytorch_metric_learning")
    found = in_process(CASES[name], Workload(32), device=CPU, repeats=2, seconds=10)
    assert found.note == ""
    assert found.runs == 2
    assert found.seconds > 0
    assert math.isfinite(found.loss)


@pytest.mark.gpu
@pytest.mark.filterwarnings("default:The AccumulateGrad node's stream")  # the graph was recorded on a stream of its own
@pytest.mark.parametrize("name", ["SupAP", "SupHAP"])
def test_a_graphed_case_replays_the_same_loss(name):
    eager, replayed = (
        in_process(CASES[case], Workload(64), device=torch.device("cuda"), repeats=3, seconds=10)
        for case in (name, f"{name}, CUDA graph")
    )
    assert (replayed.note, replayed.runs) == ("", 3)
    assert replayed.loss == pytest.approx(eager.loss, rel=1e-5)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.takes_memory])
def test_cases_that_take_a_memory_run_against_one(name):
    found = in_process(CASES[name], Workload(16, 96), device=CPU, repeats=1, seconds=10)
    assert (found.note, found.queries, found.items, found.memory) == ("", 16, 96, 96)


@pytest.mark.parametrize("name", ["SupAP", "SupHAP"])
def test_plain_torch_gives_the_same_loss(name):
    ours, plain = (
        in_process(CASES[case], Workload(64), device=CPU, repeats=1, seconds=10) for case in (name, f"plain torch {name}")
    )
    assert ours.loss == pytest.approx(plain.loss, rel=1e-5)


def test_a_missing_peer_is_a_note(monkeypatch):
    def missing(name):
        raise ModuleNotFoundError(f"No module named {name!r}", name="pytorch_metric_learning")

    monkeypatch.setattr(importlib, "import_module", missing)
    found = in_process(CASES["PML FastAPLoss"], Workload(16), device=CPU, repeats=1, seconds=1)
    assert found.note == "not installed: pytorch_metric_learning"
    assert found.seconds is None


@pytest.mark.parametrize(
    ("error", "note"),
    [
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried ..."), "out of memory"),
        (torch.OutOfMemoryError("CUDA out of memory."), "out of memory"),
        (ValueError("labels are wrong\nsecond line"), "failed: ValueError: labels are wrong"),
    ],
)
def test_a_loss_that_raises_is_a_note(error, note):
    def broken(_):
        raise error

    assert in_process(Case("broken", "ours", broken), Workload(16), device=CPU, repeats=1, seconds=1).note == note


class Sleeping(SimilarityProduct):
    """The similarity product after a sleep, in the first `slow` runs at any size above the miniature's."""

    def __init__(self, slow):
        super().__init__()
        self.slow = slow

    def forward(self, embeddings, labels):
        if len(embeddings) > 16 and self.slow > 0:
            self.slow -= 1
            time.sleep(0.3)
        return super().forward(embeddings, labels)


def test_what_the_first_run_at_a_size_compiles_is_not_timed():
    # SupHAP compiled its kernels for sorted lists at batch 4096 first: 2.5 s for 24 ms, over the limit, so never run again.
    case = Case("compiles", "ours", lambda _: Sleeping(slow=1))
    found = in_process(case, Workload(32), device=CPU, repeats=3, seconds=0.25)
    assert found.runs == 3
    assert found.fastest <= found.seconds < 0.2


def test_a_loss_over_the_time_limit_is_timed_once():
    found = in_process(Case("slow", "ours", lambda _: Sleeping(slow=9)), Workload(32), device=CPU, repeats=3, seconds=0.25)
    assert found.runs == 1
    assert found.seconds >= 0.3


def test_a_process_of_its_own_sees_the_memory_a_case_takes():
    # 256³ float32 is 64 MiB; the definition holds several such cubes.
    found = in_child(CASES["plain torch SupAP"], Workload(256), repeats=1, seconds=60, max_bytes=4 * 2**30)
    assert 128 * 2**20 < found.extra_bytes < 2**30
    assert found.seconds > 0


def test_a_case_over_the_memory_limit_is_reported():
    found = in_child(CASES["plain torch SupAP"], Workload(512), repeats=1, seconds=60, max_bytes=2**28)
    assert found.note == "out of memory"


def test_a_process_that_dies_is_reported(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    found = in_child(Case("unknown there", "ours", builtins.object), Workload(16), repeats=1, seconds=1, max_bytes=2**30)
    assert found.note == "failed: KeyError: 'unknown there'"


def test_the_cpu_meter_sees_a_tensor():
    meter = CpuMeter()
    meter.start()
    _, value = meter.timed(lambda: torch.ones(8, 2**20).sum())
    assert value == 8 * 2**20
    assert meter.extra_bytes() > 16 * 2**20


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_memory_is_counted_by_the_allocator():
    found = in_process(CASES["plain torch SupAP"], Workload(256), device=torch.device("cuda"), repeats=3, seconds=10)
    assert found.extra_bytes > 128 * 2**20
    assert found.seconds > 0
