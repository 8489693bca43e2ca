"""Measured numbers of the documentation are checked against results files: benchmarks/doc_numbers.py."""

import importlib.util
import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture
def numbers(tmp_path, monkeypatch):
    """The module, with a repository of its own: `write(page, results)` writes both, `problems()` checks the page."""
    spec = importlib.util.spec_from_file_location("doc_numbers", ROOT / "benchmarks" / "doc_numbers.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(__import__("sys").modules, "doc_numbers", module)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(module, "RESULTS", tmp_path / "benchmarks" / "results")
    module.RESULTS.mkdir(parents=True)

    def problems(page, **files):
        for name, text in files.items():
            (module.RESULTS / name.replace("_", ".")).write_text(text)
        (tmp_path / "README.md").write_text(page)
        module.numbers_of.cache_clear()
        module.matching.cache_clear()
        return [problem.what for problem in module.check_page("README.md")]

    module.problems = problems
    return module


TIMES = json.dumps(
    {"rows": [{"case": "SupAP", "batch": 256, "seconds": 0.01234}, {"case": "SupHAP", "batch": 256, "seconds": 3.2}]}
)
RUNS = "recipe,run.seed,R@1\nsup-ap,0,0.70\nsup-ap,1,0.72\nsmooth-ap,0,0.60\nsmooth-ap,1,0.66\n"


def test_a_number_that_the_file_has_is_accepted_as_it_is_rounded_and_in_its_unit(numbers):
    page = "<!-- numbers: t.json -->\nIt takes 12.3 ms, 12 ms or 0.012 s.\n"
    assert numbers.problems(page, t_json=TIMES) == []


def test_a_number_that_is_changed_on_the_page_or_in_the_file_is_named(numbers):
    page = "<!-- numbers: t.json: rows.SupAP *.seconds -->\nIt takes 12.3 ms.\n"
    assert numbers.problems(page, t_json=TIMES) == []
    wrong = "not in the files: 12.4 ms"
    assert numbers.problems(page.replace("12.3", "12.4"), t_json=TIMES)[0] == wrong
    assert numbers.problems(page, t_json=TIMES.replace("0.01234", "0.01334"))[0] == wrong.replace("12.4", "12.3")


def test_a_row_of_a_table_has_numbers_of_its_own(numbers):
    table = "| | 256 |\n|---|---:|\n| `SupAP` | 12 ms |\n| `SupHAP` | 3.2 s |\n"
    page = f"<!-- numbers: t.json: rows.{{row}} {{column}}.seconds -->\n{table}"
    assert numbers.problems(page, t_json=TIMES) == []
    assert numbers.problems(page.replace("12 ms", "3.2 s"), t_json=TIMES) == ["not in the files: 3.2 s (SupAP)"]


def test_rows_of_several_seeds_have_a_mean_and_a_deviation_and_can_be_subtracted_and_divided(numbers):
    page = (
        "<!-- numbers:\nr.csv: sup-ap.R@1\nr.csv: sup-ap.R@1.sd\nr.csv: sup-ap.R@1 - smooth-ap.R@1\n"
        "r.csv: sup-ap.R@1 / smooth-ap.R@1\n-->\nR@1 is 71.0 ± 1.4 %, 8.0 points or 1.127 times more.\n"
    )
    assert numbers.problems(page, r_csv=RUNS) == []
    assert numbers.problems(page.replace("8.0", "8.1"), r_csv=RUNS) == [
        "not in the files: 8.1",
        "no number needs 'r.csv: sup-ap.R@1 - smooth-ap.R@1'",
    ]


def test_a_number_without_a_source_is_an_error_unless_the_text_says_so(numbers):
    assert numbers.problems("It takes 12.3 ms at a batch of 256.") == ["no comment says where 12.3 ms are from"]
    assert numbers.problems("It takes 12.3 ms; this is not in a results\nfile.") == []
    assert (
        numbers.problems("Not in a list: this is not in a results file.\n\n| | time |\n|---|---:|\n| SupAP | 12.3 ms |") == []
    )
    assert numbers.problems("<!-- numbers: unfiled: 12.3 -->\nIt takes 12.3 ms.") == [
        "the text does not say which numbers are not in a results file"
    ]
    assert numbers.problems("<!-- numbers: given: 12.3 -->\nIt should take 12.3 ms.") == []


def test_what_is_generated_or_code_needs_no_comment(numbers):
    table = "<!-- begin tab -->\n| a | b |\n|---|---|\n| a | 1.5 |\n<!-- end tab -->\n"
    assert numbers.problems(f"{table}\n```console\n$ bench\n1.5 s\n```\n\n`1.5 s`\n") == []


def test_every_page_that_must_be_complete_exists(numbers):
    assert all((ROOT / page).is_file() for page in numbers.COMPLETE_PAGES)
