"""suprank evaluate PREDICTIONS --truth SOLUTION: GLDv2's mAP@100 of a file of predictions."""

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("typer")

from suprank import evaluation
from suprank.evaluation import Report
from tests.cli.collection import done, refused

SOLUTION = """\
id,images,Usage
q1,None,Ignored
q2,a b,Public
q3,b,Private
q4,c,Private
"""
PREDICTIONS = """\
id,images
q1,a
q2,a x b
q3,x b
"""
FILES = ("evaluate", "predictions.csv", "--truth", "solution.csv")
PRIVATE = (*FILES[:-1], "solution.csv:Private")


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("solution.csv").write_text(SOLUTION)
    Path("predictions.csv").write_text(PREDICTIONS)
    return tmp_path


def test_the_score_by_hand():
    output = done(*FILES).stdout
    # q2 finds its two images at places 1 and 3, q3 its image at place 2, and q4 has no prediction.
    assert f"{100 * ((1 + 2 / 3) / 2 + 1 / 2 + 0) / 3:.2f}" in output
    assert "mAP@100" in output
    assert "3 queries, 4 items" in output  # a, b, c and x
    assert "queries without a prediction, which count as 0: 1" in output


def test_usage_and_k_choose_queries_and_places():
    private = done(*PRIVATE, "--latex", "--quiet").stdout
    assert private == "& mAP@100 \\\\\npredictions & 25.0 \\\\\n"  # (1/2 + 0) / 2
    first = done(*FILES, "--k", 1, "--latex", "--quiet").stdout
    assert first == "& mAP@1 \\\\\npredictions & 33.3 \\\\\n"  # (1 + 0 + 0) / 3


def test_the_report_has_what_the_function_returns():
    done(*PRIVATE, "--k", 5, "--per-query", "--out", "report.json", "--csv", "report.csv", "--quiet")
    report = Report.load("report.json")
    score = evaluation.landmark_map_from_files("predictions.csv", "solution.csv", usage="Private", k=5)
    assert report["mAP@5"] == score["mAP@5"]
    assert report.per_query["mAP@5"].tolist() == score.per_query["mAP@5"].tolist()
    assert report.settings["unanswered"] == score.settings["unanswered"] == 1
    assert Path("report.csv").read_text().splitlines()[1].startswith("mAP@5,,0.25,")
    done(*FILES, "--out", "means.json", "--quiet")
    assert Report.load("means.json").per_query is None


def test_intervals_and_a_comparison_of_two_files():
    done(*FILES, "--per-query", "--out", "before.json", "--quiet")
    Path("predictions.csv").write_text("id,images\nq2,a b\nq3,b\nq4,c\n")
    output = done(*FILES, "--intervals", "--against", "before.json").stdout
    assert "groups that share positives" in output
    (line,) = [line.split() for line in output.splitlines() if line.startswith("mAP@100 ")]
    assert line[:4] == ["mAP@100", "100.00", "44.44", "+55.56"]
    assert "without a prediction" not in output


def test_intervals_are_over_groups_of_queries_that_share_a_positive():
    rows = range(18)  # nine groups of two queries that share an image; the first of each is found, the second is not
    Path("solution.csv").write_text("id,images,Usage\n" + "".join(f"q{row},i{row // 2},Public\n" for row in rows))
    Path("predictions.csv").write_text("id,images\n" + "".join(f"q{row},i{row // 2 + row % 2}\n" for row in rows))
    output = done(*FILES, "--intervals").stdout
    assert "50.00 [50.00, 50.00]" in output, "each group has the same mean"
    assert "[low, high]: 95% intervals\nMeasured on 9 groups that share" in output


def test_rankings_that_evaluate_saves_can_be_scored():
    np.save("q.npy", np.array([[1.0, 0.0], [0.0, 1.0]], np.float32))
    np.save("g.npy", np.array([[1.0, 0.1], [1.0, 0.2], [0.1, 1.0]], np.float32))
    Path("q.csv").write_text("id,label\nq2,1\nq4,2\n")
    Path("g.csv").write_text("id,label\na,1\nb,1\nc,2\n")
    files = ("q.npy", "--labels", "q.csv", "--gallery", "g.npy", "--gallery-labels", "g.csv", "--id-column", "id")
    done("evaluate", *files, "--save-run", "predictions.csv", "--quiet")
    assert "66.67" in done(*FILES).stdout  # q2 and q4 are perfect, q3 is not answered


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--k", 1, "--k", 2), "a solution takes one k, not 2; leave ks out for 100"),
        (("--labels", "q.csv"), "--labels cannot be combined with ranked lists"),
        (("--metric", "AP"), "metrics cannot be combined with a solution, whose metric is mAP@100"),
        (("--level", "x", "--gallery", "g.npy"), "--gallery, --level cannot be combined with ranked lists"),
        (("--truth", "solution.csv:first"), "ends in 'first', which solution.csv cannot have; write Public or Private"),
        (("--per-query",), "values per query are saved beside the report; add --out"),
        (("--out", "."), ". is a folder; name a file in it"),
        (("--truth", "gone.csv"), "gone.csv: there is no such file"),
        (("--truth", "predictions.csv"), "predictions.csv"),
    ],
)
def test_bad_arguments_exit_with_2_and_say_why(arguments, message):
    assert message in refused(*FILES, *arguments)


def test_a_query_that_the_solution_does_not_list_is_refused():
    Path("predictions.csv").write_text("id,images\nq9,a\n")
    assert "query 'q9' is not in solution.csv" in refused(*FILES)
    assert "gone.csv: there is no such file" in refused("evaluate", "gone.csv", "--truth", "solution.csv")


def test_the_usage_is_for_a_solution():
    assert "give truth" in refused("evaluate", "predictions.csv")


def test_help_shows_an_example():
    output = done("evaluate", "--help").output
    assert "suprank evaluate predictions.csv --truth retrieval_solution_v2.1.csv:Private" in output
    assert "suprank evaluate runs/roadmap --gap 256" in output
    assert "--thresholds" in output
