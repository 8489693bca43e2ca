"""What the documentation shows of finished studies is what their committed results files say."""

import csv
import json
import re
import runpy
import sys
from pathlib import Path

import pages
import pytest
from bench import LossBenchmarkRun

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
SCRIPTS = (
    *("decomposability", "doc_numbers", "frozen_batches", "paper_tables", "photographs page", "protocols", "scale"),
    *("tuned_tables", "verdicts"),
)


@pytest.mark.parametrize("name", SCRIPTS)
def test_tables_of_the_documentation_say_what_was_measured(name, monkeypatch):
    name, *verb = name.split()
    script = str(ROOT / "benchmarks" / f"{name}.py")
    monkeypatch.setattr(sys, "argv", [script, *verb, "--check"])
    runpy.run_path(script, run_name="__main__")  # or exits with 1


def test_tables_beside_the_numbers_are_made_from_them():
    import learning_to_rank

    runs = {"losses": LossBenchmarkRun, "learning-to-rank": learning_to_rank.LearningToRankRun}
    for name, run in runs.items():
        file = RESULTS / "cpu" / f"{name}.json"
        assert run.load(file).markdown() == file.with_suffix(".md").read_text(encoding="utf-8")


def test_a_page_with_another_table_or_without_a_place_for_one_is_an_error(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("a\n<!-- begin b -->\nold\n<!-- end b -->\n<!-- begin c -->\nof another script\n<!-- end c -->\n")
    with pytest.raises(SystemExit, match="is not what the results files say"):
        pages.update(page, {"b": "new\n"}, check=True)
    assert "old" in page.read_text()
    pages.update(page, {"b": "new\n"})
    assert page.read_text().startswith("a\n<!-- begin b -->\nnew\n<!-- end b -->\n<!-- begin c -->\nof another script\n")
    pages.update(page, {"b": "new\n"}, check=True)
    with pytest.raises(ValueError, match="a place for the table 'd'"):
        pages.update(page, {"d": ""})


def test_every_method_of_the_tuned_comparisons_had_12_trials_and_three_seeds_untuned_and_tuned():
    names = sorted(path.name.removesuffix("-search.csv") for path in (RESULTS / "tuned").glob("*-search.csv"))
    assert names == [f"{name}-{table}" for name in ("cub", "emoji48", "omniglot40") for table in ("fine", "tree")]
    for name in names:
        trials, runs = (
            list(csv.DictReader((RESULTS / "tuned" / f"{name}{end}.csv").read_text(encoding="utf-8").splitlines()))
            for end in ("-search", "")
        )
        for method in {line["recipe"] for line in trials}:
            assert [line["trial"] for line in trials if line["recipe"] == method] == [str(number) for number in range(12)]
            for tuned in ("no", "yes"):
                own = [line for line in runs if (line["recipe"], line["tuned"], line["finished"]) == (method, tuned, "yes")]
                assert [line["run.seed"] for line in own] == ["0", "1", "2"]


GIVEN = {  # in the text of docs/batch-size.md
    *("0.001", "0.003", "0.01", "0.03", "0.1"),  # learning rates and λ
    *("5.5", "22.8", "8.4", "1.5"),  # percent of the paper and of our own networks
    "2.4",  # percent: the gain of L*_DG in batches of 32, over Sup-AP
    *("7.14", "2.11", "2.13"),  # mAP@R before training, versions of torch
}


def test_numbers_in_the_text_on_batch_sizes_are_those_of_its_tables():
    page, generated = (ROOT / "docs" / "batch-size.md").read_text(encoding="utf-8"), r"<!-- begin ([^>]+) -->.*?<!-- end \1 -->"
    tables = "\n".join(found[0] for found in re.finditer(generated, page, flags=re.DOTALL)).replace("**", "")
    text = re.sub(r"```.*?```|<!--.*?-->", "", re.sub(generated, "", page, flags=re.DOTALL), flags=re.DOTALL)
    number = r"−?\d+\.\d+"
    with_interval = re.findall(rf"{number}\s\[{number},\s{number}\]", text)
    assert len(with_interval) > 5
    for found in with_interval:
        assert " ".join(found.split()) in tables
    values = [abs(float(found)) for found in re.findall(r"\d+\.\d+", tables)]
    for found in re.findall(r"\d+\.\d+", text):
        half = 0.5 * 10.0 ** -len(found.partition(".")[2])
        assert found in GIVEN or any(abs(value - float(found)) <= half + 1e-9 for value in values), found


def test_the_published_tests_keep_their_size_and_their_intervals_cover():
    """At most 7 % with effects at or below the unit, and 2 % or more for continuous values; several trainings: at most 7 %."""
    rows = json.loads((RESULTS / "cpu" / "verdicts.json").read_bytes())["rows"]
    ranked = [row for row in rows if row["kind"] == "ranked" and row["metric"] != "AP/group" and row["no verdict"] == 0]
    tree = [row for row in rows if row["kind"] == "tree" and "families" not in row["data"]]
    several = [row for row in rows if row["kind"] == "seeds" and row["seeds"] > 1]
    assert (len(ranked), len(tree), len(several)) == (16, 3, 72)
    assert all(row["cases"] >= 2000 for row in (*ranked, *tree, *several))
    assert all(row["better"] <= 7 and row["covers 0"] >= 92 for row in (*ranked, *tree))
    assert all(row["better"] >= 2 and row["covers 0"] <= 98 for row in (*ranked, *tree) if row.get("metric") != "R@1")
    assert all(92 <= row["covers the mean"] <= 98 for row in ranked)
    assert all(row["size, ours"] <= 7 for row in several)
