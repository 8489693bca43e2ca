"""suprank evaluate RUN --truth QRELS: ranked lists of any search against graded judgments."""

from pathlib import Path

import pytest

pytest.importorskip("typer")

from suprank.evaluation import Report, evaluate_run
from tests.cli.collection import done, refused

FILES = ("evaluate", "ours.run", "--truth", "qrels.txt")


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("qrels.txt").write_text("q1 0 a 2\nq1 0 b 1\nq1 0 c 0\nq2 0 d 1\nq3 0 e 0\n")
    Path("ours.run").write_text("q1 Q0 b 1 0.9 ours\nq1 Q0 x 2 0.8 ours\nq1 Q0 a 3 0.7 ours\nq9 Q0 a 1 0.7 ours\n")
    Path("other.run").write_text("q1 Q0 x 1 0.9 other\nq1 Q0 a 2 0.8 other\nq2 Q0 d 1 0.7 other\n")
    return tmp_path


def test_the_values_by_hand_and_what_became_of_the_other_queries():
    output = done(*FILES, "--metric", "AP", "--metric", "recip_rank", "--metric", "recall_1").stdout
    cells = [line.replace("│", "").split() for line in output.splitlines()]
    assert ["AP", f"{100 * (1 + 2 / 3) / 2 / 3:.2f}"] in cells
    assert ["MRR", "33.33"] in cells
    assert ["recall-all@1", "16.67"] in cells
    assert "relevance ≥ 1" in output
    assert "3 queries, 3 items" in output
    assert "queries that the run does not have, which count as 0: 2" in output
    assert "queries without a relevant item, which count as 0: 1" in output
    assert "queries of the run without judgments, ignored: 1" in output


def test_queries_are_skipped_if_asked():
    options = ("--missing", "skip", "--no-positives", "skip", "--relevance-threshold", 2, "--metric", "MRR")
    output = done(*FILES, *options).stdout
    assert "MRR │         33.33" in output  # of q1 alone: a is third
    assert "queries that the run does not have, left out: 2" in output
    assert "queries without positives, left out: 2 at relevance ≥ 2" in output


def test_default_metrics_are_all_printed_and_saved():
    output = done(*FILES, "--intervals", "--per-query", "--out", "report.json", "--csv", "report.csv").stdout
    report = Report.load("report.json")
    assert report == evaluate_run("ours.run", "qrels.txt", per_query=True, intervals=True)
    for key in report:
        assert f"{key} " in output
    assert "Measured on 3 queries, which are taken as independent of one another; 3 are too few" in " ".join(output.split())
    assert Path("report.csv").read_text().startswith("metric,level,value,low,high\nNDCG@10,,")


def test_the_two_gains_of_ndcg_are_shown_once_where_all_grades_are_1():
    Path("qrels.txt").write_text("q1 0 a 1\nq2 0 d 1\n")
    assert "equal by definition, shown once: NDCG@10 = NDCG-linear@10" in done(*FILES).stdout


def test_another_run_or_its_report_is_compared_query_by_query():
    output = done(*FILES, "--against", "other.run", "--comparison", "comparison.csv").stdout
    assert "ours.run against other.run, 3 queries" in output
    text = " ".join(output.split())
    assert "There are too few queries to tell whether ours.run and other.run differ. Measured on 3 queries, which are" in text
    assert "as independent of one another; 3 are too few for a test or an interval, which need 8." in text
    assert "MRR,,0.333" in Path("comparison.csv").read_text()
    done("evaluate", "other.run", "--truth", "qrels.txt", "--per-query", "--out", "other.json", "--quiet")
    again = done(*FILES, "--against", "other.json").stdout
    assert again.split() == output.replace("other.run", "other.json").split()
    done(*FILES, "--per-query", "--out", "ours.json", "--quiet")
    assert "ours.run and ours.json are equally good on every single query." in done(*FILES, "--against", "ours.json").stdout


def test_runs_on_enough_queries_have_intervals_and_a_test_over_queries():
    queries = range(10)
    Path("qrels.txt").write_text("".join(f"q{query} 0 a 1\n" for query in queries))
    for name, items in (("ours", "ab"), ("other", "ba")):
        lines = [f"q{query} Q0 {item} {rank} {2 - rank} x\n" for query in queries for rank, item in enumerate(items)]
        Path(f"{name}.run").write_text("".join(lines))
    output = done(*FILES, "--metric", "MRR", "--intervals", "--against", "other.run").stdout
    assert "100.00 [100.00, 100.00]" in output
    assert "[low, high]: 95% intervals\nMeasured on 10 queries, which are taken as independent of one another.\n" in output
    (line,) = [line.split() for line in output.splitlines() if line.startswith("MRR ")]
    assert line == ["MRR", "100.00", "50.00", "+50.00", "[+50.00,", "+50.00]", f"{2 / 2**10:.3f}", "better"]
    assert "p: paired randomization test, query by query," in " ".join(output.split())


def test_lists_are_one_row_of_latex():
    assert done(*FILES, "--metric", "MRR", "--latex", "--quiet").stdout == "& MRR \\\\\nours & 33.3 \\\\\n"


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("ours.run",), "ours.run has ranked lists, which are evaluated against judgments or a solution; give truth."),
        ((*FILES[1:], "--all", "--labels", "l.csv"), "--all, --labels cannot be combined with ranked lists"),
        ((*FILES[1:], "--k", "5"), "ks is for embeddings; name k in metrics, such as NDCG@5"),
        ((*FILES[1:], "--missing", "no"), "'no' is not one of 'zero', 'skip'."),
        (("e.npy", "--labels", "l.csv", "--relevance-threshold", "2"), "--relevance-threshold: for ranked lists"),
        ((*FILES[1:], "--metric", "H-AP"), "H-AP needs labels"),
        ((*FILES[1:], "--relevance-threshold", "5"), "reaches relevance_threshold=5; the highest grade is 2"),
        ((*FILES[1:], "--against", "ours.run"), "ours.run and ours.run are the same"),
        ((*FILES[1:], "--against", "none.run"), "none.run: there is no such file"),
        ((*FILES[1:], "--against", "qrels.txt"), "qrels.txt:1: 'q1 0 a 2' is not a line of a TREC run"),
        (("qrels.txt", "--truth", "ours.run"), "ours.run:1: 'q1 Q0 b 1 0.9 ours' is not a line of TREC qrels"),
        (("qrels.txt", "--truth", "ours.run"), "This looks like a run: were run and qrels swapped?"),
    ],
)
def test_wrong_arguments_are_refused_with_the_way_out(arguments, complaint):
    assert complaint in refused("evaluate", *arguments)


def test_a_report_of_other_settings_is_not_compared_with():
    done(*FILES, "--relevance-threshold", 2, "--per-query", "--out", "two.json", "--quiet")
    assert "two.json was computed with relevance_threshold 2, and this report with 1" in refused(
        *FILES, "--against", "two.json"
    )


def test_queries_that_the_other_run_does_not_have_are_counted_too():
    Path("short.run").write_text("q1 Q0 a 1 0.9 short\n")
    output = done(*FILES, "--against", "short.run").stdout
    assert "short.run: queries that the run does not have, which count as 0: 2" in output
    assert "short.run: queries without a relevant item" not in output, "of which there are as many on both sides"
    done("evaluate", "short.run", "--truth", "qrels.txt", "--per-query", "--out", "short.json", "--quiet")
    assert "short.json: queries that the run does not have, which count" in done(*FILES, "--against", "short.json").stdout


def test_a_report_of_other_judgments_of_the_same_queries_is_not_compared_with():
    done(*FILES, "--per-query", "--out", "ours.json", "--quiet")
    Path("qrels.txt").write_text("q1 0 a 1\nq1 0 b 2\nq1 0 c 0\nq2 0 d 1\nq3 0 e 0\n")
    error = refused("evaluate", "other.run", "--truth", "qrels.txt", "--against", "ours.json")
    assert "the reports have other labels: their classes differ at judgments" in error
