import pytest
import torch

from suprank.bench import CASES, Measurement, Settings, Workload, measurements, plan
from suprank.bench import losses as bench_losses
from suprank.bench.timing import in_process
from suprank.losses import baselines

SETTINGS = Settings(torch.device("cpu"), repeats=2, seconds=1.0, max_bytes=2**30)


def answering(monkeypatch, **by_items):
    """Measurements without measuring: what each size gives."""

    def measured(case, workload, settings):
        return Measurement(
            case.name, case.kind, workload.queries, workload.items, workload.memory, **by_items[f"at_{workload.items}"]
        )

    monkeypatch.setattr(bench_losses, "_measured", measured)


def test_a_small_run_measures_time_and_memory():
    started = []
    found = list(
        measurements(
            plan([32], names=["SupAP"]), SETTINGS, starting=lambda case, workload: started.append((case.name, workload))
        )
    )
    assert started == [("SupAP", Workload(32))]
    assert found[0].seconds > 0
    assert found[0].extra_bytes > 0
    assert found[0].note == ""


def test_a_case_over_the_time_limit_is_skipped_at_larger_sizes(monkeypatch):
    answering(monkeypatch, at_16={"seconds": 0.9}, at_32={"seconds": 12.0}, at_64={"seconds": 99.0})
    found = list(measurements(plan([64, 16, 32, 128], names=["SupAP"]), SETTINGS))
    assert [measurement.items for measurement in found] == [16, 32, 64, 128]
    assert [measurement.note for measurement in found] == ["", "", *["skipped: took 12 s at 32"] * 2]


def test_a_case_out_of_memory_is_skipped_at_larger_sizes_and_the_others_go_on(monkeypatch):
    answering(monkeypatch, at_16={"note": "out of memory"}, at_32={"seconds": 0.1})
    found = list(measurements(plan([16, 32], names=["SupAP", "SupHAP"]), SETTINGS))
    assert [measurement.note for measurement in found] == ["out of memory", "skipped: out of memory at 16"] * 2


def test_a_missing_package_is_named_at_every_size(monkeypatch):
    answering(monkeypatch, at_16={"note": "not installed: peer"})
    found = list(measurements(plan([16, 32], names=["SupAP"]), SETTINGS))
    assert [measurement.note for measurement in found] == ["not installed: peer"] * 2


def test_limits_within_batches_do_not_skip_the_memory(monkeypatch):
    answering(monkeypatch, at_16={"seconds": 12.0}, at_96={"seconds": 0.1})
    found = list(measurements(plan([16], memory=96, queries=16, names=["SupAP", "SmoothAP"]), SETTINGS))
    assert [(measurement.case, measurement.items) for measurement in found] == [("SupAP", 16), ("SmoothAP", 16), ("SupAP", 96)]
    assert not any(measurement.note for measurement in found)


def test_the_plan_has_every_case_at_every_size():
    assert len(plan([256, 512])) == 2 * len(CASES)
    assert {case.kind for case, _ in plan([256])} == {"ours", "baseline", "peer", "plain torch", "floor"}


def test_every_baseline_is_measured():
    workload = Workload(16)
    measured = [case for case in CASES.values() if case.kind == "baseline"]
    assert {type(case.loss(workload)).__name__ for case in measured} == set(baselines.__all__)


@pytest.mark.parametrize(
    ("ours", "theirs"), [("FastAP", "PML FastAPLoss"), ("TripletSemiHard", "PML TripletMarginLoss, semi-hard")]
)
def test_peers_are_measured_on_the_same_work(ours, theirs):
    values = [
        in_process(CASES[name], Workload(64), device=torch.device("cpu"), repeats=1, seconds=10).loss for name in (ours, theirs)
    ]
    assert values[0] > 0
    assert values[0] == pytest.approx(values[1], rel=1e-4)


def test_there_are_proxies_for_the_classes_of_every_level():
    by_level = CASES["SumOverLevels, ProxySoftmax"].loss(Workload(256)).losses
    assert [len(loss.proxies) for loss in by_level] == [64, 16, 4]
    assert CASES["CSL"].loss(Workload(256)).class_labels.shape == (64, 3)
    assert CASES["CSL"].loss(Workload(16, 96)).class_labels.shape == (24, 3)
