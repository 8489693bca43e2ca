"""The benchmark of the losses: every case is measured, limits end a series, and a child process reports its memory."""

import gc
import importlib
import math
from types import SimpleNamespace

import pytest
import torch
from bench import (
    LOSS_CASES,
    BenchmarkSettings,
    LossCase,
    LossMeasurement,
    LossWorkload,
    loss_benchmark,
    measure_losses,
    plan_losses,
    timing,
)
from bench.loss_benchmark import measure_here, measure_in_child
from bench.loss_cases import SimilarityProduct

from suprank.losses import baselines

CPU = torch.device("cpu")
SETTINGS = BenchmarkSettings(torch.device("cpu"), repeats=2, seconds=1.0, max_bytes=2**30)


@pytest.fixture(scope="module", autouse=True)
def frozen_garbage():
    """What earlier tests imported stays, and the meters, which collect garbage before they start, need not look at it."""
    gc.collect()
    gc.freeze()


def answering(monkeypatch, **by_items):
    """Measurements without measuring: what each size gives."""

    def measure(case, workload, settings):
        return LossMeasurement(
            case.name, case.kind, workload.queries, workload.items, workload.memory, **by_items[f"at_{workload.items}"]
        )

    monkeypatch.setattr(loss_benchmark, "_measure", measure)


def test_every_measurement_is_announced(monkeypatch):
    answering(monkeypatch, at_32={"seconds": 0.1})
    started = []
    plan = plan_losses([32], names=["SupAP"])
    (found,) = measure_losses(plan, SETTINGS, on_start=lambda case, workload: started.append((case.name, workload)))
    assert started == [("SupAP", LossWorkload(32))]
    assert (found.seconds, found.note) == (0.1, "")


def test_a_case_over_the_time_limit_is_skipped_at_larger_sizes(monkeypatch):
    answering(monkeypatch, at_16={"seconds": 0.9}, at_32={"seconds": 12.0}, at_64={"seconds": 99.0})
    found = list(measure_losses(plan_losses([64, 16, 32, 128], names=["SupAP"]), SETTINGS))
    assert [measurement.items for measurement in found] == [16, 32, 64, 128]
    assert [measurement.note for measurement in found] == ["", "", *["skipped: took 12 s at 32"] * 2]


def test_a_case_out_of_memory_is_skipped_at_larger_sizes_and_the_others_go_on(monkeypatch):
    answering(monkeypatch, at_16={"note": "out of memory"}, at_32={"seconds": 0.1})
    found = list(measure_losses(plan_losses([16, 32], names=["SupAP", "SupHAP"]), SETTINGS))
    assert [measurement.note for measurement in found] == ["out of memory", "skipped: out of memory at 16"] * 2


def test_limits_within_batches_do_not_skip_the_memory(monkeypatch):
    answering(monkeypatch, at_16={"seconds": 12.0}, at_96={"seconds": 0.1})
    found = list(measure_losses(plan_losses([16], memory=96, queries=16, names=["SupAP", "SmoothAP"]), SETTINGS))
    assert [(measurement.case, measurement.items) for measurement in found] == [("SupAP", 16), ("SmoothAP", 16), ("SupAP", 96)]
    assert not any(measurement.note for measurement in found)


def test_the_plan_has_every_case_at_every_size():
    assert len(plan_losses([256, 512])) == 2 * len(LOSS_CASES)
    assert {case.kind for case, _ in plan_losses([256])} == {"ours", "baseline", "peer", "plain torch", "floor"}


def test_every_baseline_is_measured():
    workload = LossWorkload(16)
    measured = [case for case in LOSS_CASES.values() if case.kind == "baseline"]
    assert {type(case.loss(workload)).__name__ for case in measured} == {*baselines.__all__, "SumOverLevels"}


@pytest.mark.parametrize(
    ("ours", "theirs"), [("FastAP", "PML FastAPLoss"), ("TripletSemiHard", "PML TripletMarginLoss, semi-hard")]
)
def test_peers_are_measured_on_the_same_work(ours, theirs):
    values = [
        measure_here(LOSS_CASES[name], LossWorkload(64), device=torch.device("cpu"), repeats=1, seconds=10).loss
        for name in (ours, theirs)
    ]
    assert values[0] > 0
    assert values[0] == pytest.approx(values[1], rel=1e-4)


def test_there_are_proxies_for_the_classes_of_every_level():
    by_level = LOSS_CASES["SumOverLevels, ProxySoftmax"].loss(LossWorkload(256)).losses
    assert [len(loss.proxies) for loss in by_level] == [64, 16, 4]
    assert LOSS_CASES["CSL"].loss(LossWorkload(256)).class_labels.shape == (64, 3)
    assert LOSS_CASES["CSL"].loss(LossWorkload(16, 96)).class_labels.shape == (24, 3)


@pytest.mark.parametrize("name", [name for name, case in LOSS_CASES.items() if not case.graphed])
def test_every_case_runs(name):
    pytest.importorskip("pytorch_metric_learning")
    found = measure_here(LOSS_CASES[name], LossWorkload(32), device=CPU, repeats=1, seconds=10)
    assert found.note == ""
    assert found.runs == 1
    assert found.seconds > 0
    assert math.isfinite(found.loss)


@pytest.mark.gpu
@pytest.mark.filterwarnings("default:The AccumulateGrad node's stream")  # the graph was recorded on a stream of its own
@pytest.mark.parametrize("name", ["SupAP", "SupHAP"])
def test_a_graphed_case_replays_the_same_loss(name):
    eager, replayed = (
        measure_here(LOSS_CASES[case], LossWorkload(64), device=torch.device("cuda"), repeats=3, seconds=10)
        for case in (name, f"{name}, CUDA graph")
    )
    assert (replayed.note, replayed.runs) == ("", 3)
    assert replayed.loss == pytest.approx(eager.loss, rel=1e-5)


@pytest.mark.parametrize("name", [name for name, case in LOSS_CASES.items() if case.takes_memory])
def test_cases_that_take_a_memory_run_against_one(name):
    found = measure_here(LOSS_CASES[name], LossWorkload(16, 96), device=CPU, repeats=1, seconds=10)
    assert (found.note, found.queries, found.items, found.memory) == ("", 16, 96, 96)


@pytest.mark.parametrize("name", ["SupAP", "SupHAP"])
def test_plain_torch_gives_the_same_loss(name):
    ours, plain = (
        measure_here(LOSS_CASES[case], LossWorkload(64), device=CPU, repeats=1, seconds=10)
        for case in (name, f"plain torch {name}")
    )
    assert ours.loss == pytest.approx(plain.loss, rel=1e-5)


def test_a_missing_peer_is_a_note(monkeypatch):
    def missing(name):
        raise ModuleNotFoundError(f"No module named {name!r}", name="pytorch_metric_learning")

    monkeypatch.setattr(importlib, "import_module", missing)
    found = measure_here(LOSS_CASES["PML FastAPLoss"], LossWorkload(16), device=CPU, repeats=1, seconds=1)
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

    assert measure_here(LossCase("broken", "ours", broken), LossWorkload(16), device=CPU, repeats=1, seconds=1).note == note


@pytest.fixture
def measure_slow(monkeypatch):
    """Measures a loss that takes no time, but 3 s in its first `slow` runs at any size above the miniature's."""
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(timing, "time", SimpleNamespace(perf_counter=lambda: clock.now))

    class Slow(SimilarityProduct):
        def __init__(self, slow):
            super().__init__()
            self.slow = slow

        def forward(self, embeddings, labels):
            if len(embeddings) > 16 and self.slow > 0:
                self.slow -= 1
                clock.now += 3
            return super().forward(embeddings, labels)

    def measure(slow):
        case = LossCase("slow", "ours", lambda _: Slow(slow))
        return measure_here(case, LossWorkload(32), device=CPU, repeats=3, seconds=2)

    return measure


def test_what_the_first_run_at_a_size_compiles_is_not_timed(measure_slow):
    # SupHAP compiled its kernels for sorted lists at batch 4096 first: 2.5 s for 24 ms, over the limit, so never run again.
    found = measure_slow(1)
    assert found.runs == 3
    assert found.fastest == found.seconds == 0


def test_a_loss_over_the_time_limit_is_timed_once(measure_slow):
    found = measure_slow(9)
    assert (found.runs, found.seconds) == (1, 3)
    assert found.seconds >= 0.3


def test_a_process_of_its_own_sees_the_memory_a_case_takes():
    # 256³ float32 is 64 MiB; the definition holds several such cubes.
    settings = BenchmarkSettings(CPU, repeats=1, seconds=60, max_bytes=4 * 2**30)
    (found,) = measure_losses(plan_losses([256], names=["plain torch SupAP"]), settings)
    assert found.note == ""
    assert 128 * 2**20 < found.extra_bytes < 2**30
    assert found.seconds > 0


def test_a_case_over_the_memory_limit_is_reported():
    found = measure_in_child(LOSS_CASES["plain torch SupAP"], LossWorkload(512), repeats=1, seconds=60, max_bytes=2**28)
    assert found.note == "out of memory"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_memory_is_counted_by_the_allocator():
    found = measure_here(LOSS_CASES["plain torch SupAP"], LossWorkload(256), device=torch.device("cuda"), repeats=3, seconds=10)
    assert found.extra_bytes > 128 * 2**20
    assert found.seconds > 0
