"""Runs and judgments: files that other tools read, lists that come back as they were, and files that are refused."""

import gzip
import json

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from suprank.evaluation import evaluate, top_k
from suprank.evaluation.rankings import Qrels, RankingRun, formats
from tests.evaluation.plain_ranx import uncompiled

TREC = """\
q1 Q0 b 1 0.75 tag
q1 Q0 a 2 0.5 tag
q2 Q0 c 1 -3.0 tag
"""

FILES = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
WORDS = st.text(st.characters(exclude_categories=("Cs", "Cc", "Z"), exclude_characters='",'), min_size=1, max_size=8)
ANY_TEXT = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"), min_size=1, max_size=8)
SCORES = st.floats(allow_nan=False, allow_infinity=False)


def lists(ids, values, min_size=0):
    return st.dictionaries(ids, st.dictionaries(ids, values, min_size=min_size, max_size=6), max_size=4)


@pytest.fixture
def run():
    return RankingRun.from_dict({"q1": {"a": 0.5, "b": 0.75}, "q2": {"c": -3.0}})


def written(tmp_path, name, text):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


# Worked examples


def test_a_run_is_written_line_by_line_as_trec_wants_it(run, tmp_path):
    run.save(tmp_path / "a.trec", tag="tag")
    assert (tmp_path / "a.trec").read_text() == TREC


def test_a_run_is_written_as_json_that_ranx_reads(run, tmp_path):
    run.save(tmp_path / "a.json")
    assert json.loads((tmp_path / "a.json").read_text()) == {"q1": {"b": 0.75, "a": 0.5}, "q2": {"c": -3.0}}


def test_a_run_is_written_as_kaggle_scored_it_and_read_with_scores_that_only_fall(run, tmp_path):
    run.save(tmp_path / "a.csv")
    assert (tmp_path / "a.csv").read_text() == "id,images\nq1,b a\nq2,c\n"
    assert list(RankingRun.load(tmp_path / "a.csv")) == [("q1", [("b", 1.0), ("a", 0.5)]), ("q2", [("c", 1.0)])]


def test_short_lists_are_padded_and_the_padding_is_never_seen():
    run = RankingRun(["x", "y"], np.array([[4, 2], [7, -1]]), np.array([[0.5, 0.25], [0.75, -np.inf]], np.float32))
    assert list(run) == [("x", [(4, 0.5), (2, 0.25)]), ("y", [(7, 0.75)])]
    assert run.to_dict() == {"x": {"4": 0.5, "2": 0.25}, "y": {"7": 0.75}}
    assert run.lengths.tolist() == [2, 1]
    assert len(run) == 2
    wider = RankingRun(
        run.query_ids,
        np.pad(run.item_ids, ((0, 0), (0, 1)), constant_values=-1),
        np.pad(run.scores, ((0, 0), (0, 1)), constant_values=-np.inf),
    )
    assert wider == run
    assert wider != RankingRun(["x", "y"], [[4, 2], [8, -1]], run.scores)


def test_indices_get_the_names_of_what_they_index():
    run = RankingRun([1, 0], np.array([[2, 0], [1, -1]]), np.array([[2.0, 1.0], [3.0, -np.inf]]))
    assert run.named(["p", "q"], ["a", "b", "c"]).to_dict() == {"q": {"c": 2.0, "a": 1.0}, "p": {"b": 3.0}}
    with pytest.raises(ValueError, match="indices from 0 to 1"):
        run.named(item_names=["a", "b"])


def test_judgments_are_written_line_by_line_as_trec_wants_them(tmp_path):
    Qrels.from_dict({"q1": {"a": 2, "b": 0}, "q2": {"a": -1}}).save(tmp_path / "a.trec")
    assert (tmp_path / "a.trec").read_text() == "q1 0 a 2\nq1 0 b 0\nq2 0 a -1\n"


def test_labels_judge_by_the_level_of_the_common_ancestor_and_leave_self_out():
    labels = torch.tensor([[0, 0], [0, 0], [1, 0], [2, 1]])  # two of one class, their cousin, and a stranger
    expected = {"a": {"b": 2, "c": 1}, "b": {"a": 2, "c": 1}, "c": {"a": 1, "b": 1}}
    judged = Qrels.from_labels(labels, query_ids=list("abcd"))
    assert list(judged)[3] == ("d", [])
    assert judged.to_dict() == expected, "ranx would count the stranger, who has no positives, as 0"
    with_gallery = Qrels.from_labels(labels[:1], labels, query_ids=["q"])
    assert list(with_gallery) == [("q", [(0, 2), (1, 2), (2, 1)])]


# Agreement


def test_labels_judged_in_blocks_are_those_of_one_block(monkeypatch):
    labels = torch.randint(0, 3, (23, 2), generator=torch.Generator().manual_seed(0))
    whole = Qrels.from_labels(labels)
    monkeypatch.setattr("suprank.evaluation.rankings.qrels._PAIRS_AT_ONCE", 50)
    assert Qrels.from_labels(labels) == whole
    for query, judged in whole:
        assert dict(judged) == {
            item: 1 + int(labels[query, 0] == labels[item, 0])
            for item in range(23)
            if item != query and labels[query, 1] == labels[item, 1]
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
    run, qrels = top_k(embeddings, k=12, progress=False), Qrels.from_labels(labels)
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
    run, qrels = RankingRun.from_dict(scored), Qrels.from_dict(judged)
    run.save(tmp_path / f"run.{extension}")
    qrels.save(tmp_path / f"qrels.{extension}")
    with uncompiled():
        theirs_run = ranx.Run.from_file(str(tmp_path / f"run.{extension}"), kind=kind)
        theirs_qrels = ranx.Qrels.from_file(str(tmp_path / f"qrels.{extension}"), kind=kind)
    assert {query: dict(found) for query, found in theirs_run.to_dict().items()} == scored
    assert {query: dict(found) for query, found in theirs_qrels.to_dict().items()} == judged


def test_we_read_the_files_that_ranx_writes(ranx, tmp_path):
    scored, judged = judged_lists()
    with uncompiled():
        ranx.Run(scored, name="ranx").save(str(tmp_path / "run.trec"))
        theirs = ranx.Qrels()
        for query, relevance in judged.items():
            for item, value in relevance.items():  # one by one, ids stay Python's strings, which JSON needs
                theirs.add_score(query, item, value)
        theirs.save(str(tmp_path / "qrels.json"))
    assert RankingRun.load(tmp_path / "run.trec").to_dict() == scored
    assert Qrels.load(tmp_path / "qrels.json").to_dict() == judged


# Laws


@given(lists(WORDS, SCORES, min_size=1))
@FILES
def test_a_run_comes_back_from_trec(tmp_path, content):
    run = RankingRun.from_dict(content)
    run.save(tmp_path / "a.trec")
    assert RankingRun.load(tmp_path / "a.trec") == run
    assert RankingRun.load(tmp_path / "a.trec").to_dict() == content


@given(lists(ANY_TEXT, SCORES))
@FILES
def test_a_run_comes_back_from_json_whatever_its_ids(tmp_path, content):
    run = RankingRun.from_dict(content)
    run.save(tmp_path / "a.json")
    assert RankingRun.load(tmp_path / "a.json") == run
    assert run.to_dict() == content


@given(lists(WORDS, SCORES))
@FILES
def test_the_order_of_a_run_comes_back_from_csv(tmp_path, content):
    run = RankingRun.from_dict(content)
    run.save(tmp_path / "a.csv")
    loaded = RankingRun.load(tmp_path / "a.csv")
    assert [(query, [item for item, _ in ranked]) for query, ranked in loaded] == [
        (query, [item for item, _ in ranked]) for query, ranked in run
    ]


@given(lists(WORDS, st.integers(-(2**40), 2**40), min_size=1), st.sampled_from(["trec", "json"]))
@FILES
def test_judgments_come_back(tmp_path, content, extension):
    qrels = Qrels.from_dict(content)
    qrels.save(tmp_path / f"a.{extension}")
    kept = {query: judged for query, judged in content.items() if max(judged.values()) > 0}  # the others are NaN, not 0
    assert Qrels.load(tmp_path / f"a.{extension}") == (qrels if extension == "trec" else Qrels.from_dict(kept))
    assert qrels.to_dict() == kept


@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=8))
@FILES
def test_float32_scores_come_back_bit_by_bit(tmp_path, scores):
    scores = -np.sort(-np.array([scores], np.float32))
    run = RankingRun([3], np.arange(scores.size)[None], scores)
    for extension in ("trec", "json"):
        run.save(tmp_path / f"a.{extension}")
        loaded = RankingRun.load(tmp_path / f"a.{extension}", id_type=int)
        assert loaded.scores.astype(np.float32).tobytes() == run.scores.tobytes()
        assert loaded.item_ids.tolist() == run.item_ids.tolist()


@given(st.permutations(TREC.splitlines()))
@FILES
def test_the_order_of_lines_is_irrelevant(tmp_path, lines):
    loaded = RankingRun.load(written(tmp_path, "a.trec", "\n".join(lines)))
    assert loaded.to_dict() == {"q1": {"b": 0.75, "a": 0.5}, "q2": {"c": -3.0}}
    assert [item for item, _ in dict(loaded)["q1"]] == ["b", "a"]


# Edges


def test_ties_are_in_the_order_of_ranks_and_lines_in_a_file_and_of_insertion_in_a_dictionary(tmp_path):
    text = "q Q0 a 3 1 t\nq Q0 b 2 1 t\nq Q0 c 1 1 t\nq Q0 z 4 0.5 t\nq Q0 y 4 0.5 t\n"
    ((_, ranked),) = RankingRun.load(written(tmp_path, "a.trec", text))
    assert [item for item, _ in ranked] == ["c", "b", "a", "z", "y"]
    ((_, ranked),) = RankingRun.from_dict({"q": {"b": 1, "c": 2, "a": 1}})
    assert [item for item, _ in ranked] == ["c", "b", "a"]


def test_ranks_that_contradict_scores_are_reported_and_the_scores_win(tmp_path):
    path = written(tmp_path, "a.trec", "q Q0 a 1 0.1 t\nq Q0 b 2 0.9 t\n")
    with pytest.warns(UserWarning, match=r"a\.trec:1: the rank column contradicts the scores.*sorted by score"):
        loaded = RankingRun.load(path)
    assert list(loaded) == [("q", [("b", 0.9), ("a", 0.1)])]


def test_an_empty_list_survives_json_and_csv_but_not_trec(tmp_path):
    run = RankingRun.from_dict({"q1": {"a": 1.0}, "q2": {}})
    for extension, expected in (("json", ("q1", "q2")), ("csv", ("q1", "q2")), ("trec", ("q1",))):
        run.save(tmp_path / f"a.{extension}")
        assert RankingRun.load(tmp_path / f"a.{extension}").query_ids == expected


@pytest.mark.parametrize("extension", ["trec", "json", "csv"])
def test_a_run_of_no_queries_can_be_kept(tmp_path, extension):
    RankingRun.from_dict({}).save(tmp_path / f"a.{extension}")
    assert list(RankingRun.load(tmp_path / f"a.{extension}")) == []


def test_blank_lines_a_byte_order_mark_and_windows_line_ends_are_read(tmp_path):
    path = tmp_path / "a.run"
    path.write_bytes(b"\xef\xbb\xbfq\tQ0  a 1\t1e-3 t\r\n\r\nq Q0 b 2 0 t")
    assert RankingRun.load(path).to_dict() == {"q": {"a": 0.001, "b": 0.0}}
    path = tmp_path / "a.csv"
    path.write_bytes(b'\xef\xbb\xbf"id","images"\r\n"q","b a"\r\n\r\nr,c \r\n')
    assert RankingRun.load(path).to_dict() == {"q": {"b": 1.0, "a": 0.5}, "r": {"c": 1.0}}


def test_half_precision_and_whole_scores_are_taken_as_they_are_worth():
    assert RankingRun(["q"], [["a", "b"]], np.array([[2, 1]])).to_dict() == {"q": {"a": 2.0, "b": 1.0}}
    assert RankingRun(["q"], [["a"]], np.array([[0.1]], np.float16)).to_dict() == {"q": {"a": float(np.float16(0.1))}}
    assert list(RankingRun(torch.tensor([5]), torch.tensor([[3]]), torch.tensor([[0.5]]))) == [(5, [(3, 0.5)])]


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
        RankingRun.load(path)


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
        ("id,images\nq\n", "a.csv:2: 'q' is malformed"),
        ("id,images\nq,a,b\n", "a.csv:2: .*malformed"),
        ("id,images\n,a\n", "a.csv:2: .*malformed"),
        ("id,images\nq,a  b\n", "a.csv:2: .*blank too many"),
        ("id,images\nq,a b  \n", "a.csv:2: .*blank too many"),
        ("id,images\nq,a\n\nq,b\n", "a.csv:4: query 'q' is repeated"),
        ("id,images\nr,b\nq,a b a\n", "a.csv:3: query 'q' has item 'a' twice"),
    ],
)
def test_a_bad_prediction_file_is_refused(tmp_path, text, complaint):
    with pytest.raises(ValueError, match=complaint):
        RankingRun.load(written(tmp_path, "a.csv", text))


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
        RankingRun.load(written(tmp_path, "a.json", text))


def test_a_relevance_that_is_not_whole_is_refused(tmp_path):
    with pytest.raises(ValueError, match="0.5 is not an integer"):
        Qrels.load(written(tmp_path, "a.json", '{"q": {"a": 0.5}}'))
    with pytest.raises(ValueError, match="0.5 is not an integer"):
        Qrels.from_dict({"q": {"a": 0.5}})


@pytest.mark.parametrize("blank", ["a b", "a\tb", "a\u2003b", " ", "a\n"])
@pytest.mark.parametrize("where", ["query", "item"])
@pytest.mark.parametrize("extension", ["trec", "csv"])
def test_ids_with_blanks_are_refused_where_blanks_separate_and_an_existing_file_stays(tmp_path, extension, where, blank):
    good, path = {"first": {"x": 1.0}}, tmp_path / f"a.{extension}"
    RankingRun.from_dict(good).save(path)
    before = path.read_text()
    bad = RankingRun.from_dict(good | ({blank: {"x": 1.0}} if where == "query" else {"q": {"y z": 2.0, blank: 1.0}}))
    with pytest.raises(ValueError, match=f"{where} .* has blanks.*write .json"):
        bad.save(path)
    assert path.read_text() == before
    assert list(tmp_path.iterdir()) == [path]


def test_other_ids_that_a_format_cannot_hold_are_refused(run, tmp_path):
    with pytest.raises(ValueError, match="comma"):
        RankingRun.from_dict({"q": {"a,b": 1.0}}).save(tmp_path / "a.csv")
    with pytest.raises(ValueError, match="tag 'my system' has blanks"):
        run.save(tmp_path / "a.trec", tag="my system")
    with pytest.raises(ValueError, match="cannot be the id"):
        RankingRun.from_dict({"q": {"a\0": 1.0}})
    with pytest.raises(ValueError, match="cannot be the id"):
        RankingRun.from_dict({"q": {"": 1.0}})
    with pytest.raises(ValueError, match="item id -1 is negative"):
        RankingRun.from_dict({"q": {-1: 1.0}})
    with pytest.raises(TypeError, match="all text or all integers"):
        RankingRun.from_dict({"q": {1: 1.0, "b": 2.0}})


def test_an_unknown_extension_is_refused_with_the_known_ones(run, tmp_path):
    with pytest.raises(ValueError, match=r"extension '\.parquet'.*\.trec, \.run, \.txt, \.json, \.csv"):
        run.save(tmp_path / "a.parquet")
    with pytest.raises(ValueError, match=r"a\.csv is of a format that is not read here; use \.trec, \.run, \.txt, \.json, "):
        Qrels.load(tmp_path / "a.csv")


def test_ids_are_integers_only_where_all_of_them_can_be(tmp_path):
    path = written(tmp_path, "a.trec", "7 Q0 12 1 0.5 t\n7 Q0 3 2 0.25 t\n")
    assert list(RankingRun.load(path)) == [("7", [("12", 0.5), ("3", 0.25)])]
    assert list(RankingRun.load(path, id_type=int)) == [(7, [(12, 0.5), (3, 0.25)])]
    with pytest.raises(ValueError, match="every item id must be an integer"):
        RankingRun.load(written(tmp_path, "b.trec", "7 Q0 d12 1 0.5 t\n"), id_type=int)


@pytest.mark.parametrize(
    ("items", "scores", "complaint"),
    [
        ([[1, 2]], [[0.1, 0.9]], "fall along a row"),
        ([[1, 2]], [[0.9, np.nan]], "finite"),
        ([[1, 2]], [[np.inf, 0.9]], "finite"),
        ([[1, 2]], [[0.9, -np.inf]], "-inf for padding only"),
        ([[1, -1]], [[0.9, 0.1]], "-inf for padding only"),
        ([[-1, 1]], [[-np.inf, 0.1]], "fall along a row"),
        ([[1, -2]], [[0.9, 0.1]], "start at 0"),
        ([[1, 1]], [[0.9, 0.1]], "lists item 1 twice"),
        ([["a", "a"]], [[0.9, 0.1]], "lists item 'a' twice"),
        ([[1, 2]], [[0.9]], "must be .queries, k."),
        ([1, 2], [0.9, 0.1], "must be .queries, k."),
    ],
)
def test_arrays_that_are_no_ranked_lists_are_refused(items, scores, complaint):
    with pytest.raises(ValueError, match=complaint):
        RankingRun(["q"], np.array(items), np.array(scores))


def test_ids_that_are_neither_text_nor_integers_are_refused():
    with pytest.raises(TypeError, match="dtype float64"):
        RankingRun(["q"], np.array([[0.5]]), np.array([[0.5]]))
    with pytest.raises(TypeError, match="all text or all integers"):
        RankingRun([0.5], np.array([[1]]), np.array([[0.5]]))
    with pytest.raises(ValueError, match="'q' twice"):
        RankingRun(["q", "q"], np.array([[1], [1]]), np.array([[0.5], [0.5]]))


def test_judgments_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="offsets must rise from 0 to 2"):
        Qrels(["q", "r"], np.array([0, 2]), np.array(["a", "b"]), np.array([1, 1]))
    with pytest.raises(ValueError, match="judges item 'a' twice"):
        Qrels(["q"], np.array([0, 2]), np.array(["a", "a"]), np.array([1, 2]))
    with pytest.raises(TypeError, match="relevance has dtype float64"):
        Qrels(["q"], np.array([0, 1]), np.array(["a"]), np.array([0.5]))
    with pytest.raises(ValueError, match="query_ids has 1 ids for 2 labels"):
        Qrels.from_labels(torch.tensor([0, 0]), torch.tensor([0]), query_ids=["a"])


# Fast


def test_a_hundred_thousand_lines_come_back_in_a_moment(tmp_path):
    rng = np.random.default_rng(0)
    items = rng.permuted(np.tile(np.arange(2000), (500, 1)), axis=1)[:, :200]
    run = RankingRun(range(500), items, -np.sort(-rng.random((500, 200), dtype=np.float32)))
    for extension in ("trec", "json"):
        run.save(tmp_path / f"a.{extension}")
        assert RankingRun.load(tmp_path / f"a.{extension}", id_type=int) == run


@pytest.mark.parametrize(
    ("text", "by_arrow"),
    [
        ("q1 Q0 d1 1 0.5 tag\nq1 Q0 d2 2 -1e-3 tag\n", True),
        ("q1\tQ0\td1\t1\t0.5\ttag\nq2\tQ0\td1\t1\t.25\ttag", True),
        ('q"1 Q0 d,1 1 0.1 NA\nNA Q0 null 2 7 tag\n', True),
        ("q1  Q0 d1 1 0.5 tag\n", False),  # two blanks
        ("q1 Q0\td1 1 0.5 tag\n", False),
        ("q1 Q0 d1 1 0.5 a tag of words\n", False),
        ("q1 Q0 d1 1 0.5 tag\n\nq1 Q0 d2 2 0.4 tag\n", False),
        ("# a comment\nq1 Q0 d1 1 0.5 tag\n", False),
        ("q1 Q0 d1 1 0.5 tag\r\nq1 Q0 d2 2 0.4 tag\r\n", False),
        ("q1 Q0 dé 1 0.5 tag\n", False),
        ("q1 Q0 d1 1 1_0 tag\n", False),
        ("q1  d1 1 0.5 tag\n", False),  # five fields: refused
        (" Q0 d1 1 0.5 tag\n", False),
        ("q1 Q0 d1 1 0.5 \n", False),
        ("q1 Q0 d1 0x1 0.5 tag\n", False),
        ("q1 Q0 d1 1 0.5 tag\nq1 Q0 d2 2 high tag\n", False),
    ],
)
def test_a_run_reads_the_same_with_pyarrow_and_without(text, by_arrow, tmp_path, monkeypatch):
    pytest.importorskip("pyarrow")
    file = tmp_path / "run.trec"
    file.write_bytes(text.encode())

    def content():
        try:
            table = formats.read_run(file)
        except ValueError as error:
            return str(error)
        return [*table.queries], table.item_ids, table.query, table.value, table.rank, table.line

    assert (formats._arrow_columns(text.encode(), 6, {3: "q", 4: "d"}) is not None) == by_arrow
    with_pyarrow = content()
    monkeypatch.setattr(formats, "_arrow_columns", lambda *_: None)
    assert with_pyarrow == content()


def test_lines_are_counted_across_the_blocks_of_pyarrow(tmp_path, monkeypatch):
    monkeypatch.setattr(formats, "_ARROW_BLOCK", 50)
    lines = [f"q1 Q0 d{number} {number} {-number} tag\n" for number in range(1, 40)]
    (tmp_path / "run.trec").write_text("".join(lines))
    table = formats.read_run(tmp_path / "run.trec")
    assert table.line.tolist() == table.rank.tolist() == [*range(1, 40)]
    lines[30] = "q1 Q0 d31 31 high tag\n"
    (tmp_path / "run.trec").write_text("".join(lines))
    with pytest.raises(ValueError, match=r"run.trec:31: "):
        formats.read_run(tmp_path / "run.trec")


@pytest.mark.parametrize("damage", [lambda whole: whole[:-20], lambda whole: whole[:-8] + bytes(8), lambda whole: b"no gzip"])
def test_a_damaged_gz_file_is_refused_by_its_name(tmp_path, damage):
    path = tmp_path / "run.trec.gz"
    path.write_bytes(damage(gzip.compress(TREC.encode() * 100)))
    with pytest.raises(ValueError, match=r"run\.trec\.gz is not a readable run: "):
        RankingRun.load(path)


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
        RankingRun.load(path)


@pytest.mark.parametrize("content", ["[" * 100_000, '{"a":' * 100_000])
def test_json_nested_too_deep_is_refused_by_its_name(tmp_path, content):
    with pytest.raises(ValueError, match=r"run\.json is not a readable run: maximum recursion depth"):
        RankingRun.load(written(tmp_path, "run.json", content))
