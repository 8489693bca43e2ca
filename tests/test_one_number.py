"""One evaluation has one number: from tensors, files, Parquet, in little memory, on two processes, and on each surface."""

import json
import math
import re
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

import suprank
from suprank.evaluation import Report, RetrievalData, evaluate
from suprank.evaluation.quoted_metrics import table_keys
from suprank.evaluation.verdict import percent
from suprank.explorer.report.table_sections import metric_rows
from tests.cli.collection import done
from tests.explorer import runs
from tests.one_number import COUNT, draw, numbers

QUIET = {"progress": False, "device": "cpu"}


@pytest.fixture(scope="module")
def cases(tmp_path_factory):
    """The cases, with their files in a folder each."""
    root = tmp_path_factory.mktemp("cases")
    drawn = [draw(number) for number in range(COUNT)]
    for number, case in enumerate(drawn):
        case.save(root / str(number))
    return root, drawn


@pytest.fixture(scope="module")
def expected(cases):
    with warnings.catch_warnings(action="ignore"):  # that queries are in the gallery
        return [numbers(evaluate(*arrays, **given, **QUIET)) for arrays, given in (case.arrays() for case in cases[1])]


def same_numbers(find, cases, expected):
    root, drawn = cases
    with warnings.catch_warnings(action="ignore"):
        for number, (case, values) in enumerate(zip(drawn, expected, strict=True)):
            assert numbers(find(root / str(number), case)) == values, f"case {number}"


def test_the_cases_have_ties_sets_gaps_levels_distractors_and_ids(cases, expected):
    _, drawn = cases
    assert len(drawn) == len(expected) == 200
    assert sum(None not in values.values() for values in expected) > 100
    for has in (
        lambda case: len(np.unique(case.queries.embeddings, axis=0)) < len(case.queries.embeddings),
        lambda case: case.queries.labels.ndim == 3,
        lambda case: case.queries.labels.ndim == 2 and (case.queries.labels < 0).any(),
        lambda case: len(case.levels) == 3,
        lambda case: case.gallery is not None and (case.gallery.labels[-1] < 0).all(),
        lambda case: case.queries.ids is not None and len(set(case.queries.ids)) < len(case.queries.ids),
    ):
        assert sum(map(has, drawn)) > 20


def test_tensors_and_data_give_the_numbers_of_arrays(cases, expected):
    def find(folder, case):
        arrays, given = case.arrays()
        return suprank.evaluate(RetrievalData.from_arrays(*map(torch.from_numpy, arrays), **given), **QUIET)

    same_numbers(find, cases, expected)


@pytest.mark.parametrize("parquet", [False, True], ids=["npy and csv", "parquet"])
def test_files_give_the_numbers_of_arrays(cases, expected, parquet):
    def find(folder, case):
        files, options = case.files(folder, parquet=parquet)
        return suprank.evaluate(*files, **options, **QUIET)

    same_numbers(find, cases, expected)


def test_a_gallery_that_does_not_fit_into_memory_gives_the_same_numbers(cases, expected):
    def find(folder, case):
        files, options = case.files(folder)
        return suprank.evaluate(*files, **options, **QUIET, memory_budget=1)

    same_numbers(find, cases, expected)


@pytest.mark.xdist_group("processes")
@pytest.mark.skipif(not torch.distributed.is_gloo_available(), reason="needs gloo")
def test_two_processes_find_the_same_numbers(expected, forked, tmp_path):
    started = forked.start(
        tmp_path,
        cwd=Path(__file__).parents[1],
        call="tests.one_number:two_processes",
        variables={"GLOO_SOCKET_IFNAME": "lo"},
    )
    started.succeed(timeout=120)
    for rank in range(2):
        assert json.loads((tmp_path / f"{rank}.json").read_text()) == expected


def test_the_command_saves_the_same_numbers(cases, expected, tmp_path):
    root, drawn = cases
    for number in range(0, COUNT, 2):
        files, options = drawn[number].files(root / str(number))
        arguments = dict(zip(("--labels", "--gallery", "--gallery-labels"), files[1:], strict=False))
        arguments |= {"--id-column": options["id_column"]} if "id_column" in options else {}
        arguments |= {"--label-separator": options["label_separator"]} if "label_separator" in options else {}
        chosen = [one for level in options.get("levels", ()) for one in ("--level", level)]
        given = [one for pair in arguments.items() for one in pair]
        with warnings.catch_warnings(action="ignore"):
            done("evaluate", files[0], *given, *chosen, "--device", "cpu", "-q", "--out", tmp_path / "r.json")
        assert numbers(Report.load(tmp_path / "r.json")) == expected[number], f"case {number}"


def test_the_table_of_the_page_shows_the_same_digits(cases, expected):
    for number, (case, values) in enumerate(zip(cases[1], expected, strict=True)):
        arrays, given = case.arrays()
        with warnings.catch_warnings(action="ignore"):
            report = evaluate(
                RetrievalData.from_arrays(*arrays, **given), per_query=True, intervals=True, **QUIET
            )  # as the page does
        shown = [row.cells[0].value for group in metric_rows([report]) for row in group]
        wanted = [math.nan if values[key] is None else values[key] for key in table_keys([report])]
        assert shown == list(map(percent, wanted)), f"case {number}"


@pytest.mark.parametrize("seed", [0, 1])
def test_the_page_shows_the_digits_of_the_command(tmp_path, seed):
    manifest = runs.collection(tmp_path / "data", groups=3, classes=2, images=4)
    folder = runs.embeddings(tmp_path / "e", manifest, noise=2.0, seed=seed)
    suprank.report(folder, out=tmp_path / "page.html", progress=False)
    section = re.search(r'<section id="metrics".*?</section>', (tmp_path / "page.html").read_text(), re.DOTALL)[0]
    done("evaluate", folder, "--device", "cpu", "-q", "--out", tmp_path / "r.json")
    report = Report.load(tmp_path / "r.json")
    assert re.findall(r'<td class="number">([\d.]+)', section) == [percent(report[key]) for key in table_keys([report])]
