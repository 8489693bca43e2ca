"""The table of a comparison, in Markdown and in LaTeX."""

import re
from dataclasses import replace

from suprank.experiments.results import result_table
from suprank.experiments.tables import comparison_latex, comparison_markdown
from suprank.files.markup import latex_escaped
from tests.experiments.runs import comparison_outcomes


def test_the_table_is_in_the_order_given_with_seconds_and_notes():
    # Of 70, 71 and 75: mean 72, deviation √((4 + 1 + 9)/2) = 2.6458.
    table = result_table(comparison_outcomes({"nsm": (0.8, 0.8, 0.8), "csl": (0.7, 0.71, 0.75)}))
    table = replace(table, better=frozenset({"R@1", "H-AP"}))  # of mAP@R nobody is
    assert comparison_markdown(table, ["optimizer.lr is 0.5 in nsm, 0.1 in csl."]) == (
        "| recipe | R@1, % | mAP@R, % | H-AP, % | s |\n"
        "| --- | ---: | ---: | ---: | ---: |\n"
        "| nsm | **80.00 ± 0.00** | 25.00 ± 0.00 | **40.00 ± 0.00** | 11.0 |\n"
        "| csl | 72.00 ± 2.65 | 25.00 ± 0.00 | 36.00 ± 1.32 | 11.0 |\n"
        "\n"
        "In percent, after the last epoch, mean ± standard deviation (n − 1) over 3 seeds. s: seconds that the training steps "
        "of a run took. optimizer.lr is 0.5 in nsm, 0.1 in csl.\n"
    )


def test_latex_has_the_best_in_bold_as_it_is_rounded():
    # 80.00 and 79.96 are both 80.0; 72.04 is not.
    table = result_table(
        comparison_outcomes({"r_1": (0.8, 0.8), "r&2": (0.7996, 0.7996), "r3": (0.71, 0.7308)}), ["R@1", "MRR"]
    )
    assert r"\textbf" not in comparison_latex(table), "unless a test says so"
    table = replace(table, better=frozenset({"R@1"}))
    assert comparison_latex(table, "suprank compare 'two\nlines'", ["optimizer.lr is 1."]) == "\n".join(
        [
            "% suprank compare 'two lines'",
            "% In percent, after the last epoch, mean ± standard deviation (n − 1) over 2 seeds.",
            "% optimizer.lr is 1.",
            r"% Needs \usepackage{booktabs}.",
            r"\begin{tabular}{lrr}",
            r"\toprule",
            r"Method & R@1 & MRR \\",
            r"\midrule",
            r"r\_1 & \textbf{80.0}$_{\pm 0.0}$ & 50.0$_{\pm 0.0}$ \\",
            r"r\&2 & \textbf{80.0}$_{\pm 0.0}$ & 50.0$_{\pm 0.0}$ \\",
            r"r3 & 72.0$_{\pm 1.5}$ & 50.0$_{\pm 0.0}$ \\",
            r"\bottomrule",
            r"\end{tabular}",
            "",
        ]
    )


def test_one_seed_has_no_deviation_and_one_recipe_no_best():
    table = result_table(comparison_outcomes({"nsm": (0.5,)}), ["R@1"])
    assert r"nsm & 50.0 \\" in comparison_latex(table)
    assert "| nsm | 50.00 | 10.0 |\n\nIn percent, after the last epoch, of one seed." in comparison_markdown(table)


def test_unfinished_runs_and_other_numbers_of_seeds_are_counted():
    table = result_table(comparison_outcomes({"nsm": (0.5, None), "csl": (None,), "arcface": (0.25, 0.25)}), ["R@1"])
    assert comparison_markdown(table).splitlines()[2:5] == [
        "| nsm | 1 of 2 | 50.00 | 10.0 |",
        "| csl | 0 of 1 | – | – |",
        "| arcface | 2 of 2 | 25.00 ± 0.00 | 10.5 |",
    ]
    written = comparison_latex(table)
    assert r"\begin{tabular}{lrr}" in written
    assert r"Method & seeds & R@1 \\" in written
    assert r"csl & 0/1 & -- \\" in written
    assert "over 1 to 2 seeds" in written
    assert "| nsm | 1 of 1 |" in comparison_markdown(result_table(comparison_outcomes({"nsm": (0.5,), "csl": (0.5, 0.5)})))


def test_recipes_called_by_numbers_keep_the_order_given():
    table = result_table(comparison_outcomes({"10": (0.5,), "2": (0.5,), "3": (0.5,)}))
    assert [row.setting[0][1] for row in table.rows] == ["10", "2", "3"]


def test_nothing_that_latex_reads_as_a_command_is_left():
    text = r"a&b%c$d#e_f{g}h~i^j\k<l>m|n"
    written = latex_escaped(text)
    plain = re.sub(r"\\text\w+\{\}|\\[&%$#_{}]", "", written)
    assert plain == "abcdefghijklmn"
    assert latex_escaped("ΣNCA++, R@1/genus") == "ΣNCA++, R@1/genus"
