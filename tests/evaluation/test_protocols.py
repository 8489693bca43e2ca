"""Protocols: each against the library or function that people quote it from, and the conventions by hand."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from suprank.evaluation import PROTOCOLS, Qrels, QueryInGalleryWarning, Report, evaluate, landmark_map
from suprank.evaluation.protocols import mteb_metric
from suprank.evaluation.revisited import revisited

PAGE = Path(__file__).parents[2] / "docs" / "evaluation.md"
QUIET = {"device": "cpu", "progress": False}


def collection(seed=0, items=60, classes=9, dim=6, levels=None):
    """Embeddings around their classes, and labels; with `levels`, numbers of so few values that many scores tie."""
    draw = np.random.default_rng(seed)
    labels = draw.integers(0, classes, items)
    embeddings = draw.normal(size=(classes, dim))[labels] + draw.normal(size=(items, dim))
    if levels is not None:
        embeddings = np.where(embeddings > 0, 1.0, -1.0)
    return embeddings.astype(np.float32), labels


def qrels(judged, rule):
    return replace(Qrels.from_dict(judged), self_match=rule)


# Deep metric learning; `test_other_libraries.py` compares it with pytorch-metric-learning


def test_dml_leaves_out_the_row_whatever_the_ids():
    embeddings, labels = collection()
    copied = np.concatenate([embeddings, embeddings[:7]]), np.concatenate([labels, labels[:7]])
    ids = [f"image {row}" for row in [*range(60), *range(7)]]
    report = evaluate(*copied, ids=ids, per_query=True, protocol="dml", **QUIET)
    assert report.per_query["R@1"][:7].tolist() == report.per_query["R@1"][60:].tolist() == [1] * 7
    assert report.query_ids.tolist() == ids
    assert evaluate(*copied, ids=ids, metrics=["R@1"], **QUIET)["R@1"] < report["R@1"]


def test_dml_ranks_a_gallery_that_begins_with_the_queries_without_the_query():
    embeddings, labels = collection()
    more, other = collection(1)
    ids = [str(row) for row in range(120)]
    both = np.concatenate([embeddings, more]), np.concatenate([labels, other + 100])
    found = evaluate(embeddings, labels, *both, ids=ids[:60], gallery_ids=ids, protocol="dml", **QUIET)
    expected = evaluate(embeddings, labels, *both, self_index=np.arange(60), metrics=["mAP@R"], **QUIET)
    assert found["mAP@R"] == expected["mAP@R"]
    assert found.settings["conventions"].startswith("queries against the gallery; the query itself left out by its row;")
    inshop = evaluate(embeddings, labels, more, other, ks=[1, 20], protocol="dml", **QUIET)
    assert inshop.settings["conventions"].startswith("queries against the gallery; the query itself not left out;")
    assert inshop["R@20"] == evaluate(embeddings, labels, more, other, metrics=["R@20"], **QUIET)["R@20"]


def test_dml_takes_the_finest_of_several_levels():
    embeddings, labels = collection()
    tree = np.stack([labels, labels // 3], axis=1)
    both = evaluate(embeddings, tree, levels=["species", "genus"], protocol="dml", **QUIET)
    assert both.means == evaluate(embeddings, labels, protocol="dml", **QUIET).means
    assert both.levels == ("species",)


# mteb


def mteb_lists(embeddings, names, rule):
    """What mteb hands to trec_eval: cosines of all items, without the query by the task's rule."""
    unit = embeddings / np.linalg.norm(embeddings, axis=1, keepdims=True)
    scores = (unit @ unit.T).round(6)
    lists = {}
    for query, row in zip(names, scores, strict=True):
        ranked = dict(zip(names, row.tolist(), strict=True))
        first = max(ranked, key=lambda item: (ranked[item], item))
        lists[query] = {item: score for item, score in ranked.items() if item != {"first": first, "id": query}.get(rule)}
    return lists


@pytest.mark.parametrize("rule", ["first", "id", "keep"])
@pytest.mark.parametrize("levels", [None, 2], ids=["no ties", "many ties"])
def test_mieb_is_trec_evals(rule, levels):
    pytrec_eval = pytest.importorskip("pytrec_eval")
    embeddings, labels = collection(dim=4, levels=levels)
    draw = np.random.default_rng(1)
    names = [f"image{number}" for number in draw.permutation(len(labels))]
    judged = {
        query: {
            item: int(draw.integers(0, 3)) for item, other in zip(names, labels, strict=True) if other == own and item != query
        }
        for query, own in zip(names, labels, strict=True)
    }
    judged = {query: items for query, items in judged.items() if items}
    measures = {"ndcg_cut.1,10", "map_cut.1,10", "recall.1,10", "P.1,10", "success.1,10"}
    expected = pytrec_eval.RelevanceEvaluator(judged, measures).evaluate(mteb_lists(embeddings, names, rule))
    report = evaluate(embeddings, ids=names, truth=qrels(judged, rule), ks=[1, 10, len(labels)], per_query=True, **QUIET)
    for theirs, ours in {
        "ndcg_cut": "ndcg",
        "map_cut": "map",
        "recall": "recall",
        "P": "precision",
        "success": "hit_rate",
    }.items():
        for k in (1, 10):
            values = dict(zip(report.query_ids.tolist(), report.per_query[mteb_metric(f"{ours}_at_{k}")], strict=True))
            assert values == pytest.approx({query: row[f"{theirs}_{k}"] for query, row in expected.items()}, abs=1e-6)
    assert report.settings["self_match"] == rule


def test_mieb_of_labels_is_mieb_of_their_judgments_and_drops_the_first_result_of_a_query_in_the_corpus():
    embeddings, labels = collection()
    judged = {
        str(query): {str(item): 1 for item in range(60) if labels[item] == labels[query] and item != query}
        for query in range(60)
    }
    by_labels = evaluate(embeddings, labels, protocol="mieb", **QUIET)
    assert by_labels.means == evaluate(embeddings, truth=judged, **QUIET).means
    assert by_labels.settings["self_match"] == "first"
    more, other = collection(1)
    assert evaluate(embeddings, labels, more, other, protocol="mieb", **QUIET).settings["self_match"] == "keep"


@pytest.mark.parametrize("levels", [None, 2], ids=["no ties", "many ties"])
def test_mieb_of_a_few_k_is_that_of_all(levels):
    embeddings, labels = collection(dim=4, levels=levels)
    every, some = (evaluate(embeddings, labels, ks=ks, protocol="mieb", **QUIET) for ks in (None, [1, 3]))
    assert {key: every[key] for key in some} == some.means
    assert len(every) == 6 * 7


@pytest.mark.parametrize("protocol", ["dml", "mieb"])
def test_levels_that_a_protocol_does_not_evaluate_decide_the_unit(protocol):
    embeddings, _ = collection(items=80)
    labels = np.stack([np.arange(80) // 2, np.arange(80) // 4], axis=1)
    report = evaluate(embeddings, labels, levels=["species", "genus"], per_query=True, protocol=protocol, **QUIET)
    assert "genus" not in report.levels
    assert str(report.units()) == "genus: 20 classes, effectively 20"
    assert {level: len(set(own.tolist())) for level, own in report.classes.items()} == {"species": 40, "genus": 20}


def test_mieb_evaluates_lists_in_blocks(monkeypatch):
    embeddings, _ = collection()
    judged = {str(query): {str(item): item % 3 for item in range(9 * (query % 4))} for query in range(60)}
    whole = evaluate(embeddings, truth=judged, intervals=True, per_query=True, **QUIET)
    monkeypatch.setattr("suprank.evaluation.protocols._LISTED_AT_ONCE", 2500)
    monkeypatch.setattr("suprank.evaluation.protocols._RANKED_AT_ONCE", 7500)
    seen = []
    options = {**QUIET, "progress": lambda done, total: seen.append((done, total))}
    assert evaluate(embeddings, truth=judged, intervals=True, per_query=True, **options) == whole
    assert seen == [(done, 45) for done in [*range(7, 45, 7), 45]]
    assert whole.n_queries == 45  # the others are not judged
    assert whole.settings["queries_not_judged"] == 15
    assert whole.settings["grades"] == (1, 2)


def test_mieb_of_a_corpus_of_one_image_that_is_dropped_is_zero():
    embeddings, _ = collection(items=1)
    report = evaluate(embeddings, gallery=embeddings, truth=qrels({"0": {"0": 1}}, "first"), **QUIET)
    assert set(report.values()) == {0.0}


# Landmarks


def test_gldv2_of_labels_is_that_of_a_solution_and_of_the_challenges_formula():
    (queries, own), (index, theirs) = collection(0, items=8), collection(1, items=300, classes=3)
    ids, gallery_ids = [f"q{row}" for row in range(8)], [f"i{row}" for row in range(300)]
    solution = {
        name: [item for item, other in zip(gallery_ids, theirs, strict=True) if other == label]
        for name, label in zip(ids, own, strict=True)
    }
    solution = {query: items for query, items in solution.items() if items}
    by_labels = evaluate(queries, own, index, theirs, protocol="gldv2", **QUIET)
    by_solution = evaluate(queries, gallery=index, ids=ids, gallery_ids=gallery_ids, truth=solution, per_query=True, **QUIET)
    unit = [one / np.linalg.norm(one, axis=1, keepdims=True) for one in (queries, index)]
    order = np.argsort(-(unit[0] @ unit[1].T), axis=1)
    predictions = {name: [gallery_ids[item] for item in row] for name, row in zip(ids, order, strict=True) if name in solution}
    assert 0 < len(solution) < 8
    assert by_labels["mAP@100"] == pytest.approx(landmark_map(predictions, solution)["mAP@100"], abs=1e-12)
    assert by_solution["mAP@100"] == pytest.approx(by_labels["mAP@100"], abs=1e-12)
    assert by_solution.n_items == 300
    assert by_solution.settings["queries_not_judged"] == 8 - len(solution)
    assert by_labels.without_positives == {"label0": 8 - len(solution)}


@pytest.mark.parametrize("k", [1, 10, 100])
def test_gldv2_puts_the_relevant_last_of_equal_scores_by_labels_and_by_a_solution(k):
    (queries, own), (index, theirs) = collection(0, items=8, dim=4, levels=2), collection(1, items=300, dim=4, levels=2)
    solution = {row: np.flatnonzero(theirs == label).tolist() for row, label in enumerate(own) if label in theirs}
    by_labels = evaluate(queries, own, index, theirs, ks=[k], protocol="gldv2", **QUIET)
    by_solution = evaluate(queries, gallery=index, truth=solution, ks=[k], **QUIET)
    assert by_solution[f"mAP@{k}"] == pytest.approx(by_labels[f"mAP@{k}"], abs=1e-12)
    scores = queries @ index.T
    lists = {q: sorted(range(300), key=lambda item: (-scores[q, item], item in solution[q])) for q in solution}
    assert by_solution[f"mAP@{k}"] == pytest.approx(landmark_map(lists, solution, k)[f"mAP@{k}"], abs=1e-12)


def test_gldv2_counts_a_query_without_embeddings_as_zero_and_what_the_index_lacks_as_not_found():
    embeddings, _ = collection()
    solution = {"0": ["0", "not indexed"], "not embedded": ["1"]}
    report = evaluate(embeddings, gallery=embeddings, truth=solution, per_query=True, **QUIET)
    assert report.per_query["mAP@100"].tolist() == [0.5, 0]
    assert report.settings["unanswered"] == 1


def test_a_solution_of_a_text_instead_of_a_list_is_refused():
    embeddings, _ = collection()
    with pytest.raises(TypeError, match="is the text '12', but a collection of ids is expected"):
        evaluate(embeddings, gallery=embeddings, truth={"0": "12"}, **QUIET)


def test_gldv2_does_not_leave_out_a_query_that_is_in_the_index():
    embeddings, labels = collection()
    with pytest.warns(QueryInGalleryWarning):
        assert evaluate(embeddings, labels, embeddings, labels, ks=[1], protocol="gldv2", **QUIET)["mAP@1"] == 1


# Revisited


def test_revisited_is_the_function_of_that_name_with_its_conventions(tmp_path):
    (queries, _), (gallery, _) = collection(0, items=3), collection(1)
    judged = [
        {"easy": [0, 5], "hard": [7], "junk": [1, 2]},
        {"easy": [], "hard": [3], "junk": []},
        {"easy": [9], "hard": [], "junk": [8]},
    ]
    report = evaluate(queries, gallery=gallery, truth=judged, **QUIET)
    assert report.means == revisited(queries, gallery, judged, **QUIET).means
    assert report.settings["protocol"] == "revisited"
    report.save(tmp_path / "report.json")
    assert Report.load(tmp_path / "report.json") == report


# What a report says


@pytest.mark.parametrize("name", PROTOCOLS)
def test_the_page_states_the_conventions_that_reports_have(name):
    rows = [line.strip("|").split("|") for line in PAGE.read_text().splitlines() if line.startswith("|")]
    table = {row[0].strip(): [cell.strip() for cell in row[1:]] for row in rows if len(row) == 5}
    column = [cell.strip("`") for cell in table[""]].index(name)
    protocol = PROTOCOLS[name]
    assert table["list"][column] == protocol.gallery
    assert table["the query itself"][column].startswith(protocol.self_match)
    assert table["AP"][column] == protocol.average_precision
    assert table["queries without positives"][column] == protocol.no_positives
    assert table["ties"][column] == protocol.ties
    named = re.findall(r"[A-Za-z-]+@[kR]|R-P|P@1|mAP@100", table["metrics"][column])
    assert set(named) >= {metric.replace("mAP@k", "mAP@100") for metric in protocol.metrics}


def test_a_report_names_its_protocol_and_keeps_it_in_its_file(tmp_path):
    report = evaluate(*collection(), protocol="dml", **QUIET)
    assert "protocol dml: every image against all others; the query itself left out by its row" in str(report)
    report.save(tmp_path / "report.json")
    assert Report.load(tmp_path / "report.json").settings["conventions"] == PROTOCOLS["dml"].conventions()
    embeddings, labels = collection()
    judged = Qrels.from_labels(labels)
    first, kept = (evaluate(embeddings, truth=replace(judged, self_match=rule), **QUIET) for rule in ("first", "keep"))
    assert "left out as the first result, whatever it is" in str(first)
    assert "the query itself kept" in str(kept)
    assert "protocol" not in str(evaluate(*collection(), **QUIET))


# Refusals


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"protocol": "mmeb"}, "protocol='mmeb' is not one of dml, mieb, revisited, gldv2"),
        ({"protocol": "dml", "truth": {"q": {"a": 1}}}, "truth is qrels, for protocol 'mieb' and not 'dml'"),
        ({"truth": "none.pkl"}, "none.pkl: there is no such file"),
        ({"truth": 3}, "truth is int, but must be a path, Qrels"),
        ({"protocol": "dml", "metrics": ["AP"]}, "metrics cannot be combined with protocol='dml', which has its own"),
        ({"protocol": "dml", "labels": None}, "protocol='dml' needs labels"),
        ({"protocol": "mieb", "labels": None}, "needs labels of the queries and of the gallery, or qrels"),
        ({"protocol": "mieb", "ids": ["a"] * 60}, "those of queries are not unique"),
        ({"protocol": "mieb", "ids": ["a"]}, "there are 1 ids for 60 rows of embeddings"),
        ({"truth": {"x": {"y": 1}}}, "no query has a relevant item: judgments have 'x', queries '0'"),
        ({"protocol": "mieb", "labels": np.arange(60)}, "no query has a relevant item: all labels differ"),
        ({"protocol": "mieb", "gallery_ids": ["a"] * 60}, "gallery_ids were given without a gallery"),
        (
            {"labels": None, "gallery": collection()[0], "truth": qrels({"0": {"1": 1}}, "id")},
            "give ids of queries and gallery",
        ),
        ({"truth": {"0": {"1": 0.5}}}, "query '0', item '1': 0.5 is not an integer"),
        ({"protocol": "mieb", "ks": []}, "ks is empty; leave it out for those of protocol='mieb'"),
        ({"protocol": "revisited"}, "needs its truth, such as gnd_roxford5k.pkl"),
        ({"truth": []}, "needs a gallery"),
        ({"protocol": "gldv2"}, "ranks an index that the queries are not part of; give a gallery"),
        ({"protocol": "gldv2", "gallery": collection()[0], "labels": None}, "or a solution"),
        ({"gallery": collection()[0], "labels": None, "truth": {"x": ["y"]}}, "they have '0', the solution 'x'"),
        (
            {"gallery": collection()[0], "labels": None, "truth": {"a": ["1"]}, "ids": ["a"] * 60},
            "protocol='gldv2' finds items by their ids, but those of queries are not unique",
        ),
        (
            {"protocol": "gldv2", "gallery": collection()[0], "gallery_labels": collection()[1], "ks": [1, 2]},
            "takes one k, not 2",
        ),
    ],
)
def test_what_contradicts_a_protocol_is_refused_in_a_sentence(arguments, message):
    embeddings, labels = collection()
    with pytest.raises((ValueError, TypeError, FileNotFoundError), match=re.escape(message)):
        evaluate(embeddings, **{"labels": labels, **QUIET, **arguments})


def test_a_score_of_mteb_that_is_no_ranking_metric_is_refused():
    assert mteb_metric("cv_recall_at_5") == "R@5"
    with pytest.raises(ValueError, match="'nauc_ndcg_at_10_max' is no score of mteb's rankings"):
        mteb_metric("nauc_ndcg_at_10_max")
