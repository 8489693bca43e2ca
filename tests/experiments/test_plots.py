"""The figures of sweeps and comparisons: what they are drawn over, and what is written on them."""

from dataclasses import replace

import pytest

from suprank.experiments import SearchResult, SearchSettings, Trial
from suprank.experiments.plots import BEST_COLOR, draw_comparison, draw_search, draw_sweep, save_panels
from suprank.experiments.results import relative_table, result_table
from suprank.training.search_space import Choices, FloatRange
from tests.experiments.runs import comparison_outcomes, outcomes_of


def drawn(table, folder, name="plot.svg", draw=draw_sweep):
    assert save_panels(draw(table), [folder / name])
    return (folder / name).read_text()


def test_the_figure_is_drawn_over_the_numbers_with_the_papers_letters(folder):
    outcomes = outcomes_of(
        lambda run: 0.5 + 0.01 * int(run["run.seed"]), "loss.weight=0,0.1,0.5", "loss.name=roadmap,happier", seeds=2
    )
    svg = drawn(result_table(outcomes), folder)
    for text in ("λ", "R@1, %", "H-AP, %", "roadmap", "happier", "mean ± standard deviation over 2 seeds"):
        assert f">{text}</text>" in svg
    assert svg == drawn(result_table(outcomes), folder, "again.svg")
    assert save_panels(draw_sweep(result_table(outcomes)), [folder / "plot.png"])
    assert (folder / "plot.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "written"),
    [
        (["loss.rho=0.1,1,10,10000"], ["ρ", "0.1", "1", "10", "10000"]),
        (["loss.rho=0,0.1,10,10000"], ["ρ", "0", "0.1", "10", "10000"]),
        (["batch.size=32,64,384", "loss.weight=0,0.1"], ["batch size", "32", "64", "384", "λ = 0", "λ = 0.1"]),
        (["loss.name=roadmap,happier,smooth-recall-and-more"], ["loss", "roadmap", "happier", "smooth-recall-and-more"]),
        (["loss.name=nsm,happier", "model.backbone=a,b", "batch.size=2,4"], ["batch size", "2", "4", "happier, backbone = b"]),
    ],
    ids=lambda one: one[0],
)
def test_every_kind_of_axis_can_be_drawn(folder, arguments, written):
    svg = drawn(result_table(outcomes_of(lambda run: 0.5, *arguments), ["R@1"]), folder)
    assert [text for text in written if f">{text}</text>" not in svg] == []


def test_a_relative_table_is_drawn_as_bars_over_the_other_axis(folder):
    outcomes = outcomes_of(lambda run: 0.5 + float(run["loss.weight"]), "loss.weight=0,0.1,0.2", "batch.size=32,64")
    svg = drawn(relative_table(outcomes, "loss.weight=0", ["R@1"]), folder)
    for text in ("batch size", "64", "R@1, increase in %", "relative to λ = 0", "λ = 0.1", "λ = 0.2"):
        assert f">{text}</text>" in svg


def test_there_is_no_figure_of_seeds_alone_or_of_nothing_finished(folder):
    assert draw_sweep(result_table(outcomes_of(lambda run: 0.5, seeds=3))) == []
    assert draw_sweep(result_table(outcomes_of(lambda run: None, "loss.weight=0,1"))) == []
    assert not (folder / "plot.png").exists()


def test_there_is_a_panel_for_each_metric_and_none_beside(folder):
    metrics = dict.fromkeys(("R@1", "R@2", "R@4", "R@8"), 0.5)
    outcomes = outcomes_of(lambda run: 0.5, "loss.weight=0,1")
    outcomes = {run: one._replace(metrics={"test": metrics}) for run, one in outcomes.items()}
    svg = drawn(result_table(outcomes, list(metrics)), folder)
    assert svg.count('<g id="axes_') == 4


# Comparisons


def drawn_comparison(table, folder, name="plot.svg"):
    return drawn(table, folder, name, draw_comparison)


def test_every_recipe_is_a_row_and_every_metric_a_panel(folder):
    table = result_table(comparison_outcomes({"nsm": (0.5, 0.6), "roadmap": (0.7, 0.75), "csl": (None, 0.7)}))
    svg = drawn_comparison(table, folder)
    for text in ("nsm", "roadmap", "csl", "R@1, %", "mAP@R, %", "H-AP, %", "mean ± standard deviation over 1 to 2 seeds"):
        assert f">{text}</text>" in svg
    assert svg.count('<g id="axes_') == 3
    assert svg.index(">nsm<") < svg.index(">roadmap<") < svg.index(">csl<")
    assert svg == drawn_comparison(table, folder, "again.svg")
    assert save_panels(draw_comparison(table), [folder / "plot.png"])
    assert (folder / "plot.png").read_bytes().startswith(b"\x89PNG")


def test_the_best_has_a_color_of_its_own_if_it_is_better_by_more_than_chance(folder):
    one, two = (result_table(comparison_outcomes(of), ["R@1"]) for of in ({"nsm": (0.5,)}, {"nsm": (0.5,), "csl": (0.7,)}))
    better = frozenset({"R@1"})
    assert BEST_COLOR.lower() not in drawn_comparison(replace(one, better=better), folder)
    assert BEST_COLOR.lower() not in drawn_comparison(two, folder)
    assert BEST_COLOR.lower() in drawn_comparison(replace(two, better=better), folder)


def test_many_recipes_have_their_panels_side_by_side(folder):
    svg = drawn_comparison(
        result_table(comparison_outcomes({f"loss{place}": (0.5,) for place in range(25)}), ["R@1", "H-AP", "MRR", "mAP@R"]),
        folder,
    )
    assert svg.count('<g id="axes_') == 4
    assert svg.count(">loss7<") == 1, "one row of panels shares the names"


def test_there_is_no_figure_of_nothing_finished(folder):
    assert draw_comparison(result_table(comparison_outcomes({"nsm": (None,)}))) == []
    assert not (folder / "plot.png").exists()


def test_the_figure_of_a_search_has_a_panel_for_each_setting_and_the_best_so_far(folder):
    spaces = {
        "nsm": {"optimizer.lr": FloatRange(1e-5, 1e-3, log=True), "batch.images_per_class": Choices((2, 4))},
        "arcface": {"optimizer.lr": FloatRange(1e-5, 1e-3, log=True), "loss.margin": FloatRange(0.1, 0.7)},
    }
    first = {"optimizer.lr": 1e-4, "batch.images_per_class": 4}
    trials = {
        "nsm": [Trial(0, first, (0.4,), 1.0), Trial(1, {**first, "optimizer.lr": 1e-3}, (None,), 1.0, "nan")],
        "arcface": [Trial(0, {"optimizer.lr": 1e-4, "loss.margin": 0.5}, (0.3,), 1.0)],
    }
    search = SearchResult(SearchSettings(2, 2, "fine", "H-AP", (), spaces), trials, 3)
    assert save_panels(draw_search(search), [folder / "search.svg", folder / "search.png"])
    svg = (folder / "search.svg").read_text()
    for text in ("nsm", "arcface", "trial", "learning rate", "images per class", "margin", "H-AP of validation classes, %"):
        assert f">{text}</text>" in svg
    assert svg.count('<g id="axes_') == 4
    assert draw_search(SearchResult(search.settings, {"nsm": [], "arcface": []}, 3)) == []


@pytest.mark.parametrize("failure", ["", "the loss is nan"])
def test_a_search_among_words_is_drawn_even_if_all_trials_failed(folder, failure):
    space = {
        "loss.arguments.mining": Choices(("hard", "all")),
        "images.size": Choices((64, "auto")),
        "x.y": Choices((True, False)),
    }
    values = [("hard", 64, True), ("all", "auto", False)]
    trials = [Trial(number, dict(zip(space, own, strict=True)), (0.5,), 1.0, failure) for number, own in enumerate(values)]
    search = SearchResult(SearchSettings(2, 2, "fine", "H-AP", (), {"mine": space}), {"mine": trials}, 3)
    assert save_panels(draw_search(search), [folder / "search.svg"])
    svg = (folder / "search.svg").read_text()
    for text in ("mining", "True", *([] if failure else ["hard", "all", "auto", "64"])):
        assert f">{text}</text>" in svg
