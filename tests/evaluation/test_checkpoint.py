"""An evaluation that is killed at any moment goes on where it was, and ends with the same digits."""

import json

import numpy as np
import pytest
import torch

from suprank.evaluation import checkpoint as module
from suprank.evaluation import evaluate, memory_plan
from suprank.evaluation.search import Search
from suprank.files.locking import lock_folder
from tests.evaluation import worker

CHUNKS = Search.chunks
STREAMED = 38_000  # bytes: three blocks of queries or more, and a gallery in three chunks
QUERIES = 16
BUDGETS = {"streamed": STREAMED, "resident": worker.SMALL}
METRICS = {"every metric": None, "top k": ["R@1", "P@5/genus", "mAP@10"]}


class Killed(BaseException):
    """What a test raises in place of a SIGKILL: nothing catches it."""


@pytest.fixture(autouse=True)
def _saves_at_every_chance(monkeypatch):
    monkeypatch.setattr(memory_plan, "_LEAST_STREAMED", {"cpu": 64})
    monkeypatch.setattr(memory_plan, "_READINGS", 0)  # rows of scores are never whole if the gallery is streamed
    monkeypatch.setattr(module, "INTERVAL", 0.0)


@pytest.fixture
def killed_after(monkeypatch):
    """Make the evaluation die when so many pieces of the gallery, or blocks of queries, were ranked."""

    def arm(pieces):
        read = {"pieces": 0}

        def chunks(self):
            for piece in CHUNKS(self):
                if read["pieces"] == pieces:
                    raise Killed
                read["pieces"] += 1
                yield piece

        monkeypatch.setattr(Search, "chunks", chunks)
        return read

    return arm


def collection():
    embeddings, labels = worker.data()
    return embeddings[:QUERIES], labels[:QUERIES], embeddings, labels


def run(folder, *, budget, metrics, **changed):
    options = {
        "self_index": range(QUERIES),
        "levels": worker.NAMES,
        "memory_budget": budget,
        "metrics": metrics,
        **changed,
    }
    return evaluate(*collection(), per_query=True, progress=False, checkpoint=folder, **options)


def differences(report, expected):
    return [key for key in expected if not np.array_equal(report.per_query[key], expected.per_query[key], equal_nan=True)]


@pytest.mark.parametrize("metrics", METRICS)
@pytest.mark.parametrize("budget", BUDGETS)
def test_killed_again_and_again_it_ends_with_the_digits_of_one_go(budget, metrics, tmp_path, killed_after):
    expected = run(None, budget=BUDGETS[budget], metrics=METRICS[metrics])
    kills = 0
    while True:
        killed_after(12)
        try:
            report = run(tmp_path / "saved", budget=BUDGETS[budget], metrics=METRICS[metrics])
            break
        except Killed:
            kills += 1
            assert kills < 200, "no progress is made"
    assert kills > 0 or budget == "resident"
    assert report == expected
    assert not differences(report, expected)


def test_finished_blocks_are_not_ranked_again(tmp_path, killed_after):
    options = {"budget": STREAMED, "metrics": None}
    pieces = killed_after(10**6)
    run(None, **options)
    whole = pieces["pieces"]
    killed_after(whole - 1)
    with pytest.raises(Killed):
        run(tmp_path / "saved", **options)
    pieces = killed_after(10**6)
    run(tmp_path / "saved", **options)
    assert pieces["pieces"] < whole / 2, "of three blocks or more, one is left"
    pieces = killed_after(10**6)
    assert run(tmp_path / "saved", **options) == run(None, **options)
    assert pieces["pieces"] == whole, "a finished evaluation ranks nothing; the other one did"


def test_another_memory_budget_goes_on_with_the_finished_queries(tmp_path, killed_after):
    killed_after(8)
    with pytest.raises(Killed):
        run(tmp_path / "saved", budget=STREAMED, metrics=None)
    killed_after(10**6)
    assert run(tmp_path / "saved", budget=worker.SMALL, metrics=None) == run(None, budget=worker.SMALL, metrics=None)


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"metrics": ["R@1"]}, "metrics is"),
        ({"normalize": False}, "normalize is False and was True"),
        ({"ignored": [[50]] * QUERIES}, "self_index, ids and ignored is"),
        ({"decay": 2.0}, r"decay is 2\.0 and was 1\.0"),
    ],
)
def test_another_evaluation_is_refused_and_the_difference_is_named(changed, named, tmp_path):
    run(tmp_path / "saved", budget=None, metrics=None)
    with pytest.raises(ValueError, match=f"checkpoint of another evaluation: {named}.*Choose another folder"):
        run(tmp_path / "saved", **{"budget": None, "metrics": None, **changed})


def test_one_number_of_one_embedding_or_label_makes_it_another_evaluation(tmp_path):
    queries, labels, gallery, gallery_labels = collection()
    options = {"checkpoint": tmp_path / "saved", "progress": False, "self_index": range(QUERIES)}
    evaluate(queries, labels, gallery, gallery_labels, **options)
    other, fine = gallery.clone(), gallery_labels.clone()
    other[100, 3] = -other[100, 3]  # the norm stays the same
    fine[:, 0] = fine[:, 0].where(torch.arange(len(fine)) != 17, -1)
    with pytest.raises(ValueError, match=r"evaluation: gallery is \w{12}\.\.\. and was \w{12}\.\.\.\. Choose"):
        evaluate(queries, labels, other, gallery_labels, **options)
    with pytest.raises(ValueError, match=r"evaluation: gallery_labels is \w{12}\.\.\. and was"):
        evaluate(queries, labels, gallery, fine, **options)
    half = torch.tensor([[1.5, 2.0], [0.25, 1.0]])
    for source in (half, half.half(), half.double().numpy()):
        evaluate(source, [0, 0], checkpoint=tmp_path / "half", progress=False)  # equal numbers, however they are stored


def test_a_damaged_file_costs_time_and_no_digits(tmp_path, caplog):
    expected = run(tmp_path / "saved", budget=worker.SMALL, metrics=None)
    (path,) = (tmp_path / "saved").glob("values-*.npz")
    whole = path.read_bytes()
    for damaged in (whole[:50], whole.replace(b"values.npy", b"valves.npy"), b"", whole.replace(b"PK\1\2\x14", b"PK\1\2\xff")):
        path.write_bytes(damaged)
        assert run(tmp_path / "saved", budget=worker.SMALL, metrics=None) == expected
    assert "values-0-0.npz cannot be read" in caplog.text


@pytest.mark.parametrize("queries", [[5000], [-1], [0.5], 0])
def test_values_of_queries_that_are_not_there_are_computed_again(tmp_path, queries):
    expected = run(tmp_path / "saved", budget=None, metrics=["R@1"])
    np.savez(tmp_path / "saved" / "values-0-0.npz", queries=np.array(queries), values=np.ones((1, 1)))
    assert run(tmp_path / "saved", budget=None, metrics=["R@1"]) == expected


def test_a_kill_while_the_first_file_is_written_leaves_the_folder_usable(tmp_path):
    saved = tmp_path / "saved"
    saved.mkdir()
    for name in (".lock", ".run.json.4711140.tmp"):
        (saved / name).write_text("{")
    run(saved, budget=None, metrics=["R@1"])
    assert sorted(path.name for path in saved.iterdir()) == [".lock", "run.json", "values-0-0.npz"]


def test_a_folder_in_use_is_refused_before_the_embeddings_are_read(tmp_path, monkeypatch):
    monkeypatch.setattr(Search, "_checked_norms", lambda *_: pytest.fail("the embeddings were read"))
    with (
        lock_folder(tmp_path / "saved", "working on", "wait"),
        pytest.raises(
            BlockingIOError, match="evaluating with the checkpoint .*saved; wait for it to end, or choose another folder"
        ),
    ):
        run(tmp_path / "saved", budget=None, metrics=None)


def test_a_folder_of_something_else_is_refused(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(ValueError, match="so it is no checkpoint; name a new or an empty folder"):
        run(tmp_path, budget=None, metrics=None)
    saved = tmp_path / "saved"
    run(saved, budget=None, metrics=None)
    for text in ("{", "[1, 2]"):
        (saved / "run.json").write_text(text)
        with pytest.raises(ValueError, match="cannot be read"):
            run(saved, budget=None, metrics=None)


def test_the_record_says_what_is_evaluated(tmp_path):
    run(tmp_path / "saved", budget=None, metrics=["AP", "R@1"])
    record = json.loads((tmp_path / "saved" / "run.json").read_text())
    assert record["metrics"] == ["AP", "R@1"]
    assert (record["queries"], record["items"], record["dim"], record["device"]) == (QUERIES, worker.COUNT, 24, "cpu")
