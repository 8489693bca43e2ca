"""The meter of a CPU, and how a child process ends: with a result, an error, or no time left."""

import sys

import pytest
import torch
from bench.timing import CpuMeter, run_in_child


def test_the_cpu_meter_sees_a_tensor():
    meter, seen = CpuMeter(), []
    for _ in range(5):  # the system may take idle pages from this process meanwhile, which hides the tensor
        meter.start()
        _, value = meter.timed(lambda: torch.ones(8, 2**20).sum())
        assert value == 8 * 2**20
        seen.append(meter.extra_bytes())
    assert max(seen) > 16 * 2**20


@pytest.fixture
def child(tmp_path, monkeypatch):
    """A function that runs code in a child process. The code imports nothing of ours, so it starts in no time."""
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])

    def run(code, **options):
        (tmp_path / "a_child.py").write_text(f"import json, os, sys, time\n\ndef child():\n    {code}\n")
        return run_in_child("a_child", {"number": 7}, **{"limit": 60, **options})

    return run


def test_a_child_returns_the_last_line_it_prints(child):
    assert child("print('noise'); print(json.dumps(json.loads(sys.argv[1])))") == {"number": 7}


def test_a_child_has_as_many_threads_as_it_is_given(child):
    assert child("print(json.dumps({'threads': os.environ['OMP_NUM_THREADS']}))", threads=3) == {"threads": "3"}


@pytest.mark.parametrize(
    ("code", "note"),
    [
        ("raise KeyError('unknown there')", "failed: KeyError: 'unknown there'"),
        ("sys.exit(3)", "failed: exit code 3"),
        ("os.kill(os.getpid(), 9)", "out of memory"),  # as the kernel ends a process that takes too much
        ("sys.exit('terminate called after throwing std::bad_alloc')", "out of memory"),
    ],
)
def test_a_child_that_dies_is_reported(child, code, note):
    assert child(code) == note


def test_a_child_over_the_time_limit_is_stopped(child):
    assert child("time.sleep(60)", limit=0.1, grace=0.2) == "stopped: over 0.1 s"
