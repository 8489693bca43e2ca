"""suprank evaluate --protocol: the conventions of published numbers, from files."""

import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("typer")

import suprank
from suprank import evaluation
from suprank.data.manifest import Manifest
from suprank.evaluation import Report
from tests.cli.collection import done, refused

FILES = ("evaluate", "test.npy", "--labels", "test.csv")
SIDES = (
    "evaluate",
    "query.npy",
    "--labels",
    "query.csv",
    "--gallery",
    "index.npy",
    "--gallery-labels",
    "index.csv",
    "--id-column",
    "id",
)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """24 images of 6 classes as one file, as 6 queries and an index of 18, and the latter as a folder of `suprank embed`."""
    folder = tmp_path_factory.mktemp("protocols")
    draw = np.random.default_rng(0)
    labels = np.arange(24) // 4
    rows = (draw.normal(size=(6, 5))[labels] + 0.9 * draw.normal(size=(24, 5))).astype(np.float32)
    names = [f"i{row}" for row in range(24)]
    parts = {"test": np.arange(24), "query": np.arange(0, 24, 4), "index": np.flatnonzero(np.arange(24) % 4)}
    for part, some in parts.items():
        np.save(folder / f"{part}.npy", rows[some])
        lines = [f"{names[row]},c{labels[row]}" for row in some]
        (folder / f"{part}.csv").write_text("\n".join(["id,label_class", *lines]) + "\n")
    judged = {names[query]: {names[item]: 1 + item % 2 for item in range(query + 1, query + 4)} for query in parts["query"]}
    (folder / "qrels.json").write_text(json.dumps(judged))
    solution = [f"{query},{' '.join(items)},{'Public' if query == 'i0' else 'Private'}" for query, items in judged.items()]
    (folder / "solution.csv").write_text("\n".join(["id,images,Usage", *solution]) + "\n")
    for part, some in (("query", parts["query"]), ("gallery", parts["index"])):
        (folder / "embedded" / part).mkdir(parents=True)
        np.save(folder / "embedded" / part / "embeddings.npy", rows[some])
        columns = {
            "path": [f"{names[row]}.jpg" for row in some],
            "split": [part] * len(some),
            "id": [names[row] for row in some],
        }
        Manifest.from_columns(columns, root=folder, levels=()).save(folder / "embedded" / part / "items.parquet")
    truth = {
        "imlist": [names[row] for row in parts["index"]],
        "qimlist": [names[row] for row in parts["query"]],
        "gnd": [{"easy": [3 * n], "hard": [3 * n + 1], "junk": [3 * n + 2], "bbx": [0, 0, 1, 1]} for n in range(6)],
    }
    (folder / "gnd.json").write_text(json.dumps(truth))
    return folder


@pytest.fixture(autouse=True)
def folder(made, monkeypatch):
    monkeypatch.chdir(made)


def saved(*arguments):
    """The report that a command saves, and what it prints."""
    printed = done(*arguments, "--out", "report.json").stdout
    return Report.load("report.json"), printed


def test_dml_prints_its_metrics_and_names_its_conventions():
    report, printed = saved(*FILES, "--protocol", "dml", "--k", 1, "--k", 5)
    assert list(report) == ["R@1", "R@5", "P@1", "R-P", "mAP@R"]
    assert all(f"│ {name}" in printed for name in report)
    assert "protocol dml: every image against all others; the query itself left out by its row;" in printed
    assert report.settings["protocol"] == "dml"
    assert report.means == suprank.evaluate("test.npy", "test.csv", protocol="dml", ks=[1, 5]).means


def test_mieb_evaluates_embeddings_against_judgments_by_id():
    report, printed = saved(*SIDES, "--truth", "qrels.json")
    ids = [[line.split(",")[0] for line in Path(name).read_text().split()[1:]] for name in ("query.csv", "index.csv")]
    run = evaluation.top_k("query.npy", "index.npy", 18, ids=ids[0], gallery_ids=ids[1], progress=False).run()
    expected = evaluation.evaluate_run(run, "qrels.json", ["ndcg_cut_10", "recall_5", "map_cut_5"])
    assert {key: report[key] for key in expected} == pytest.approx(expected.means)
    assert "│ NDCG-linear@10 │" in printed
    assert "35 more metrics: --all" in printed
    assert "│ P@1000" in done(*SIDES, "--truth", "qrels.json", "--all").stdout


def test_mieb_reads_a_folder_of_embeddings_without_labels():
    files, _ = saved(*SIDES, "--truth", "qrels.json")
    embedded, _ = saved("evaluate", "embedded", "--truth", "qrels.json")
    assert embedded.means == files.means
    assert "protocol='mieb' needs labels" in refused("evaluate", "embedded", "--protocol", "mieb")


def test_mieb_takes_what_the_task_beside_the_judgments_says(tmp_path):
    (tmp_path / "qrels.json").write_text(Path("qrels.json").read_text())
    task = {"name": "TinyI2I", "self_match": "id", "ks": [1, 2], "main_score": "map_at_2"}
    (tmp_path / "task.json").write_text(json.dumps(task))
    arguments = ("evaluate", "embedded", "--truth", tmp_path / "qrels.json")
    report, printed = saved(*arguments)
    assert report.settings["self_match"] == "id"
    assert report.settings["ks"] == (1, 2)
    assert printed.index("│ AP-all@2") < printed.index("│ R@1")
    first = refused("evaluate", "embedded", "--truth", f"{tmp_path}/qrels.json:first")
    assert "is not what TinyI2I does, which is 'id'" in first
    (tmp_path / "task.json").write_text('{"tasks": []}')  # of something else
    assert saved(*arguments)[0].settings["self_match"] == "keep"


def test_gldv2_scores_embeddings_by_labels_or_by_the_solution():
    by_labels, printed = saved(*SIDES, "--protocol", "gldv2")
    by_solution, _ = saved(*SIDES, "--truth", "solution.csv")
    assert by_solution["mAP@100"] == pytest.approx(by_labels["mAP@100"])
    assert "AP@100 divided by min(100, all positives)" in printed
    private, _ = saved("evaluate", "embedded", "--truth", "solution.csv:Private")
    assert private.n_queries == 5
    assert private.settings["queries_not_judged"] == 1
    done(*SIDES, "--save-run", "predictions.csv")
    predicted, _ = saved("evaluate", "predictions.csv", "--truth", "solution.csv")
    assert predicted["mAP@100"] == by_solution["mAP@100"]
    assert predicted.settings["protocol"] == "gldv2"


def test_revisited_is_what_the_ground_truth_asks_for():
    named, printed = saved("evaluate", "embedded", "--protocol", "revisited", "--truth", "gnd.json", "--k", 2)
    implied, _ = saved("evaluate", "embedded", "--truth", "gnd.json", "--k", 2)
    assert named == implied
    assert "protocol revisited: queries against the gallery, junk removed from each list" in printed
    assert named.means == suprank.evaluate("embedded", truth="gnd.json", ks=[2], progress=False).means
    shuffled = suprank.open_data("embedded").take([*range(5, -1, -1)])
    assert suprank.evaluate(shuffled, truth="gnd.json", ks=[2], progress=False).means == named.means, "found by their names"


def test_two_files_are_compared_under_a_protocol():
    draw = np.random.default_rng(1)
    np.save("other.npy", np.load("test.npy") + draw.normal(size=(24, 5)).astype(np.float32))
    printed = done(*FILES, "--protocol", "dml", "--against", "other.npy").stdout
    assert "test.npy against other.npy, 24 queries" in printed
    assert "mAP@R" in printed
    assert "--protocol mieb is compared with a saved report" in refused(*FILES, "--protocol", "mieb", "--against", "other.npy")


def test_reports_of_one_protocol_are_compared():
    done(*FILES, "--protocol", "mieb", "--per-query", "--out", "saved.json", "--quiet")
    assert "0.00" in done(*FILES, "--protocol", "mieb", "--against", "saved.json").stdout
    assert "saved.json was evaluated by --protocol mieb, and its numbers mean something else" in refused(
        *FILES, "--protocol", "dml", "--against", "saved.json"
    )
    judged = evaluation.Qrels.from_labels(np.arange(24) // 4)
    judged.save("labels.json")
    assert "saved.json has self_match 'first', and this report 'keep': they are not compared." in refused(
        *FILES, "--truth", "labels.json:keep", "--against", "saved.json"
    )
    done(*FILES, "--per-query", "--out", "plain.json", "--quiet")
    assert "was evaluated without a protocol" in refused(*FILES, "--protocol", "dml", "--against", "plain.json")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((*FILES, "--protocol", "mteb"), "'mteb' is not one of 'dml', 'mieb', 'revisited', 'gldv2'"),
        (
            (*FILES, "--protocol", "dml", "--metric", "AP"),
            "--metric cannot be combined with --protocol dml, which has its own metrics",
        ),
        (
            (*FILES, "--protocol", "dml", "--gap", 8),
            "--protocol cannot be combined with --gap",
        ),
        ((*FILES, "--protocol", "dml", "--save-run", "x.trec"), "--save-run saves lists by our own conventions"),
        ((*FILES, "--protocol", "dml", "--truth", "qrels.json"), "truth is qrels, for protocol 'mieb' and not 'dml'"),
        ((*FILES, "--protocol", "mieb", "--truth", "solution.csv"), "truth is a solution, for protocol 'gldv2' and not 'mieb'"),
        ((*FILES, "--protocol", "gldv2"), "ranks an index that the queries are not part of; give a gallery."),
        ((*FILES, "--truth", "nothing.json"), "nothing.json: there is no such file; check the path"),
        (
            ("evaluate", "embedded", "--protocol", "revisited"),
            "needs its truth, such as gnd_roxford5k.pkl.",
        ),
        (
            ("evaluate", "predictions.csv", "--protocol", "gldv2"),
            "which are evaluated against judgments or a solution; give truth.",
        ),
    ],
)
def test_contradictions_are_refused_in_a_sentence(arguments, message):
    assert message in refused(*arguments)


def test_a_protocol_in_python_has_its_own_metrics():
    with pytest.raises(ValueError, match="decay cannot be combined with protocol='dml', which has its own"):
        suprank.evaluate("test.npy", "test.csv", protocol="dml", decay=2.0)
    assert "R@1" not in suprank.evaluate("test.npy", "test.csv", ks=[])
    arrays = np.load("test.npy"), np.arange(24) // 4
    assert suprank.evaluate(*arrays, protocol="dml")["R@1"] == suprank.evaluate("test.npy", "test.csv", protocol="dml")["R@1"]
