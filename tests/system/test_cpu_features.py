"""bf16 on a CPU: oneDNN is kept below AMX, which some machines advertise and forbid, unless the user has set its limit."""

import os
import subprocess
import sys

import pytest
import torch

from suprank.models import embed
from suprank.system.cpu_features import CAP, VARIABLES, avoid_amx
from suprank.training.config import EngineConfig
from suprank.training.engine import build_fabric
from tests.models.tiny import embedder


@pytest.fixture
def unset(monkeypatch):
    for name in VARIABLES:
        monkeypatch.setenv(name, "")  # so that it is as before at the end, whatever happens
        monkeypatch.delenv(name)


@pytest.mark.parametrize("name", VARIABLES)
def test_a_limit_of_the_user_stays(unset, monkeypatch, name):
    monkeypatch.setenv(name, "ALL")
    avoid_amx()
    assert {key: os.environ[key] for key in VARIABLES if key in os.environ} == {name: "ALL"}


def test_embedding_and_training_in_bf16_on_a_cpu_are_limited_and_in_fp32_are_not(unset, monkeypatch):
    images = []
    list(embed(embedder(dim=4), images, device="cpu", precision="fp32"))
    build_fabric(EngineConfig(accelerator="cpu"))
    assert VARIABLES[0] not in os.environ
    list(embed(embedder(dim=4), images, device="cpu", precision="bf16"))
    assert os.environ[VARIABLES[0]] == CAP
    monkeypatch.delenv(VARIABLES[0])
    build_fabric(EngineConfig(accelerator="cpu", precision="bf16"))
    assert os.environ[VARIABLES[0]] == CAP


def test_onednn_computes_bf16_below_amx_in_a_process_that_is_limited():
    code = """
import torch
from suprank.system.cpu_features import avoid_amx
avoid_amx()
with torch.no_grad():
    print(torch.nn.functional.linear(torch.ones(64, 64, dtype=torch.bfloat16), torch.ones(64, 64, dtype=torch.bfloat16))[0, 0])
"""
    environment = {name: value for name, value in os.environ.items() if name not in VARIABLES} | {"ONEDNN_VERBOSE": "1"}
    done = subprocess.run([sys.executable, "-P", "-c", code], env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "tensor(64., dtype=torch.bfloat16)" in done.stdout
    if torch.backends.mkldnn.is_available():
        assert "onednn_verbose" in done.stdout
        assert "amx" not in done.stdout.lower().replace("intel amx", "")
