"""The registry of the paper's tables and figures: complete, and with the paper's numbers."""

import re
from pathlib import Path

import pytest

from suprank.experiments.methods import Method, check_budget, difference_notes
from suprank.paper.contents import KINDS, StudyItem, TableItem, contents, find_item, metric_title, paper_results, table_items
from suprank.training.recipe import read_recipe

ROOT = Path(__file__).parents[2]
PAPER = ROOT.parent / "shared" / "paper.tex"
LABELS = (ROOT / "tests" / "paper_labels.txt").read_text(encoding="utf-8").split()

needs_the_paper = pytest.mark.skipif(not PAPER.exists(), reason="the paper is not beside this checkout")


def test_every_label_of_a_table_or_figure_is_there():
    assert {label for label in LABELS if label.startswith(("tab:", "fig:"))} == set(contents())


def test_every_item_has_a_title_and_a_kind_and_says_why_if_it_is_not_reproduced():
    for label, item in contents().items():
        assert item.label == label
        assert item.title
        assert item.title[-1] != "."
        assert item.kind in KINDS
        assert bool(item.reason) == (item.kind == "none")
        assert all(part in contents() for part in item.parts)


@pytest.mark.parametrize("label", sorted(table_items()))
def test_the_recipes_of_a_table_differ_in_each_of_its_exceptions_and_in_nothing_else(label):
    item = table_items()[label]
    differing = []
    for columns in item.columns:
        recipes = {f"{columns.preset}/{row.methods[columns.preset]}" for row in item.rows if columns.preset in row.methods}
        methods = {recipe: Method.from_config(recipe, read_recipe(recipe)) for recipe in sorted(recipes)}
        check_budget(methods, item.may_differ)
        differing += difference_notes(methods, item.may_differ)
    for exception in item.may_differ:
        assert any(re.match(rf"{re.escape(exception)}[. ]", note) for note in differing), exception


@pytest.mark.parametrize("label", sorted(label for label, item in contents().items() if isinstance(item, StudyItem)))
def test_every_value_of_a_study_can_be_trained(label):
    item = contents()[label]
    for value in item.curve:
        for recipe in filter(None, (item.recipe, item.base)):
            assert read_recipe(recipe, [f"{item.key}={value}"])


def numbers_of_the_paper(label):
    """The numbers of each row of a table of the paper that has some, in the order of the rows."""
    text = PAPER.read_text(encoding="utf-8").replace("79\n        4", "79.4")
    body = text[text.index(f"label{{{label}}}") :].partition(r"\end{tabularx")[0]
    rows = []
    for row in body.split(r"\\"):
        cells = [re.sub(r"\\(textbf|underline)|[{}\s]", "", cell) for cell in row.split("&")]
        numbers = [float(cell) for cell in cells if re.fullmatch(r"\d+\.\d+", cell)]
        rows += [numbers] if numbers else []
    return rows


@needs_the_paper
@pytest.mark.parametrize("label", sorted(table_items()))
def test_the_numbers_of_a_table_are_the_papers_row_by_row(label):
    rows = [
        [number for numbers in row.paper.values() for number in numbers if number is not None]
        for row in table_items()[label].rows
    ]
    assert rows == numbers_of_the_paper(label)


@needs_the_paper
def test_the_numbers_of_a_curve_are_the_papers():
    text = PAPER.read_text(encoding="utf-8")
    for label in ("fig:lambda_roadmap", "fig:rho_supap"):
        points = "".join(f"({float(value):g},{number:g})" for value, number in contents()[label].curve.items())
        spelled = re.sub(r"\((\d+(?:\.\d+)?),", lambda match: f"({float(match[1]):g},", text)
        assert points in spelled, label
    for place, dataset in ((1, "sop"), (2, "inat")):
        printed = re.findall(r"^\s+(\d+)\s+& ([\d.]+) & ([\d.]+) & ([\d.]+) +\\\\", text, re.MULTILINE)
        curve = {row[0]: float(row[1 + place]) for row in printed}
        assert contents()[f"fig:relative_increase_{dataset}"].curve == curve


@needs_the_paper
def test_the_labels_of_the_paper_are_those_of_the_list():
    labels = set(re.findall(r"\\label\{((?:tab|fig):[^}]+)\}", PAPER.read_text(encoding="utf-8")))
    assert labels == set(contents())


def test_a_label_is_found_without_its_prefix_and_a_wrong_one_names_the_nearest():
    assert find_item("main_dyml").label == "tab:main_dyml"
    assert find_item("lambda_roadmap").label == "fig:lambda_roadmap"
    with pytest.raises(ValueError, match="no tab:main_sop; did you mean tab:main_sop_inat"):
        find_item("tab:main_sop")
    with pytest.raises(ValueError, match="`suprank paper` lists all"):
        find_item("9")


def test_the_papers_results_of_a_recipe():
    assert paper_results("sop/roadmap-pairs") == [
        "tab:ablation_study: R@1 81.7, mAP@R 55.7",
        "tab:detail_sop_inat_base: R@1 82.2, AP 62.5, AP/category 12.9",
    ]
    assert paper_results("inat-base/roadmap-deit") == ["tab:general_results_sop: R@1 74.7, R@4 86.9, R@16 93.4, R@32 95.4"]
    assert paper_results("cub/cross-entropy") == [
        "tab:general_results_sop: R@1 69.2, R@2 79.2, R@4 86.9, R@8 91.6, quoted from the literature"
    ]
    assert paper_results("glyphs/roadmap") == []


def test_nothing_is_trained_where_the_paper_has_no_number():
    rows = contents()["tab:general_results_sop"].rows
    sec = next(row for row in rows if row.labels[0] == "SEC")
    similarity = next(row for row in rows if row.labels[0] == "MS")
    assert sec.methods == {}
    assert set(similarity.methods) == {"sop", "cub"}


def test_groups_and_rules_follow_the_paper():
    item = contents()["tab:main_sop_inat"]
    assert isinstance(item, TableItem)
    assert [row.group for row in item.rows] == ["Fine"] * 4 + ["Hier."] * 7
    assert [row.labels[0] for row in item.rows if row.rule] == ["ΣTL_SH", "ROD-NDCG", "HAPPIER"]


def test_titles_of_metrics():
    assert [metric_title(one) for one in ("mean:AP", "mean:R@1", "wAP", "mAP@100")] == ["mAP", "R@1", "ΣwAP", "mAP@100"]
