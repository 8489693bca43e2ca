"""bf16 where AMX is advertised and forbidden. Such a CPU is played by a Python that dies of SIGILL unless it is capped."""

import logging
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from suprank.models import Embedder, embed
from suprank.system import cpu_features
from suprank.system.cpu_features import CAP, VARIABLE, prepare_bf16
from suprank.training.config import EngineConfig
from suprank.training.engine import build_fabric

CPUINFO = """processor\t: 0
model name\t: Intel(R) Xeon(R) Platinum 8481C
flags\t\t: fpu avx512_fp16 {flags}

processor\t: 1
"""
DIES = "kill -ILL $$"
SIGILL_HERE = f"import faulthandler, os; faulthandler.disable(); os.kill(os.getpid(), {int(signal.SIGILL)})"
DIES_UNLESS_CAPPED = f'[ -n "${VARIABLE}" ] || {DIES}'


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine whose fresh Pythons do what the script says, and whose running one what `here` says."""
    for name in (VARIABLE, "DNNL_MAX_CPU_ISA"):
        monkeypatch.setenv(name, "")  # so that it is as before at the end, whatever happens
        monkeypatch.delenv(name)
    monkeypatch.setenv("SUPRANK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(cpu_features, "_warned", set())
    monkeypatch.setattr(cpu_features, "_CPUINFO", tmp_path / "cpuinfo")

    def make(script, *, flags="amx_bf16 amx_tile", here="pass"):
        for one in (cpu_features._advertises_amx, cpu_features._cpuinfo):
            one.cache_clear()
        (tmp_path / "cpuinfo").write_text(CPUINFO.format(flags=flags))
        python = tmp_path / "python"
        python.write_text(f"#!/bin/sh\necho $$ >> {tmp_path}/tries\n{script}\n")
        python.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(python))
        monkeypatch.setattr(cpu_features, "_PROBE_CODE", here)

    yield make
    for one in (cpu_features._advertises_amx, cpu_features._cpuinfo):
        one.cache_clear()


def tries(tmp_path):
    file = tmp_path / "tries"
    return len(file.read_text().splitlines()) if file.exists() else 0


def test_without_amx_or_with_the_variable_no_process_is_started(machine, tmp_path, monkeypatch):
    machine(DIES, flags="avx512_bf16")
    prepare_bf16("fp32")
    machine(DIES)
    monkeypatch.setenv(VARIABLE, "AVX2")
    prepare_bf16("fp32")
    assert (tries(tmp_path), os.environ[VARIABLE]) == (0, "AVX2")


def test_amx_that_works_is_tried_once_and_remembered(machine, tmp_path):
    machine("exit 0")
    for _ in range(3):
        prepare_bf16("fp32")
    assert tries(tmp_path) == 1
    assert VARIABLE not in os.environ


def test_forbidden_amx_is_capped_with_a_sentence_and_remembered(machine, tmp_path, monkeypatch, caplog):
    machine(DIES_UNLESS_CAPPED)
    for _ in range(2):  # two processes, as it were
        prepare_bf16("fp32")
        assert os.environ[VARIABLE] == CAP
        monkeypatch.delenv(VARIABLE)
    assert tries(tmp_path) == 2  # without the cap and with it, and never again
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "Xeon(R) Platinum 8481C" in record.message
    assert f"{VARIABLE} is set to {CAP}" in record.message


@pytest.mark.parametrize(
    ("script", "here", "told"),
    [
        (DIES, "pass", "would end the process with SIGILL; use fp32"),
        (DIES_UNLESS_CAPPED, SIGILL_HERE, f"again with {VARIABLE}={CAP} in its"),
        (DIES_UNLESS_CAPPED, "raise RuntimeError", "torch has already computed in this process"),
    ],
    ids=["it dies capped too", "too late in this process", "this process cannot tell"],
)
def test_where_nothing_helps_bf16_is_refused_in_words(machine, script, here, told):
    machine(script, here=here)
    for _ in range(2):
        with pytest.raises(ValueError, match=told):
            prepare_bf16("fp32")
        assert VARIABLE not in os.environ


def test_what_cannot_be_tried_is_not_remembered_and_keeps_nobody_from_bf16(machine, tmp_path, monkeypatch):
    machine("exit 3")
    for _ in range(2):
        prepare_bf16("fp32")
    assert tries(tmp_path) == 2
    monkeypatch.setattr(sys, "executable", str(tmp_path / "nothing"))
    prepare_bf16("fp32")
    assert VARIABLE not in os.environ


def test_only_a_second_sigill_means_that_bf16_dies_under_the_cap_too(machine, tmp_path):
    """Another end, such as the OOM killer's, tells nothing, and is not remembered."""
    for end in ("exit 3", "kill -KILL $$"):
        machine(f'[ -n "$ONEDNN_MAX_CPU_ISA" ] && {end}; kill -ILL $$')
        prepare_bf16("fp32")
        assert tries(tmp_path) > 0
        assert not list((tmp_path / "cache").glob("bf16-*"))
    machine("kill -KILL $$")
    prepare_bf16("fp32")
    assert not list((tmp_path / "cache").glob("bf16-*"))


def test_a_cache_that_cannot_be_written_costs_a_try_each_time(machine, tmp_path):
    machine("exit 0")
    (tmp_path / "cache").write_text("a file")
    for _ in range(2):
        prepare_bf16("fp32")
    assert tries(tmp_path) == 2


def test_training_and_embedding_in_bf16_on_a_cpu_ask_first(machine):
    machine(DIES)
    with pytest.raises(ValueError, match="use engine.precision='fp32'"):
        build_fabric(EngineConfig(accelerator="cpu", precision="bf16"))
    with pytest.raises(ValueError, match="--precision fp32"):
        next(embed(Embedder.create("test_resnet"), [], precision="bf16"))
    build_fabric(EngineConfig(accelerator="cpu"))
    assert list(embed(Embedder.create("test_resnet"), [])) == []


@pytest.mark.skipif(not Path("/proc/cpuinfo").exists() or "x86" not in os.uname().machine, reason="needs an x86 CPU")
def test_the_cap_holds_after_torch_is_imported_and_before_it_computes():
    code = f"""
        import os, torch
        def compute():
            torch.relu(torch.ones(4, 4).to_mkldnn()).to_dense()
        if child := os.fork():
            os.waitpid(child, 0)
            compute()  # too early
        os.environ["{VARIABLE}"] = "SSE41"
        compute()
    """
    environment = {**os.environ, "ONEDNN_VERBOSE": "1"}
    environment.pop(VARIABLE, None)
    command = [sys.executable, "-c", textwrap.dedent(code)]
    shown = subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout
    assert ["SSE4.1" in line for line in shown.splitlines() if "cpu,isa:" in line] == [True, False]


@pytest.mark.slow
def test_the_real_trial_passes_on_a_machine_that_runs_the_tests():
    assert cpu_features._survives({}) is True
    assert cpu_features._survives_here()
