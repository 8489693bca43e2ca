"""benchmarks/growth.py: the authors' losses are loaded beside ours, and the numbers become a table and a plot."""

import runpy
import sys
from pathlib import Path

import pytest
import torch
from bench import LOSS_CASES, LossWorkload

from suprank import losses

CPU = torch.device("cpu")
CHECKOUT = {  # as small as a package with the authors' layout can be
    "lib/__init__.py": "raise ImportError('not installed here')",
    "lib/create_label_matrix.py": "create_label_matrix = lambda labels: labels.unsqueeze(1) == labels",
    "lib/create_relevance_matrix.py": "create_relevance_matrix = lambda levels, relevance: relevance",
    "engine/compute_relevance_on_the_fly.py": "compute_relevance_on_the_fly = lambda target, alpha, check_for: target.sum(-1)",
    "losses/ranking_loss.py": """
import torch
import suprank.lib as lib
class SupAPLoss(torch.nn.Module):
    def __init__(self, hierarchy_level):
        super().__init__()
    def forward(self, embeddings, labels, ref_embeddings, ref_labels, relevance_fn):
        return (embeddings @ ref_embeddings.T * relevance_fn(lib.create_label_matrix(labels))).sum()
""",
}


@pytest.fixture(scope="module")
def growth():
    return runpy.run_path(str(Path(__file__).parents[2] / "benchmarks" / "growth.py"))


def test_the_authors_losses_are_loaded_without_shadowing_ours(growth, tmp_path):
    for name, code in CHECKOUT.items():
        path = tmp_path / "suprank" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(code)
    before = dict(sys.modules)
    loss = growth["AuthorsLoss"](tmp_path, "SupAPLoss", 0)
    assert sys.modules == before
    embeddings = torch.tensor([[2.0, 0.0], [3.0, 0.0], [0.0, 1.0]])
    assert loss(embeddings, torch.tensor([[0], [0], [1]])).item() == 5  # the cosines of equal labels
    with pytest.raises(AssertionError):
        growth["check"](losses.SupAP(), loss, CPU)


def test_the_growth_of_a_loss_is_saved_shown_and_drawn(growth, tmp_path):
    pytest.importorskip("matplotlib")
    cases = [case for case in growth["contestants"](CPU, None) if case.name.startswith("SupHAP")]
    assert [case.name for case in cases] == ["SupHAP", "SupHAP, pairs"]
    plan = [(case, LossWorkload(batch)) for case in cases for batch in (16, 64)]
    found = [growth["measure"](case, workload, CPU, 0.01) for case, workload in plan]
    assert found[1].loss == pytest.approx(found[3].loss)  # by a grid and by pairs
    skipped = growth["empty_measurement"](LOSS_CASES["SupAP"], LossWorkload(16), "failed: a reason")
    growth["GrowthRun"].here([*found, skipped], command="python benchmarks/growth.py", device=CPU).save(tmp_path / "run.json")
    run = growth["GrowthRun"].load(tmp_path / "run.json")
    assert "| loss | batch 16 | batch 64 | growth |" in run.markdown()
    assert "| SupAP | failed |  |  |" in run.markdown()
    growth["draw"](run, tmp_path / "run.png")
    assert (tmp_path / "run.png").read_bytes().startswith(b"\x89PNG")
