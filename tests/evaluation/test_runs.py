"""Runs and judgments: files that other tools read or write, and `evaluate_run` beside trec_eval, ranx and `evaluate`."""

import gzip
import json
import math
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from suprank.evaluation import Qrels, Report, Run, evaluate, evaluate_run, runs, top_k
from suprank.evaluation.quoted_metrics import distinct_keys
from tests.evaluation.plain_ranx import uncompiled
from tests.evaluation.random_collections import random_collection

TREC = """\
q1 Q0 b 1 0.75 tag
q1 Q0 a 2 0.5 tag
q2 Q0 c 1 -3.0 tag
"""

FILES = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
WORDS = st.text(st.characters(exclude_categories=("Cs", "Cc", "Z"), exclude_characters='",'), min_size=1, max_size=8)
ANY_TEXT = st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=8)
SCORES = st.floats(allow_nan=False, allow_infinity=False)


def lists(ids, values):
    return st.dictionaries(ids, st.dictionaries(ids, values, min_size=1, max_size=6), max_size=4)


@pytest.fixture
def run():
    return Run.from_dict({"q1": {"a": 0.5, "b": 0.75}, "q2": {"c": -3.0}})


def written(tmp_path, name, text):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


# Worked examples


def test_a_run_is_written_line_by_line_as_trec_wants_it(run, tmp_path):
    run.save(tmp_path / "a.trec", tag="tag")
    assert (tmp_path / "a.trec").read_text() == TREC


def test_a_run_is_written_as_kaggle_scored_it_and_read_with_scores_that_only_fall(run, tmp_path):
    run.save(tmp_path / "a.csv")
    assert (tmp_path / "a.csv").read_text() == "id,images\nq1,b a\nq2,c\n"
    assert list(Run.load(tmp_path / "a.csv")) == [("q1", [("b", 1.0), ("a", 0.5)]), ("q2", [("c", 1.0)])]


def test_judgments_are_written_line_by_line_as_trec_wants_them(tmp_path):
    Qrels.from_dict({"q1": {"a": 2, "b": 0}, "q2": {"a": -1}}).save(tmp_path / "a.trec")
    assert (tmp_path / "a.trec").read_text() == "q1 0 a 2\nq1 0 b 0\nq2 0 a -1\n"


def test_labels_judge_by_the_level_of_the_common_ancestor_and_leave_self_out():
    labels = torch.tensor([[0, 0], [0, 0], [1, 0], [2, 1]])  # two of one class, their cousin, and a stranger
    expected = {"a": {"b": 2, "c": 1}, "b": {"a": 2, "c": 1}, "c": {"a": 1, "b": 1}}
    judged = Qrels.from_labels(labels, query_ids=list("abcd"))
    assert judged.to_dict() == expected, "the stranger has no positives, and so no judgments"
    with_gallery = Qrels.from_labels(labels[:1], labels, query_ids=["q"])
    assert list(with_gallery) == [("q", [("0", 2), ("1", 2), ("2", 1)])]


# Agreement


def test_labels_judged_in_blocks_are_those_of_one_block(monkeypatch):
    labels = torch.randint(0, 3, (23, 2), generator=torch.Generator().manual_seed(0))
    whole = Qrels.from_labels(labels)
    monkeypatch.setattr("suprank.evaluation.runs._PAIRS_AT_ONCE", 50)
    assert Qrels.from_labels(labels) == whole
    for query, judged in whole:
        own = labels[int(query)]
        assert dict(judged) == {
            str(item): 1 + int(own[0] == labels[item, 0])
            for item in range(23)
            if item != int(query) and own[1] == labels[item, 1]
        }


def judged_lists(queries=12, items=30):
    """Random lists and judgments without tied scores, on which libraries differ; every query has a relevant item."""
    rng = np.random.default_rng(0)
    scored, judged = {}, {}
    for query in range(queries):
        listed = rng.permutation(items)[: int(rng.integers(5, items))]
        scored[f"q{query}"] = {f"d{item}": float(np.float32(rng.normal())) for item in listed}
        relevant = rng.permutation(items)[: int(rng.integers(1, 8))]
        judged[f"q{query}"] = {f"d{item}": int(rng.integers(1, 4)) for item in relevant}
    return scored, judged


@pytest.mark.parametrize("how", ["json", "dict", "trec"])
def test_ranx_leaves_queries_without_positives_out_as_evaluate_does(ranx, tmp_path, how):
    embeddings = torch.randn(12, 4, generator=torch.Generator().manual_seed(2))
    labels = torch.tensor([0, 0, 0, 1, 1, 2, 2, 2, 3, 4, 5, -1])  # the last four have no positives
    run, qrels = top_k(embeddings, k=12, progress=False).run(), Qrels.from_labels(labels)
    with uncompiled():
        if how == "dict":
            theirs = ranx.Qrels(qrels.to_dict()), ranx.Run(run.to_dict())
        else:
            for name, lists in (("qrels", qrels), ("run", run)):
                lists.save(tmp_path / f"{name}.{how}")
            files = [str(tmp_path / f"{name}.{how}") for name in ("qrels", "run")]
            theirs = ranx.Qrels.from_file(files[0], kind=how), ranx.Run.from_file(files[1], kind=how)
        found = ranx.evaluate(*theirs, "map", make_comparable=True)
    assert found == pytest.approx(evaluate(embeddings, labels, metrics=["AP"], progress=False)["AP"])


@pytest.mark.parametrize(("extension", "kind"), [("trec", "trec"), ("run", "trec"), ("txt", "trec"), ("json", "json")])
def test_ranx_reads_our_files(ranx, tmp_path, extension, kind):
    scored, judged = judged_lists()
    run, qrels = Run.from_dict(scored), Qrels.from_dict(judged)
    run.save(tmp_path / f"run.{extension}")
    qrels.save(tmp_path / f"qrels.{extension}")
    with uncompiled():
        theirs_run = ranx.Run.from_file(str(tmp_path / f"run.{extension}"), kind=kind)
        theirs_qrels = ranx.Qrels.from_file(str(tmp_path / f"qrels.{extension}"), kind=kind)
    assert {query: dict(found) for query, found in theirs_run.to_dict().items()} == scored
    assert {query: dict(found) for query, found in theirs_qrels.to_dict().items()} == judged


# Laws


@given(lists(WORDS, SCORES))
@FILES
def test_a_run_comes_back_from_trec(tmp_path, content):
    run = Run.from_dict(content)
    run.save(tmp_path / "a.trec")
    assert Run.load(tmp_path / "a.trec") == run
    assert Run.load(tmp_path / "a.trec").to_dict() == content


@given(lists(ANY_TEXT, SCORES))
@FILES
def test_a_run_comes_back_from_json_whatever_its_ids(tmp_path, content):
    run = Run.from_dict(content)
    run.save(tmp_path / "a.json")
    assert Run.load(tmp_path / "a.json") == run
    assert run.to_dict() == content


@given(lists(WORDS, SCORES).filter(bool))
@FILES
def test_the_order_of_a_run_comes_back_from_csv(tmp_path, content):
    run = Run.from_dict(content)
    run.save(tmp_path / "a.csv")
    loaded = Run.load(tmp_path / "a.csv")
    assert [(query, [item for item, _ in ranked]) for query, ranked in loaded] == [
        (query, [item for item, _ in ranked]) for query, ranked in run
    ]


@given(lists(WORDS, st.integers(-(2**40), 2**40)), st.sampled_from(["trec", "json"]))
@FILES
def test_judgments_come_back(tmp_path, content, extension):
    qrels = Qrels.from_dict(content)
    qrels.save(tmp_path / f"a.{extension}")
    assert Qrels.load(tmp_path / f"a.{extension}") == qrels
    assert qrels.to_dict() == content


# Edges


def test_ties_are_in_the_order_of_ranks_and_lines_in_a_file_and_of_insertion_in_a_dictionary(tmp_path):
    text = "q Q0 a 3 1 t\nq Q0 b 2 1 t\nq Q0 c 1 1 t\nq Q0 z 4 0.5 t\nq Q0 y 4 0.5 t\n"
    ((_, ranked),) = Run.load(written(tmp_path, "a.trec", text))
    assert [item for item, _ in ranked] == ["c", "b", "a", "z", "y"]
    ((_, ranked),) = Run.from_dict({"q": {"b": 1, "c": 2, "a": 1}})
    assert [item for item, _ in ranked] == ["c", "b", "a"]


def test_ranks_that_contradict_scores_are_reported_and_the_scores_win(tmp_path):
    path = written(tmp_path, "a.trec", "q Q0 a 1 0.1 t\nq Q0 b 2 0.9 t\n")
    with pytest.warns(UserWarning, match=r"a\.trec:1: the rank column contradicts the scores.*sorted by score"):
        loaded = Run.load(path)
    assert list(loaded) == [("q", [("b", 0.9), ("a", 0.1)])]
    Run.load(written(tmp_path, "b.trec", "q Q0 a 1 0.9 t\nq Q0 b 2 0.9 t\n"))  # a tie contradicts nothing


@pytest.mark.parametrize("extension", ["trec", "json"])
def test_a_run_of_no_queries_can_be_kept(tmp_path, extension):
    Run.from_dict({}).save(tmp_path / f"a.{extension}")
    assert list(Run.load(tmp_path / f"a.{extension}")) == []


def test_blank_lines_a_byte_order_mark_and_windows_line_ends_are_read(tmp_path):
    path = tmp_path / "a.run"
    path.write_bytes(b"\xef\xbb\xbfq\tQ0  a 1\t1e-3 t\r\n\r\nq Q0 b 2 0 t")
    assert Run.load(path).to_dict() == {"q": {"a": 0.001, "b": 0.0}}
    path = tmp_path / "a.csv"
    path.write_bytes(b'\xef\xbb\xbf"id","images"\r\n"q","b a"\r\n\r\nr,c \r\n')
    assert Run.load(path).to_dict() == {"q": {"b": 1.0, "a": 0.5}, "r": {"c": 1.0}}


# What is refused


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("q Q0 a 1 0.5", "six fields"),
        ("q Q0 a first 0.5 t", "six fields"),
        ("q Q0 a 1 high t", "six fields"),
        ("q Q0 a 99999999999999999999 1 t", "six fields"),
        ("q Q0 a 1 nan t", "must be finite"),
        ("q Q0 a 1 -inf t", "must be finite"),
        ("r Q0 x 1 0.5 t", "query 'r' has item 'x' twice"),
    ],
)
def test_a_bad_line_of_a_run_is_named(tmp_path, line, complaint):
    path = written(tmp_path, "a.trec", f"r Q0 x 2 0.25 t\n\n{line}\ns Q0 x 2 0.25 t\n")
    with pytest.raises(ValueError, match=rf"a\.trec:3: .*{complaint}"):
        Run.load(path)


@pytest.mark.parametrize(
    ("line", "complaint"),
    [("q 0 a", "four fields"), ("q 0 a 1.5", "four fields"), ("q 0 a 1 2", "four fields"), ("r 0 x 2", "'x' twice")],
)
def test_a_bad_line_of_qrels_is_named(tmp_path, line, complaint):
    with pytest.raises(ValueError, match=rf"a\.txt:2: .*{complaint}"):
        Qrels.load(written(tmp_path, "a.txt", f"r 0 x 1\n{line}\n"))


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("q,a b\n", "a.csv:1: the header is 'q,a b'"),
        ("", "a.csv:1: the header is ''"),
        ("id,images\nq\n", "a.csv:2: 'q' has 1 cells, but there are 2 columns"),
        ("id,images\nq,a,b\n", "a.csv:2: .* has 3 cells"),
        ("id,images\n,a\n", "a.csv:2: the id is empty"),
        ("id,images\nq,a  b\n", "a.csv:2: .*blank too many"),
        ("id,images\nq,a b  \n", "a.csv:2: .*blank too many"),
        ("id,images\nq,a\n\nq,b\n", "a.csv:4: query 'q' is repeated"),
        ("id,images\nr,b\nq,a b a\n", "a.csv: query 'q' has item 'a' twice"),
    ],
)
def test_a_bad_prediction_file_is_refused(tmp_path, text, complaint):
    with pytest.raises(ValueError, match=complaint):
        Run.load(written(tmp_path, "a.csv", text))


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ('{"q": {"a": 1},\n "r" {}}', "a.json:2: this is not JSON"),
        ('{"q": {"a": 1, "a": 2}}', "'a' twice"),
        ('{"q": {"a": 1}, "q": {"b": 2}}', "query 'q' is repeated"),
        ('{"q": {"a": "1"}}', "item 'a': '1' is not a number"),
        ('{"q": {"a": true}}', "item 'a': True is not a number"),
        ('{"q": {"a": NaN}}', "must be finite"),
        ('{"q": ["a"]}', "is not a list of items"),
        ('["q"]', "is expected"),
    ],
)
def test_a_bad_json_run_is_refused(tmp_path, text, complaint):
    with pytest.raises(ValueError, match=complaint):
        Run.load(written(tmp_path, "a.json", text))


@pytest.mark.parametrize("blank", ["a b", "a\tb", "a\u2003b", " ", "a\n"])
@pytest.mark.parametrize("where", ["query", "item"])
@pytest.mark.parametrize("extension", ["trec", "csv"])
def test_ids_with_blanks_are_refused_where_blanks_separate_and_an_existing_file_stays(tmp_path, extension, where, blank):
    good, path = {"first": {"x": 1.0}}, tmp_path / f"a.{extension}"
    Run.from_dict(good).save(path)
    before = path.read_text()
    bad = Run.from_dict(good | ({blank: {"x": 1.0}} if where == "query" else {"q": {"y z": 2.0, blank: 1.0}}))
    with pytest.raises(ValueError, match=f"{where} .* has blanks.*write .json"):
        bad.save(path)
    assert path.read_text() == before
    assert list(tmp_path.iterdir()) == [path]


def test_other_ids_that_a_format_cannot_hold_are_refused(run, tmp_path):
    with pytest.raises(ValueError, match="comma"):
        Run.from_dict({"q": {"a,b": 1.0}}).save(tmp_path / "a.csv")
    with pytest.raises(ValueError, match="tag 'my system' has blanks"):
        run.save(tmp_path / "a.trec", tag="my system")
    with pytest.raises(ValueError, match="the id of the item is empty"):
        Run.from_dict({"q": {"": 1.0}})


@pytest.mark.parametrize("text", [pa.string(), pa.large_string()])
def test_of_a_filtered_column_of_categories_only_those_that_are_used_are_ids(text):
    query, item = (pa.array(list(ids), text).dictionary_encode()[1:] for ids in ("cbab", "zxyy"))
    judged = Qrels(query, item, [1, 1, 1])
    assert list(judged) == [("b", [("x", 1), ("y", 1)]), ("a", [("y", 1)])]
    assert evaluate_run({"b": {"x": 2.0, "y": 1.0}, "a": {"y": 1.0}}, judged, ["AP"])["AP"] == 1


def test_rows_without_an_id_are_refused():
    for column, query, item in (("query", ["q", None], ["x", "y"]), ("item", ["q", "q"], ["x", None])):
        with pytest.raises(ValueError, match=f"{column} has 1 row.* without an id"):
            Run(query, item, [1.0, 2.0])


def test_an_unknown_extension_is_refused_with_the_known_ones(run, tmp_path):
    with pytest.raises(ValueError, match=r"extension '\.parquet'.*\.trec, \.run, \.txt, \.json, \.csv"):
        run.save(tmp_path / "a.parquet")
    with pytest.raises(ValueError, match=r"a\.csv is of a format that is not read here; use \.trec, \.run, \.txt, \.json, "):
        Qrels.load(tmp_path / "a.csv")


# Three columns


def test_columns_are_sorted_by_score_within_a_query():
    run = Run([5, 4, 5, 4], [1, 2, 3, 4], np.array([0.5, 0.25, 0.75, 0.25], np.float16))
    assert list(run) == [("5", [("3", 0.75), ("1", 0.5)]), ("4", [("2", 0.25), ("4", 0.25)])]
    assert (len(run), run.to_dict()["5"]) == (2, {"3": 0.75, "1": 0.5})
    assert run == Run(["5", "5", "4", "4"], ["3", "1", "2", "4"], [0.75, 0.5, 0.25, 0.25])
    assert run != Run(["5", "5", "4", "4"], ["3", "1", "4", "2"], [0.75, 0.5, 0.25, 0.25])


@pytest.mark.parametrize(
    ("columns", "error", "complaint"),
    [
        ((["q"], [0.5], [0.5]), TypeError, "item holds double, but ids must be text or integers"),
        ((["q"], ["a", "b"], [0.5]), ValueError, "run has 1 queries, 2 items and 1 numbers"),
        ((["q", "q"], ["a", "a"], [0.5, 0.4]), ValueError, "query 'q' has item 'a' twice"),
        ((["q"], ["a"], [np.nan]), ValueError, "the score is nan"),
    ],
)
def test_columns_that_do_not_fit_are_refused(columns, error, complaint):
    with pytest.raises(error, match=complaint):
        Run(*columns)
    if error is not ValueError or "score" not in complaint:
        with pytest.raises(error, match=complaint.replace("run", "qrels")):
            Qrels(*columns[:2], [1] * len(columns[2]))
    with pytest.raises(TypeError, match="grade has dtype float64"):
        Qrels(["q"], ["a"], [0.5])


# Fast


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("q1 Q0 d1 1 0.5 tag\nq1 Q0 d2 2 -1e-3 tag\n", True),
        ("q1\tQ0\td1\t1\t0.5\ttag\nq2\tQ0\td1\t1\t.25\ttag", True),
        ('q"1 Q0 d,1 1 0.1 NA\nNA Q0 null 2 7 tag\n', True),
        ("q1 Q0 dé 1 0.5 tag\r\n\nq1 Q0 d2 2 0.4 tag\r\n", True),
        ("q1  Q0 d1 1 0.5 tag\n", False),  # two blanks
        ("q1 Q0\td1 1 0.5 tag\n", False),
        ("q1 Q0 d1 1 0.5 a tag of words\n", False),
        ("# a comment\nq1 Q0 d1 1 0.5 tag\n", False),
        ("# in six fields 1 0.5 tag\nq1 Q0 d1 1 0.5 tag\n", False),
        ("q1 Q0 d1 1 0.5 \u00e9quipe\n", True),
        ("q1 Q0 d1\u2028 1 0.5 tag\n", False),  # blanks of Unicode
        ("q1 Q0\u3000 d1 1 0.5 tag\n", False),
        (" Q0 d1 1 0.5 tag\n", False),
        ("q1 Q0 d1 1 0.5 tag\nq1 Q0 d2 2 high tag\n", False),
    ],
)
def test_plain_lines_are_read_by_pyarrow_as_all_others_are_one_by_one(text, plain, tmp_path, monkeypatch):
    file, by_line, slow = tmp_path / "run.trec", runs._read_lines, []
    file.write_bytes(text.encode())
    monkeypatch.setattr(runs, "_read_lines", lambda *given: slow.append(1) or by_line(*given))
    if "high" in text or text[0] == " ":
        with pytest.raises(ValueError, match=r"run\.trec:[12]: .* is not a line of a TREC run"):
            Run.load(file)
        return
    found = Run.load(file).to_dict()
    assert bool(slow) != plain
    lines = [line.split() for line in text.split("\n") if line.strip() and not line.startswith("#")]
    assert found == {q: {one[2]: float(one[4]) for one in lines if one[0] == q} for q in dict.fromkeys(one[0] for one in lines)}


def test_lines_are_counted_across_the_blocks_of_pyarrow(tmp_path, monkeypatch):
    monkeypatch.setattr(runs, "_BLOCK", 50)
    lines = [f"q{number % 3} Q0 d{number} {number} {-number} tag\n" for number in range(1, 40)]
    (tmp_path / "run.trec").write_text("".join(lines))
    expected = {f"q{q}": {f"d{n}": -n for n in range(1, 40) if n % 3 == q} for q in (1, 2, 0)}
    assert Run.load(tmp_path / "run.trec").to_dict() == expected
    lines[30] = "q1 Q0 d28 31 -31 tag\n"
    (tmp_path / "run.trec").write_text("".join(lines))
    with pytest.raises(ValueError, match=r"run.trec:31: query 'q1' has item 'd28' twice"):
        Run.load(tmp_path / "run.trec")


@pytest.mark.parametrize("damage", [lambda whole: whole[:-20], lambda whole: whole[:-8] + bytes(8), lambda whole: b"no gzip"])
def test_a_damaged_gz_file_is_refused_by_its_name(tmp_path, damage):
    path = tmp_path / "run.trec.gz"
    path.write_bytes(damage(gzip.compress(TREC.encode() * 100)))
    with pytest.raises(ValueError, match=r"run\.trec\.gz is not a readable run: "):
        Run.load(path)


@pytest.mark.parametrize(
    ("name", "line"), [("q.txt.gz", b"q 0 i 1\n"), ("q.txt.gz", b"q"), ("q.json.gz", b" ")], ids=["lines", "one line", "JSON"]
)
def test_a_small_file_that_expands_as_no_run_does_is_refused_before_it_fills_the_memory(tmp_path, name, line):
    (tmp_path / name).write_bytes(gzip.compress(line * (2**24 // len(line)), 1) * 3)
    with pytest.raises(ValueError, match=f"{name} expands to more than 50 times its size, as no run does; unpack it"):
        Qrels.load(tmp_path / name)


def test_a_line_of_megabytes_is_refused(tmp_path):
    path = written(tmp_path, "run.trec", TREC + "q " * 600_000)
    with pytest.raises(ValueError, match=r"run\.trec:4: the line is too long: 'q q q "):
        Run.load(path)


@pytest.mark.parametrize("content", ["[" * 100_000, '{"a":' * 100_000])
def test_json_nested_too_deep_is_refused_by_its_name(tmp_path, content):
    with pytest.raises(ValueError, match=r"run\.json is not a readable run: maximum recursion depth"):
        Run.load(written(tmp_path, "run.json", content))


# evaluate_run

SOME = settings(deadline=None, max_examples=60)
NO_WARNING = pytest.mark.filterwarnings("ignore:no relevant item of qrels is in the lists of run")
KS = (1, 3, 10)
TREC_EVAL = {
    **{"map": "AP", "recip_rank": "MRR", "Rprec": "R-P", "ndcg": "NDCG-linear"},
    **{f"{theirs}_{k}": f"{ours}@{k}" for k in (5, 10, 100) for theirs, ours in (("P", "P"), ("success", "R"))},
    **{f"recall_{k}": f"recall-all@{k}" for k in (5, 10, 100)},
    **{f"ndcg_cut_{k}": f"NDCG-linear@{k}" for k in (5, 10, 100)},
    **{f"map_cut_{k}": f"AP-all@{k}" for k in (5, 10, 100)},
}
TREC_EVAL = {theirs: ours for theirs, ours in TREC_EVAL.items() if theirs != "success_100"}  # which it does not print
CHECKOUT = Path(os.environ.get("SUPRANK_TREC_EVAL", Path(__file__).parents[2] / "../shared/data/trec_eval"))

QRELS = {"q1": {"a": 2, "b": 1, "c": 0}, "q2": {"d": 1}}
RUN = {"q1": {"b": 0.9, "x": 0.8, "a": 0.7}, "q2": {"d": 1.0}}


# By hand


def test_a_list_by_hand():
    report = evaluate_run(
        RUN, QRELS, ["AP", "MRR", "P@10", "R@1", "recall-all@1", "TR@1", "NDCG@2", "ndcg_cut_2"], per_query=True
    )
    # q1: grade 1, not judged, grade 2
    expected = {"AP": (1 + 2 / 3) / 2, "MRR": 1, "P@10": 0.2, "R@1": 1, "recall-all@1": 0.5, "TR@1": 1}
    expected["NDCG@2"] = 1 / (3 + 1 / math.log2(3))
    expected["NDCG-linear@2"] = 1 / (2 + 1 / math.log2(3))
    assert {key: report.per_query[key][0] for key in report} == pytest.approx(expected)
    assert report["AP"] == pytest.approx((5 / 6 + 1) / 2)
    assert report.query_ids.tolist() == ["q1", "q2"]


def test_from_the_threshold_on_items_are_relevant_but_ndcg_uses_all_grades():
    one, two = (evaluate_run(RUN, QRELS, ["AP", "NDCG"], relevance_threshold=grade, per_query=True) for grade in (1, 2))
    assert two.per_query["AP"].tolist() == pytest.approx([1 / 3, 0])
    assert two["NDCG"] == one["NDCG"]
    assert two.levels == ("relevance ≥ 2",)


def test_equal_scores_are_in_the_descending_order_of_ids():
    tied = {"q": dict.fromkeys(["a", "é", "z", "10", "9"], 0.5)}
    places = {name: 1 / evaluate_run(tied, {"q": {name: 1}}, ["MRR"])["MRR"] for name in tied["q"]}
    assert sorted(places, key=places.get) == ["é", "z", "a", "9", "10"]


def test_scores_that_differ_beyond_float32_are_no_tie():
    assert evaluate_run({"q": {"a": 1 + 1e-10, "b": 1.0}}, {"q": {"a": 1}}, ["MRR"])["MRR"] == 1


# trec_eval


@st.composite
def drawn_runs(draw):
    """A run with ties, and judgments with grades below 0, of which neither has all queries and items of the other."""
    items = [f"d{number}" for number in range(14)]
    scores = st.dictionaries(st.sampled_from(items), st.integers(-4, 4).map(lambda number: number / 4), min_size=1)
    grades = st.dictionaries(st.sampled_from(items), st.integers(-1, 4), min_size=1)
    queries = st.sampled_from(["q1", "q2", "q3", "q10"])
    run = draw(st.dictionaries(queries, scores, min_size=1))
    qrels = draw(st.dictionaries(queries, grades, min_size=1))
    qrels[next(iter(run))] = {**draw(grades), "d0": 4}
    return run, qrels


@NO_WARNING
@SOME
@given(drawn=drawn_runs(), threshold=st.integers(1, 4))
def test_values_are_trec_evals(drawn, threshold):
    pytrec_eval = pytest.importorskip("pytrec_eval")
    run, qrels = drawn
    families = {name.rstrip("0123456789").rstrip("_") for name in TREC_EVAL}
    theirs = pytrec_eval.RelevanceEvaluator(qrels, families, relevance_level=threshold).evaluate(run)
    names = [theirs_name for theirs_name in TREC_EVAL if theirs_name in next(iter(theirs.values()))]
    assert len(names) > 12
    report = evaluate_run(run, qrels, [TREC_EVAL[name] for name in names], relevance_threshold=threshold, per_query=True)
    for query, column in zip(report.query_ids.tolist(), np.array(list(report.per_query.values())).T, strict=True):
        expected = [theirs.get(query, {}).get(name, 0) for name in names]
        assert column.tolist() == pytest.approx(expected, abs=1e-12), query
    skipped = evaluate_run(run, qrels, [TREC_EVAL[name] for name in names], relevance_threshold=threshold, missing="skip")
    expected = {TREC_EVAL[name]: np.mean([values[name] for values in theirs.values()]) for name in names}
    assert skipped.means == pytest.approx(expected, abs=1e-12)


@pytest.mark.skipif(not (CHECKOUT / "test").is_dir(), reason="needs a checkout of usnistgov/trec_eval: SUPRANK_TREC_EVAL=DIR")
@pytest.mark.parametrize(
    ("run", "qrels", "output", "options"),
    [
        ("results.test", "qrels.test", "out.test.aq", {}),
        ("results.trunc", "qrels.test", "out.test.aqc", {}),
        ("results.test", "qrels.rel_level", "out.test.aql", {"relevance_threshold": 2}),
    ],
)
@pytest.mark.filterwarnings("ignore:.*the rank column contradicts the scores")
def test_its_own_files_give_the_values_that_trec_eval_prints(run, qrels, output, options):
    folder = CHECKOUT / "test"
    printed = {}
    for line in (folder / output).read_text().splitlines():
        name, query, value = line.split("\t")
        printed[name.strip(), query] = value
    report = evaluate_run(folder / run, folder / qrels, list(TREC_EVAL.values()), per_query=True, **options)
    compared = 0
    for theirs, ours in TREC_EVAL.items():
        values = dict(zip(report.query_ids.tolist(), report.per_query[ours], strict=True)) | {"all": report[ours]}
        for query, value in values.items():
            assert value == pytest.approx(float(printed[theirs, query]), abs=5.1e-5), (theirs, query)
            compared += 1
    assert compared >= 4 * len(TREC_EVAL)


# The definitions, and ranx


def by_definition(listed, judged, threshold):
    """Every metric of a list of grades, best first, of a query whose relevant items have the grades `judged`."""
    hits, number = [grade >= threshold for grade in listed], sum(grade >= threshold for grade in judged)
    precisions = [sum(hits[: place + 1]) / (place + 1) if hit else 0 for place, hit in enumerate(hits)]
    reciprocals = [1 / (place + 1) if hit else 0 for place, hit in enumerate(hits)]

    def ndcg(cut, gain):
        dcgs = [
            sum(gain(grade) / math.log2(place + 2) for place, grade in enumerate(order[:cut]))
            for order in (listed, sorted(judged, reverse=True))
        ]
        return dcgs[0] / dcgs[1]

    gains = {"NDCG": lambda grade: 2**grade - 1, "NDCG-linear": lambda grade: grade}
    found = {"AP": sum(precisions) / number, "MRR": max(reciprocals, default=0)}
    found |= {"R-P": sum(hits[:number]) / number, "mAP@R": sum(precisions[:number]) / number}
    found |= {name: ndcg(None, gain) for name, gain in gains.items()}
    for k in KS:
        fitting = min(k, number)
        found |= {f"P@{k}": sum(hits[:k]) / k, f"R@{k}": float(any(hits[:k])), f"MRR@{k}": max(reciprocals[:k], default=0)}
        found |= {f"TR@{k}": sum(hits[:k]) / fitting, f"recall-all@{k}": sum(hits[:k]) / number}
        found |= {f"mAP@{k}": sum(precisions[:k]) / fitting, f"AP-all@{k}": sum(precisions[:k]) / number}
        found |= {f"{name}@{k}": ndcg(k, gain) for name, gain in gains.items()}
    return found


@NO_WARNING
@SOME
@given(drawn=drawn_runs(), threshold=st.integers(1, 4))
def test_every_metric_equals_its_definition(drawn, threshold):
    run, qrels = drawn
    names = list(by_definition([1], [4], 1))
    report = evaluate_run(run, qrels, names, relevance_threshold=threshold, per_query=True, no_positives="skip")
    for index, query in enumerate(report.query_ids.tolist()):
        judged = {item: max(grade, 0) for item, grade in qrels[query].items()}
        listed = sorted(run.get(query, {}).items(), key=lambda pair: (pair[1], pair[0]), reverse=True)
        found = {name: report.per_query[name][index] for name in names}
        if max(judged.values()) < threshold:
            assert all(math.isnan(value) for name, value in found.items() if "NDCG" not in name)
        else:
            grades = [judged.get(item, 0) for item, _ in listed]
            assert found == pytest.approx(by_definition(grades, list(judged.values()), threshold), abs=1e-12)
    without = [query for query in report.query_ids.tolist() if max(qrels[query].values()) < threshold]
    assert report.without_positives == {f"relevance ≥ {threshold}": len(without)}


def test_values_are_ranxs_on_files_that_ranx_wrote(ranx, tmp_path):
    draw = np.random.default_rng(0)
    items = [f"d{number}" for number in range(60)]
    qrels = {f"q{q}": {str(item): int(draw.integers(1, 4)) for item in draw.choice(items, 12, replace=False)} for q in range(6)}
    run = {f"q{q}": {str(item): float(draw.random()) for item in draw.choice(items, 30, replace=False)} for q in range(6)}
    names = {"ndcg": "NDCG-linear", "ndcg_burges": "NDCG", "map": "AP", "mrr": "MRR", "r-precision": "R-P"}
    names |= {f"ndcg@{k}": f"NDCG-linear@{k}" for k in KS} | {f"ndcg_burges@{k}": f"NDCG@{k}" for k in KS}
    names |= {f"map@{k}": f"AP-all@{k}" for k in KS} | {f"recall@{k}": f"recall-all@{k}" for k in KS}
    names |= {f"precision@{k}": f"P@{k}" for k in KS} | {f"hit_rate@{k}": f"R@{k}" for k in KS}
    names |= {f"mrr@{k}": f"MRR@{k}" for k in KS}
    with uncompiled():
        theirs_qrels, theirs_run = ranx.Qrels(qrels), ranx.Run(run, name="ours")
        expected = ranx.evaluate(theirs_qrels, theirs_run, list(names))
        for extension in ("trec", "parquet"):  # its JSON needs compiled dictionaries
            theirs_qrels.save(str(tmp_path / f"qrels.{extension}"))
            theirs_run.save(str(tmp_path / f"run.{extension}"))
    for extension in ("trec", "parquet"):
        report = evaluate_run(tmp_path / f"run.{extension}", tmp_path / f"qrels.{extension}", list(names.values()))
        assert report.means == pytest.approx({ours: expected[theirs] for theirs, ours in names.items()}, abs=1e-9), extension


# `evaluate`


@pytest.mark.parametrize("extension", ["trec", "json"])
def test_rankings_of_embeddings_saved_as_a_run_have_the_values_of_evaluate(tmp_path, extension):
    collection = random_collection(3, queries=20, items=70, dim=8, classes=6, depth=2)
    embeddings, labels = np.array(collection.gallery, np.float32), np.array(collection.gallery_labels)
    labels[:3, 0] = labels[:, 0].max() + 1 + np.arange(3)  # alone in their class, but not in their parent
    flat = ["AP", "MRR", "R-P", *(f"{name}@{k}" for name in ("R", "TR", "P", "mAP", "MRR", "recall-all", "AP-all") for k in KS)]
    graded = ["NDCG", "NDCG-linear", *(f"{name}@{k}" for name in ("NDCG", "NDCG-linear") for k in KS)]
    levels = ["fine", "coarse"]
    theirs = evaluate(
        embeddings, labels, levels=levels, metrics=[*graded, *(f"{name}/{level}" for name in flat for level in levels)]
    )
    names = [f"{number}.jpg" for number in range(len(labels))]
    top_k(embeddings, k=len(labels), ids=names).run().save(tmp_path / f"run.{extension}")
    Qrels.from_labels(labels, query_ids=names).save(tmp_path / f"qrels.{extension}")
    for threshold, level in ((1, "coarse"), (2, "fine")):
        report = evaluate_run(
            tmp_path / f"run.{extension}",
            tmp_path / f"qrels.{extension}",
            [*flat, *graded],
            relevance_threshold=threshold,
            no_positives="skip",
        )
        expected = {name: theirs[f"{name}/{level}"] for name in flat} | {name: theirs[name] for name in graded}
        assert report.means == pytest.approx(expected, abs=1e-12)
        # A query without any positive has no judgment, and so is not in the files.
        without = theirs.without_positives[level] - theirs.without_positives["coarse"]
        assert report.settings["queries_without_positives"] == without == (0 if level == "coarse" else 3)


# Queries and items that only one side has


def test_a_query_that_the_run_lacks_counts_as_0_unless_it_is_skipped():
    run = {"q1": RUN["q1"], "unknown": {"a": 1.0}}
    zero, skip = (evaluate_run(run, QRELS, ["MRR"], missing=rule, per_query=True) for rule in ("zero", "skip"))
    assert zero["MRR"] == 0.5
    assert skip["MRR"] == 1
    assert np.isnan(skip.per_query["MRR"][1])
    for report in (zero, skip):
        assert (report.n_queries, report.settings["queries_missing"], report.settings["queries_not_judged"]) == (2, 1, 1)


def test_a_query_without_relevant_items_counts_as_0_unless_it_is_skipped():
    qrels = QRELS | {"q3": {"a": 0, "b": -2}}
    zero, skip = (evaluate_run(RUN, qrels, ["R@1", "NDCG"], no_positives=rule) for rule in ("zero", "skip"))
    assert zero["R@1"] == pytest.approx(2 / 3)
    assert skip["R@1"] == 1
    assert zero["NDCG"] == pytest.approx(skip["NDCG"] * 2 / 3)
    assert "1 (relevance ≥ 1)" in str(skip)


def test_two_runs_are_compared_on_the_same_queries_even_if_each_lacks_some():
    one, other = (evaluate_run({query: RUN[query]}, QRELS, ["MRR"], per_query=True) for query in ("q1", "q2"))
    assert one.compare(other)["MRR"].queries == 2
    options = {"missing": "skip", "per_query": True}
    both = evaluate_run(RUN, QRELS, ["MRR"], **options)
    assert both.compare(evaluate_run({"q1": RUN["q1"]}, QRELS, ["MRR"], **options))["MRR"].queries == 1


def test_values_per_query_and_intervals_are_kept_if_asked(tmp_path):
    # Four copies of both queries, with AP 1 and 5/6.
    run, judged = ({f"{query} {n}": one for query, one in given.items() for n in range(4)} for given in (RUN, QRELS))
    report = evaluate_run(run, judged, ["AP"], intervals=True)
    assert report.per_query is None
    half = 2.36462 * math.sqrt(8) / 12 / 7  # t of 7 degrees of freedom; each mean without a query is ¹⁄₁₂ · ¹⁄₇ away
    assert report.intervals["AP"] == pytest.approx((11 / 12 - half, min(1, 11 / 12 + half)), abs=1e-5)
    assert "Measured on 8 queries, which are taken as independent of one another." in report.table()
    assert evaluate_run(RUN, QRELS, ["AP"], intervals=True).intervals == {}, "two queries are too few"
    saved = evaluate_run(RUN, QRELS, ["AP"], per_query=True)
    saved.save(tmp_path / "report.json")
    assert Report.load(tmp_path / "report.json") == saved


# Inputs


def test_ids_are_text_whatever_they_are_given_as():
    expected = evaluate_run({"1": {"7": 0.5, "8": 0.6}}, {"1": {"7": 1}})
    assert evaluate_run({1: {7: 0.5, 8: 0.6}}, {"1": {"7": 1}}) == expected
    run = Run(np.array([1, 1]), np.array([8, 7]), np.array([0.6, 0.5]))
    assert evaluate_run(run, Qrels.from_dict({1: {7: 1}, 2: {}})) == expected, "a query without any judgment is not judged"


def test_files_may_be_gzipped_commented_and_of_any_extension(tmp_path):
    expected = evaluate_run(RUN, QRELS)
    lines = [f"{query}\tQ0 {item} 1 {score} a tag" for query, scored in RUN.items() for item, score in scored.items()]
    judged = [f"{query} 0 {item} {grade}" for query, grades in QRELS.items() for item, grade in grades.items()]
    qrels = written(tmp_path, "qrels", "\r\n".join(["# qrels of QRELS", "", *judged]))
    assert evaluate_run(written(tmp_path, "bm25.dl19", "\n".join(lines)), qrels) == expected
    with gzip.open(tmp_path / "run.txt.gz", "wt") as file:
        file.write("\n".join(lines))
    with gzip.open(tmp_path / "qrels.json.gz", "wt") as file:
        json.dump(QRELS, file)
    assert evaluate_run(tmp_path / "run.txt.gz", str(tmp_path / "qrels.json.gz")) == expected


def test_ids_that_never_meet_are_said():
    with pytest.warns(
        UserWarning, match="no relevant item of qrels is in the lists of run: .* have 'a', 'b', 'd', the run 'A', 'B'; check"
    ):
        assert evaluate_run({"q1": {"A": 1.0, "B": 0.5}}, QRELS)["AP"] == 0
    with pytest.raises(ValueError, match="share no query: the run has 'Q1', the judgments 'q1', 'q2'; check the ids"):
        evaluate_run({"Q1": {"a": 1.0}}, QRELS)


@pytest.mark.parametrize(
    ("changes", "kind", "match"),
    [
        ({"metrics": "AP"}, TypeError, r"write \['AP'\]"),
        ({"metrics": []}, ValueError, "name at least one"),
        ({"metrics": ["H-AP"]}, ValueError, "H-AP needs labels"),
        ({"metrics": ["AP/genus"]}, ValueError, "AP/genus needs labels"),
        ({"metrics": ["recall@5"]}, ValueError, "recall-all@k"),
        ({"relevance_threshold": 0}, ValueError, "relevance_threshold=0 must be an integer of at least 1"),
        ({"relevance_threshold": 3}, ValueError, "reaches relevance_threshold=3; the highest grade is 2"),
        ({"qrels": {"q1": {"a": 0}}}, ValueError, "reaches relevance_threshold=1; none is above 0"),
        ({"qrels": {"q1": {}}}, ValueError, "qrels has no judgments"),
        ({"qrels": {"q1": {str(grade): grade for grade in range(200)}}}, ValueError, "199 different grades .* at most 127"),
        ({"missing": "no"}, ValueError, "missing='no' must be 'zero' or 'skip'"),
        ({"no_positives": None}, ValueError, "no_positives=None must be"),
        ({"run": {"q1": ["a", "b"]}}, TypeError, r"run\['q1'\] is list, but must be a mapping"),
        ({"run": [1]}, TypeError, "run is list, but must be a path, a mapping of mappings, or Run"),
        ({"qrels": Path("none.lz4")}, ValueError, "none.lz4 is of a format that is not read here; use .trec"),
        ({"qrels": {"q1": {"a": 1.5}}}, ValueError, "1.5 is not an integer"),
        ({"run": {"q1": {1: 0.5, "1": 0.6}}}, ValueError, "query 'q1' has item '1' twice"),
    ],
)
def test_bad_input_is_refused_with_its_value_and_a_way_out(changes, kind, match):
    with pytest.raises(kind, match=match):
        evaluate_run(**{"run": RUN, "qrels": QRELS} | changes)


def test_a_file_that_is_empty_or_not_text_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"a\.run has no lines"):
        evaluate_run(written(tmp_path, "a.run", ""), QRELS)


@pytest.mark.parametrize("name", ["a.run", "a.run.gz"])
@pytest.mark.parametrize("line", [b"q\xe9 Q0 a 1 0.5 t", b"q Q\xe9 a 1 0.5 t", b"q Q0 \xe9 1 0.5 t", b"q Q0 a 1 0.5 \xe9t"])
def test_a_line_that_is_not_utf_8_is_named_in_whatever_field(tmp_path, name, line):
    pack = gzip.compress if name.endswith(".gz") else bytes
    (tmp_path / name).write_bytes(pack(b"p Q0 a 1 0.5 t\n" + line + b"\n"))
    with pytest.raises(ValueError, match=rf"{name}:2: the line holds the byte 0xE9, which is not UTF-8 .*; save it as UTF-8"):
        Run.load(tmp_path / name)


def test_the_blanks_of_the_fast_reader_are_those_of_str_split():
    letters = [chr(code) for code in range(1, 0x110000) if not 0xD800 <= code < 0xE000]
    blank = pc.match_substring_regex(pa.array(letters, pa.large_string()), runs._BLANKS).to_pylist()
    assert blank == [not letter.split() for letter in letters]


def test_a_grade_whose_gain_is_beyond_float64_is_refused_and_does_not_count_as_0():
    qrels = {"q": {"a": 2000, "b": 1}}
    with pytest.raises(ValueError, match=r"qrels has grade 2000, too high for .* NDCG, .* up to 1000; choose NDCG-linear"):
        evaluate_run({"q": {"a": 2.0, "b": 1.0}}, qrels, ["NDCG@10"])
    assert evaluate_run({"q": {"a": 2.0, "b": 1.0}}, qrels, ["NDCG-linear@10"])["NDCG-linear@10"] == 1
    assert evaluate_run({"q": {"a": 2.0, "b": 1.0}}, {"q": {"a": 1000, "b": 1}}, ["NDCG"])["NDCG"] == 1


def test_blocks_of_queries_shrink_with_the_number_of_grades(monkeypatch):
    rows = []
    top_sums = runs.plain.top_sums
    monkeypatch.setattr(runs, "_PLACES_AT_ONCE", 12)
    monkeypatch.setattr(runs.plain, "top_sums", lambda places, *more: rows.append(len(places.level)) or top_sums(places, *more))
    for grades in (1, 3):
        qrels = {f"q{query}": {"a": 1 + query % grades} for query in range(12)}
        evaluate_run({query: {"a": 1.0} for query in qrels}, qrels, ["P@1"])
    assert rows == [12, 4, 4, 4]


def test_both_ndcgs_of_graded_judgments_are_shown_even_if_their_values_agree():
    report = evaluate_run({"q": {"a": 2.0, "b": 1.0}}, {"q": {"a": 3, "b": 1}}, ["NDCG@10", "NDCG-linear@10"])
    assert report.means == {"NDCG@10": 1, "NDCG-linear@10": 1}
    assert distinct_keys(report) == ["NDCG@10", "NDCG-linear@10"]
