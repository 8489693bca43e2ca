"""The figure: a panel for each metric, a row for each recipe."""

from suprank.experiments.comparison import table
from suprank.experiments.comparison.plot import BEST, draw
from tests.experiments.comparison.recipes import outcomes_of


def drawn(found, folder, name="plot.svg"):
    assert draw(found, [folder / name])
    return (folder / name).read_text()


def test_every_recipe_is_a_row_and_every_metric_a_panel(folder):
    found = table(outcomes_of({"nsm": (0.5, 0.6), "roadmap": (0.7, 0.75), "csl": (None, 0.7)}))
    svg = drawn(found, folder)
    for text in ("nsm", "roadmap", "csl", "R@1, %", "mAP@R, %", "H-AP, %", "mean ± standard deviation over 1 to 2 seeds"):
        assert f">{text}</text>" in svg
    assert svg.count('<g id="axes_') == 3
    assert svg.index(">nsm<") < svg.index(">roadmap<") < svg.index(">csl<")
    assert svg == drawn(found, folder, "again.svg")
    assert draw(found, [folder / "plot.png"])
    assert (folder / "plot.png").read_bytes().startswith(b"\x89PNG")


def test_the_best_has_a_color_of_its_own(folder):
    one, two = {"nsm": (0.5,)}, {"nsm": (0.5,), "csl": (0.7,)}
    assert BEST.lower() not in drawn(table(outcomes_of(one), ["R@1"]), folder)
    assert BEST.lower() in drawn(table(outcomes_of(two), ["R@1"]), folder)


def test_many_recipes_have_their_panels_side_by_side(folder):
    svg = drawn(table(outcomes_of({f"loss{place}": (0.5,) for place in range(25)}), ["R@1", "H-AP", "MRR", "mAP@R"]), folder)
    assert svg.count('<g id="axes_') == 4
    assert svg.count(">loss7<") == 1, "one row of panels shares the names"


def test_there_is_no_figure_of_nothing_finished(folder):
    assert not draw(table(outcomes_of({"nsm": (None,)})), [folder / "plot.png"])
    assert not (folder / "plot.png").exists()
