"""The gap by batch size is that of `decomposability_gap`."""

import numpy as np
import pytest

from suprank.evaluation import decomposability_gap
from suprank.explorer.findings import batch_gap, curves, gap_by_size
from tests import reference
from tests.explorer import runs
from tests.explorer.runs import evaluated, of_arrays


def test_it_is_the_gap_of_evaluation_for_both_measures(tmp_path):
    pictures = runs.collection(tmp_path, groups=3, classes=3, images=6)
    data = of_arrays("x", runs.vectors(pictures, noise=2.5), pictures)
    report = evaluated(data)
    found = gap_by_size(data, report, (8, 20, 99), seed=5)
    assert found.sizes == (8, 20, 54)
    assert (found.queries, found.total_queries) == (54, 54)
    for measure in ("AP", "H-AP"):
        for place, size in enumerate((8, 20)):
            expected = decomposability_gap(
                data.queries.embeddings, pictures.labels, size, measure, levels=data.levels, seed=5, progress=False
            )
            assert found.values[measure][place] == pytest.approx(expected.value)
        assert found.values[measure][-1] == 0
        assert found.overall[measure] == pytest.approx(report[measure])


def test_the_measures_of_many_lists_are_those_of_the_definition():
    draw = np.random.default_rng(0)
    ranked = draw.integers(0, 4, (40, 9)) * (draw.random((40, 9)) < 0.5)
    ranked[0], ranked[1] = 0, [1] * 9
    found = batch_gap.average_precisions(ranked, 3, decay=2.0)
    assert np.isnan(found[:, 0]).all()
    assert np.isnan(found[0, 1])
    assert found[1, 1] == 1, "all items are equally relevant"
    for levels, (ap, h_ap) in zip(ranked.tolist(), found.T.tolist(), strict=True):
        if any(levels):
            assert h_ap == pytest.approx(reference.listed_h_ap(reference.tree_relevance(levels, 2.0, depth=3)))
        if 3 in levels:
            assert ap == pytest.approx(reference.listed_ap([level == 3 for level in levels]))


def test_queries_against_a_gallery_leave_themselves_out_by_id(tmp_path):
    whole = runs.collection(tmp_path / "d", splits=("query", "gallery"), id=[f"i{row}" for row in range(24)])
    alone = of_arrays("alone", runs.vectors(whole), whole)
    twice = of_arrays("twice", runs.vectors(whole), whole, runs.vectors(whole), whole)
    one, other = (gap_by_size(data, evaluated(data), (8,)) for data in (alone, twice))
    assert one.values == other.values


def test_one_measure_of_one_level_and_a_sample_of_queries(tmp_path, monkeypatch):
    pictures = runs.collection(tmp_path)
    flat = type(pictures).from_columns(pictures.table.drop(["label_group"]), root=pictures.root, levels=["class"])
    data = of_arrays("x", runs.vectors(flat), flat)
    monkeypatch.setattr(batch_gap, "_PAIRS", 24 * 6)
    monkeypatch.setattr(curves, "MIN_QUERIES", 5)
    calls = []
    found = gap_by_size(data, evaluated(data), (4, 10), progress=lambda done, total: calls.append((done, total)))
    assert list(found.values) == ["AP"]
    assert (found.queries, found.total_queries) == (6, 24)
    assert calls[-1] == (6, 6), "queries"


def test_sizes_of_too_many_batches_are_left_out(tmp_path, monkeypatch):
    pictures = runs.collection(tmp_path)
    data = of_arrays("x", runs.vectors(pictures), pictures)
    monkeypatch.setattr(batch_gap, "MAX_BATCHES", 3)
    assert gap_by_size(data, evaluated(data), (4, 8, 12)).sizes == (8, 12, 24)


def test_without_positives_there_is_no_gap(tmp_path):
    single = runs.collection(tmp_path, groups=3, classes=1, images=1)
    data = of_arrays("x", runs.vectors(single), single)
    found = gap_by_size(data, evaluated(data), (2,))
    assert np.isnan(found.values["AP"]).all()
