"""benchmarks/learning_to_rank.py: peers are loaded without what they import, compared with ours, and shown in a table."""

import argparse
import runpy
import sys
from pathlib import Path
from unittest.mock import patch

import pytest
import torch

CPU = torch.device("cpu")
ALLRANK = {  # as small as a package of allRank's layout can be; the loss is ApproxNDCG by its definition
    "__init__.py": "",
    "data/__init__.py": "",
    "data/dataset_loading.py": "raise ImportError('gcsfs')",
    "models/__init__.py": "",
    "models/losses/__init__.py": """
import torch
from allrank.data.dataset_loading import PADDED_Y_VALUE
def approxNDCGLoss(scores, grades, alpha):
    assert not (grades == PADDED_Y_VALUE).any()
    values = []
    for s, g in zip(scores, grades):
        places = 0.5 + torch.sigmoid(alpha * (s[None] - s[:, None])).sum(-1)
        ideal = ((2**g.sort(descending=True).values - 1) / torch.log2(torch.arange(len(g)) + 2.0)).sum()
        values.append(((2**g - 1) / torch.log2(1 + places)).sum() / ideal)
    return -torch.stack(values).mean()
""",
}


@pytest.fixture(scope="module")
def script():
    return runpy.run_path(str(Path(__file__).parents[2] / "benchmarks" / "learning_to_rank.py"))


@pytest.fixture
def allrank(tmp_path, monkeypatch):
    for name, code in ALLRANK.items():
        path = tmp_path / "allrank" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    with patch.dict(sys.modules):
        yield


def test_our_smooth_ndcg_is_the_peers_approx_ndcg(script, allrank):
    found = script["measure"](script["CASES"]["approxNDCGLoss"], 20, 64, CPU, 0.0)
    assert found.note == ""
    assert found.value_difference < 1e-6
    assert found.gradient_difference < 1e-5
    mine = script["measure"](script["CASES"]["SmoothNDCG"], 20, 64, CPU, 0.0)
    assert found.value == pytest.approx(mine.value, rel=1e-5)
    other = script["compare"](lambda scores, _: scores.square().mean(), script["CASES"]["SmoothNDCG"], 20, 64, CPU)
    assert min(other) > 0.1, "another loss is told apart"
    run = script["LearningToRankRun"].here([mine, found], command="python", device=CPU)
    assert f"| allRank: approxNDCGLoss | SmoothNDCG | 20 × 64 | {found.value_difference:.1e} |" in run.markdown()


def test_a_missing_peer_is_skipped_with_a_line_that_says_how_to_install_it(script, capsys, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    cases = script["installed"](argparse.Namespace(loss=None))
    assert {case.library for case in cases} == {"suprank"}
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 3
    assert lines[0] == "LibAUC is skipped: pip install --no-deps --target DIR libauc, and give --peers DIR"
