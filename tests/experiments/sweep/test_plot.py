"""The figure: what it is drawn over, and what is written on it."""

import pytest

from suprank.experiments.sweep import relative_table, table
from suprank.experiments.sweep.plot import draw
from tests.experiments.sweep.runs import outcomes_of


def drawn(found, folder, name="plot.svg"):
    assert draw(found, [folder / name])
    return (folder / name).read_text()


def test_the_figure_is_drawn_over_the_numbers_with_the_papers_letters(folder):
    outcomes = outcomes_of(
        lambda run: 0.5 + 0.01 * int(run["run.seed"]), "loss.weight=0,0.1,0.5", "loss.name=roadmap,happier", seeds=2
    )
    svg = drawn(table(outcomes), folder)
    for text in ("λ", "R@1, %", "H-AP, %", "roadmap", "happier", "mean ± standard deviation over 2 seeds"):
        assert f">{text}</text>" in svg
    assert svg == drawn(table(outcomes), folder, "again.svg")
    assert draw(table(outcomes), [folder / "plot.png"])
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
    svg = drawn(table(outcomes_of(lambda run: 0.5, *arguments), ["R@1"]), folder)
    assert [text for text in written if f">{text}</text>" not in svg] == []


def test_a_relative_table_is_drawn_as_bars_over_the_other_axis(folder):
    outcomes = outcomes_of(lambda run: 0.5 + float(run["loss.weight"]), "loss.weight=0,0.1,0.2", "batch.size=32,64")
    svg = drawn(relative_table(outcomes, "loss.weight=0", ["R@1"]), folder)
    for text in ("batch size", "64", "R@1, increase in %", "relative to λ = 0", "λ = 0.1", "λ = 0.2"):
        assert f">{text}</text>" in svg


def test_there_is_no_figure_of_seeds_alone_or_of_nothing_finished(folder):
    assert not draw(table(outcomes_of(lambda run: 0.5, seeds=3)), [folder / "plot.png"])
    assert not draw(table(outcomes_of(lambda run: None, "loss.weight=0,1")), [folder / "plot.png"])
    assert not (folder / "plot.png").exists()


def test_there_is_a_panel_for_each_metric_and_none_beside(folder):
    metrics = dict.fromkeys(("R@1", "R@2", "R@4", "R@8"), 0.5)
    outcomes = outcomes_of(lambda run: 0.5, "loss.weight=0,1")
    outcomes = {run: one._replace(metrics={"test": metrics}) for run, one in outcomes.items()}
    svg = drawn(table(outcomes, list(metrics)), folder)
    assert svg.count('<g id="axes_') == 4
