"""Tables in the paper's layout: marks, differences, files, and the order of the methods."""

import csv
import dataclasses
import io
import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scipy import stats

from suprank.experiments.results import Outcome
from suprank.experiments.tables import Statistic
from suprank.paper import layout
from suprank.paper.contents import Columns, Row, TableItem, contents, table_items
from suprank.paper.runs import Training, level_metrics, share_of


def outcome(**shares):
    return Outcome(1, 10, 2.0, {"test": {name.replace("_", "@"): share for name, share in shares.items()}})


def row(name, method, *paper, group="", rule=False):
    return Row((name,), {"sop": method} if method else {}, {"sop": paper}, group, rule)


ITEM = TableItem(
    label="tab:birds",
    title="Birds",
    kind="table",
    columns=(Columns("sop", "SOP", ("R@1", "AP")),),
    rows=(
        row("One", "one", 80.0, 50.0, group="Fine"),
        row("Two", "two", 79.0, 51.0, group="Fine", rule=True),
        row("Three", "three", 81.0, None, group="Hier."),
        row("Quoted", "", 70.0, 40.0, group="Hier."),
    ),
    order_by="R@1",
    notes=("A note.",),
)
RESULTS = {
    Training("sop", "one"): [outcome(R_1=0.80, AP=0.5), outcome(R_1=0.82, AP=0.5)],
    Training("sop", "two"): [outcome(R_1=0.79, AP=0.6)],
    Training("sop", "three"): [],
}


def training(preset, row):
    return Training(preset, row.methods[preset]) if preset in row.methods else None


def laid_out(item=ITEM, results=RESULTS, **options):
    return layout.lay_out(item, item.columns, results, training, **options)


def test_markdown_has_ours_the_papers_and_the_difference():
    assert layout.markdown(laid_out(notes=["B note."])) == (
        "|  | Method | R@1 | AP |\n"
        "| --- | --- | ---: | ---: |\n"
        "| Fine | One | <u>81.0 ± 1.4</u> / 80.0 (+1.0) | 50.0 ± 0.0 / 50.0 (0.0) |\n"
        "|  | Two | 79.0 / 79.0 (0.0) | <u>60.0</u> / 51.0 (+9.0) |\n"
        "| Hier. | Three | – / 81.0 | – |\n"
        "|  | Quoted | – / 70.0 | – / 40.0 |\n"
        "\n"
        "On SOP, in percent, after the last epoch, mean ± standard deviation (n − 1) over 1 to 2 seeds; behind the slash the "
        "paper's number, and the difference to it. The best of a column is underlined; one training says nothing about "
        "others.\n"
        "\n"
        "A note.\n"
        "\n"
        "B note.\n"
    )


def test_latex_has_groups_rules_and_marks():
    lines = layout.latex(laid_out(), "suprank paper tab:birds").splitlines()
    assert lines[0] == "% suprank paper tab:birds"
    assert r"\begin{tabular}{llrr}" in lines
    assert r" &  & \multicolumn{2}{c}{SOP} \\" in lines
    assert (
        r"\multirow{2}{*}{\rotatebox[origin=c]{90}{Fine}} & One & \underline{81.0}$_{\pm 1.4}$ {\scriptsize 80.0 ($+1.0$)} & "
        r"50.0$_{\pm 0.0}$ {\scriptsize 50.0 ($0.0$)} \\"
    ) in lines
    assert lines[lines.index(r"\cmidrule{2-4}") + 1].startswith(" & Two")
    assert lines.count(r"\midrule") == 2
    assert lines[-1] == r"\end{tabular}"


PACKAGES = {
    **dict.fromkeys(("toprule", "midrule", "cmidrule", "bottomrule"), "booktabs"),
    **{"multirow": "multirow", "rotatebox": "graphicx", "checkmark": "amssymb"},
}
PLAIN = {"begin", "end", "multicolumn", "scriptsize", "Sigma", "times"}
"""Commands of LaTeX itself."""


@pytest.mark.parametrize("label", sorted(table_items()))
def test_latex_names_the_package_of_every_command_that_it_uses(label):
    lines = layout.latex(laid_out(table_items()[label], {})).splitlines()
    used = {name for line in lines if line[0] != "%" for name in re.findall(r"\\([a-zA-Z]+)", line)} - PLAIN
    (needed,) = re.findall(r"Needs .usepackage\{(.*?)\}", "\n".join(lines))
    assert {PACKAGES[name] for name in used} <= set(needed.split(","))


def test_csv_has_a_row_for_each_number():
    rows = list(csv.DictReader(io.StringIO(layout.table_csv(laid_out()))))
    assert len(rows) == 8
    assert rows[0] == {
        "table": "tab:birds",
        "group": "Fine",
        "method": "One",
        "dataset": "sop",
        "metric": "R@1",
        "ours": "81.0",
        "deviation": rows[0]["deviation"],
        "seeds": "2",
        "paper": "80.0",
        "difference": "1.0",
    }
    assert float(rows[0]["deviation"]) == pytest.approx(2**0.5)
    assert (rows[5]["ours"], rows[5]["seeds"], rows[5]["paper"]) == ("", "0", "")


def test_the_best_of_single_trainings_are_underlined_and_never_bold_and_equal_ones_share_the_mark():
    for shares in ((0.70001, 0.70002, 0.3), (0.7, 0.7, 0.6)):  # a mark goes by what is printed
        trainings = (Training("sop", name) for name in ("one", "two", "three"))
        results = {one: [outcome(R_1=share, AP=0.5)] for one, share in zip(trainings, shares, strict=True)}
        table = laid_out(results=results)
        assert [table.mark(line, ("sop", "R@1")) for line in table.lines] == [2, 2, 0, 0]
    assert [table.mark(line, ("sop", "AP")) for line in table.lines] == [0, 0, 0, 0]
    assert "<u>70.0</u> / 80.0 (−10.0)" in layout.markdown(table)
    assert "**" not in layout.markdown(table)
    assert r"\textbf" not in layout.latex(table)


SEEDS = {"one": (0.70, 0.701, 0.702), "two": (0.60, 0.601, 0.602), "three": (0.5, 0.65, 0.55)}


def several_seeds(**changed):
    shares = {**SEEDS, **changed}
    return {Training("sop", name): [outcome(R_1=share) for share in values] for name, values in shares.items()}


def test_the_best_is_bold_if_no_other_is_within_chance_and_else_underlined():
    item = dataclasses.replace(ITEM, columns=(Columns("sop", "SOP", ("R@1",)),))
    near = laid_out(item, several_seeds())
    assert [near.mark(line, ("sop", "R@1")) for line in near.lines] == [2, 0, 0, 0]  # three seeds of Three differ by 15 points
    clear = laid_out(item, several_seeds(three=(0.5, 0.501, 0.502)))
    assert [clear.mark(line, ("sop", "R@1")) for line in clear.lines] == [1, 0, 0, 0]
    assert "**70.1 ± 0.1**" in layout.markdown(clear)
    assert "bold if it is better than all others by more than chance (Welch's t-test" in clear.caption()
    single = laid_out(item, several_seeds(three=(0.5,)))
    assert [single.mark(line, ("sop", "R@1")) for line in single.lines] == [2, 0, 0, 0]
    assert single.caption().endswith("The best of a column is underlined; one training says nothing about others.")


def test_a_difference_counts_less_the_more_of_them_are_looked_at():
    item = dataclasses.replace(ITEM, columns=(Columns("sop", "SOP", ("R@1",)),))
    found = several_seeds(two=(0.69, 0.696, 0.691), three=(0.5, 0.501, 0.502))
    one, other = (Statistic.from_shares([run.metrics["test"]["R@1"] for run in runs]) for runs in list(found.values())[:2])
    assert 0.01 < layout.welch(one, other).p_value < 0.05
    assert laid_out(item, found).better_than_chance
    metrics = tuple(f"P@{k}" for k in range(1, 20))  # the same numbers under other names
    several = {
        training: [run._replace(metrics={"test": dict.fromkeys(metrics, run.metrics["test"]["R@1"])}) for run in runs]
        for training, runs in found.items()
    }
    rows = tuple(row._replace(paper={"sop": (None,) * len(metrics)}) for row in item.rows)
    wide = dataclasses.replace(item, columns=(Columns("sop", "SOP", metrics),), rows=rows, order_by=metrics[0])
    assert laid_out(wide, several).better_than_chance == frozenset()


@pytest.mark.parametrize("other", [(48, 49, 47), (50, 52), (10, 90, 20, 30)])
def test_welch_is_scipys(other):
    one = (50, 51, 53)
    first, second = (Statistic.from_shares([share / 100 for share in shares]) for shares in (one, other))
    expected = stats.ttest_ind(one, other, equal_var=False)
    interval = expected.confidence_interval()
    assert layout.welch(first, second) == pytest.approx((first.mean - second.mean, *interval, expected.pvalue), rel=1e-5)


def test_without_any_spread_equal_means_are_chance_and_others_are_not():
    flat = Statistic(50.0, 0.0, 2)
    assert layout.welch(flat, flat).p_value == 1
    assert layout.welch(flat, Statistic(49.0, 0.0, 2)) == (1.0, 1.0, 1.0, 0.0)


def test_the_best_of_each_group_where_the_paper_has_it_so():
    item = contents()["tab:ablation_study"]
    results = {
        Training("sop", row.methods["sop"]): [outcome(**{"R_1": 0.5 + place / 100, "mAP_R": 0.4})]
        for place, row in enumerate(item.rows)
    }
    table = laid_out(item, results)
    assert [table.mark(line, ("sop", "R@1")) for line in table.lines] == [0, 0, 0, 2] * 2
    assert table.caption().endswith("The best of a column in each group is underlined; one training says nothing about others.")


def test_without_runs_the_table_is_the_papers_alone():
    text = layout.markdown(laid_out(results={}))
    assert "No run is finished yet; the numbers behind the slash are the paper's." in text
    assert "| Fine | One | – / 80.0 | – / 50.0 |" in text


def test_a_metric_that_was_not_measured_is_named():
    table = laid_out(results={Training("sop", "one"): [outcome(R_1=0.7)]})
    assert table.notes[-1] == "Some runs did not measure sop: AP."


def test_a_small_table_has_the_papers_order_beside_it():
    small = Columns("glyphs", "glyphs", ("R@1", "AP/*"))
    names = {"one": 0.5, "two": 0.6, "three": 0.7}
    metrics = {"AP": 0.5, "AP/fine": 0.5, "AP/coarse": 0.25, "AP/overall": 0.4}
    results = {
        Training("glyphs", name): [Outcome(1, 1, 1.0, {"test": {"R@1": share, **metrics}})] for name, share in names.items()
    }
    table = layout.lay_out(
        ITEM, [small], results, lambda preset, row: Training(preset, *row.methods.values()) if row.methods else None, small=True
    )
    head, *rows = layout.text_cells(table)
    assert head == ["", "Method", "R@1", "AP/coarse", "SOP R@1 (paper)"]
    assert [line[1] for line in rows] == ["One", "Two", "Three"], "quoted rows are left out"
    assert [line[-1] for line in rows] == ["80.0 (2)", "79.0 (3)", "81.0 (1)"]
    assert table.order_sentences() == ["Pairs of methods in the paper's order by SOP R@1: glyphs 2 of 3."]


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(0, 100)), max_size=8))
@example([(0.0, 0.0), (0.0, 1e-311)])  # the product of their differences is 0
def test_agreement_of_an_order_with_itself_and_its_reverse(pairs):
    same = layout.order_agreement([(theirs, theirs, "") for _, theirs in pairs])
    reverse = layout.order_agreement([(-theirs, theirs, "") for _, theirs in pairs])
    agreed, _, total = same.partition(" of ")
    assert agreed == total
    assert reverse == f"0 of {total}"


def test_means_over_levels_and_over_test_sets():
    vehicle = Outcome(
        1, 1, 1.0, {"fine": {"AP": 0.2, "ASI": 0.1}, "middle": {"AP": 0.4, "ASI": 0.2}, "coarse": {"AP": 0.9, "ASI": 0.6}}
    )
    product = Outcome(1, 1, 1.0, {"test": {"AP": 0.2, "AP/fine": 0.2, "AP/middle": 0.4, "AP/coarse": 0.9, "AP/overall": 0.3}})
    assert share_of(vehicle, "mean:AP") == pytest.approx(0.5)
    assert share_of(vehicle, "mean:ASI") == pytest.approx(0.3)
    assert share_of(product, "mean:AP") == pytest.approx(0.5)
    assert share_of(product, "mean:ASI") is None
    assert level_metrics(product.metrics["test"], "AP") == ["AP/fine", "AP/middle", "AP/coarse"]
