import torch

from suprank.bench import CASES, Measurement, Settings, Workload, measurements, plan
from suprank.bench import losses as bench_losses

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
    assert {case.kind for case, _ in plan([256])} == {"ours", "peer", "plain torch", "floor"}
