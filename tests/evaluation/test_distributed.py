"""One process and three find the same, to the last digit."""

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch.distributed

from suprank.evaluation import evaluate
from suprank.evaluation.embeddings import Embeddings
from suprank.evaluation.search import Search
from tests.evaluation import worker

ROOT = Path(__file__).parents[2]
WORLDS = (3,)

pytestmark = [
    pytest.mark.xdist_group("processes"),  # started once, and not by every worker of pytest
    pytest.mark.skipif(
        not (torch.distributed.is_available() and torch.distributed.is_gloo_available()),
        reason="needs torch.distributed with gloo",
    ),
]


@pytest.fixture(scope="module")
def alone():
    """What one process finds that knows of no others."""
    return {"reports": worker.reports(0, 1), "gap": worker.gap(0, 1), "sets": worker.sets_of_several_sizes(0, 1)}


@pytest.fixture(scope="module")
def together(forked, tmp_path_factory):
    """What each of several processes finds, by their number."""
    folder = tmp_path_factory.mktemp("processes")
    variables = {"GLOO_SOCKET_IFNAME": "lo"}
    started = forked.start(folder, *WORLDS, cwd=ROOT, call="tests.evaluation.worker:command_line", variables=variables)
    started.succeed(timeout=180)
    return {
        world: [pickle.loads((folder / f"{world}.{rank}.pickle").read_bytes()) for rank in range(world)] for world in WORLDS
    }


@pytest.mark.slow
@pytest.mark.parametrize("world", WORLDS)
def test_every_process_finds_what_one_alone_finds(alone, together, world):
    assert len(alone["reports"]) == 17
    for found in together[world]:
        for name, expected in alone["reports"].items():
            report = found["reports"][name]
            assert report.per_query is not None
            for key, value in expected.items():
                assert report[key] == value or np.isnan([report[key], value]).all(), (name, key)
                np.testing.assert_array_equal(report.per_query[key], expected.per_query[key], f"{name}, {key}")
            assert report == expected


@pytest.mark.slow
@pytest.mark.parametrize("world", WORLDS)
def test_the_gap_is_the_same_on_any_number_of_processes(alone, together, world):
    for found in together[world]:
        np.testing.assert_array_equal(found["gap"], alone["gap"])


@pytest.mark.slow
@pytest.mark.parametrize("world", WORLDS)
def test_the_metric_brings_label_sets_of_several_sizes_together(alone, together, world):
    for found in together[world]:
        assert found["sets"] == pytest.approx(alone["sets"])


@pytest.mark.slow
@pytest.mark.parametrize("world", WORLDS)
def test_what_processes_cannot_do_together_is_refused_on_all_of_them(together, world):
    for found in together[world]:
        output = found["refusals"]
        assert "processes hold different embeddings, " in output["different dimensions"]
        assert "has no embeddings" in output["nothing anywhere"]


def test_one_process_finds_the_same_in_any_budget_and_through_the_metric(alone):
    reports = alone["reports"]
    assert reports["everything"] == reports["a gallery in chunks"]
    assert reports["top k"] == reports["top k of a gallery in chunks"]
    for name in ("padded", "uneven", "a process without items"):
        metric = reports[f"metric, {name}"]
        assert metric.means == pytest.approx(reports["everything"].means, nan_ok=True, abs=0)
        np.testing.assert_array_equal(metric.query_ids, np.arange(worker.COUNT))
    embeddings, labels = worker.data()
    half = embeddings.bfloat16()
    expected = evaluate(
        *(half[:99], labels[:99], half[50:], labels[50:]),
        metrics=["R@1", "AP", "H-AP"],
        ids=worker.ids(0, 99),
        gallery_ids=worker.ids(50),
    )
    assert reports["metric, queries and gallery"].means == expected.means


def test_there_are_several_blocks_to_share_out_and_once_fewer_than_processes():
    embeddings = Embeddings.from_source(worker.data()[0])

    def blocks(budget, number):
        search = Search(embeddings, embeddings, device=torch.device("cpu"), memory_budget=budget)
        return len(search.blocks(np.full(number, 20))), search.resident

    number, resident = blocks(worker.SMALL, worker.COUNT)
    assert number > 3
    assert resident
    number, resident = blocks(worker.TINY, worker.COUNT)
    assert number > 3
    assert not resident
    assert blocks(None, 40) == (1, True)
