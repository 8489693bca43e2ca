"""The folder of a comparison: what is added to it, what is refused, and which part of it is selected."""

import json
from pathlib import Path

import pytest

from suprank.experiments import Comparison, collect_comparison, compare, plan_comparison
from tests.experiments.runs import comparison_of, write_recipe


@pytest.fixture(autouse=True)
def recipes(folder):
    for name, weight in {"a": 0.1, "b": 0.2, "c": 0.3}.items():
        write_recipe(name, weight)


def names(comparison):
    return [run.name for run in comparison.runs]


def test_every_recipe_has_a_run_for_each_seed_and_gets_the_overrides(folder):
    plan = plan_comparison(["b.toml", "a.toml"], "out", {"batch.size": 64}, seeds=2)
    assert names(plan.record) == ["b,seed=0", "b,seed=1", "a,seed=0", "a,seed=1"]
    assert [(one.batch.size, one.loss.weight) for one in plan.configs] == [(64, 0.2), (64, 0.1)]
    last = plan.tasks[-1]
    assert last.command[3:] == [f"{folder}/a.toml", "batch.size=64", "run.seed=1", "--out", f"{folder}/out/a,seed=1"]
    assert last.log == folder / "out" / "logs" / "a,seed=1.log"


def test_what_is_saved_is_loaded(folder):
    assert Comparison.load(folder) is None
    found = comparison_of("a.toml", "cub/nsm", overrides=["data.manifest=glyphs", *BUDGET], seeds=2)
    found.save(folder)
    assert Comparison.load(folder) == found
    (folder / "comparison.json").write_text('{"methods": []}')
    with pytest.raises(ValueError, match=r"comparison.json is damaged"):
        Comparison.load(folder)


BUDGET = ["images=", "model=", "batch=", "run=", "engine=", "evaluation=", "data.cache_images="]
"""What makes the recipes of another dataset those of this one."""


def test_further_recipes_and_seeds_are_added(folder):
    there = comparison_of("a.toml", "b.toml")
    more = comparison_of("c.toml", "a.toml", seeds=2, command="suprank compare --more", earlier=there)
    both = there.merge(more)
    assert list(both.methods) == ["a", "b", "c"]
    assert names(both) == ["a,seed=0", "b,seed=0", "c,seed=0", "c,seed=1", "a,seed=1"]
    assert both.commands == ("suprank compare", "suprank compare --more")
    assert both.merge(there) == both


def test_a_recipe_keeps_its_label_when_another_of_that_name_comes(folder):
    there = comparison_of("a.toml")
    write_recipe("other/a", 0.4)
    more = comparison_of("a.toml", "other/a.toml", earlier=there)
    assert there.merge(more).recipes == {"a": f"{folder}/a.toml", "other/a": f"{folder}/other/a.toml"}


def test_other_settings_in_the_same_folder_are_refused():
    there = comparison_of("a.toml", "b.toml")
    write_recipe("b", 0.9)
    with pytest.raises(ValueError, match=r"has b with other settings: loss.weight was 0.2 and is 0.9.* another --out"):
        there.merge(comparison_of("a.toml", "b.toml", earlier=there))
    with pytest.raises(ValueError, match=r"has a with other settings: run.epochs was 100 and is 3"):
        there.merge(comparison_of("a.toml", overrides=["run.epochs=3"], earlier=there))
    with pytest.raises(ValueError, match=r"run.epochs is 3 in c, 100 in a and b"):
        there.merge(comparison_of("c.toml", overrides=["run.epochs=3"], earlier=there))
    there.merge(comparison_of("c.toml", overrides=["data.workers=3"], earlier=there))


def test_what_cannot_be_run_or_compared_is_refused():
    with pytest.raises(ValueError, match=r"there is no recipe to compare; name some"):
        comparison_of()
    with pytest.raises(ValueError, match=r"cub/nsn cannot be run, so nothing was: .*did you mean cub/nsm"):
        comparison_of("a.toml", "cub/nsn")
    with pytest.raises(ValueError, match=r"a.toml cannot be run, so nothing was: .*loss.weight"):
        comparison_of("a.toml", overrides=["loss.weight=2"])
    with pytest.raises(ValueError, match=r"a.toml cannot be run, so nothing was: .*run.seed"):
        comparison_of("a.toml", overrides=["run.seed=0,-1"])
    with pytest.raises(ValueError, match=r"loss.weight=0,0.1 has several values, .*`suprank sweep` combines"):
        comparison_of("a.toml", overrides=["loss.weight=0,0.1"])
    with pytest.raises(ValueError, match=r"data.manifest is 'glyphs' in a, 'cub.parquet' in nsm"):
        comparison_of("a.toml", "cub/nsm")


def test_exceptions_are_kept_for_recipes_that_are_added_later(folder):
    write_recipe("short", run={"epochs": 3})
    write_recipe("other", run={"epochs": 9})
    with pytest.raises(ValueError, match=r"run.epochs is 100 in a, 3 in short"):
        comparison_of("a.toml", "short.toml")
    there = comparison_of("a.toml", "short.toml", may_differ=("run.epochs",))
    there.save(folder)
    assert Comparison.load(folder).may_differ == there.may_differ == there.select(["short"]).may_differ == ("run.epochs",)
    both = there.merge(comparison_of("b.toml", "other.toml", earlier=there, may_differ=("batch",)))
    assert both.may_differ == ("run.epochs", "batch")
    with pytest.raises(ValueError, match=r"model.dim is 64 in c"):
        both.merge(comparison_of("c.toml", overrides=["model.dim=64"], earlier=both))


def test_a_comparison_of_an_earlier_version_has_no_exceptions(folder):
    there = comparison_of("a.toml", "b.toml")
    there.save(folder)
    file = folder / "comparison.json"
    content = json.loads(file.read_text())
    del content["may_differ"]
    file.write_text(json.dumps(content))
    assert Comparison.load(folder) == there


def test_seeds_may_be_named():
    assert names(comparison_of("a.toml", overrides=["run.seed=3,5"])) == ["a,seed=3", "a,seed=5"]


def test_a_part_is_chosen_by_label_or_by_name_and_in_that_order():
    found = comparison_of("a.toml", "b.toml", "c.toml", seeds=2)
    some = found.select(["c", "a.toml"])
    assert list(some.methods) == ["c", "a"]
    assert names(some) == ["c,seed=0", "c,seed=1", "a,seed=0", "a,seed=1"]
    assert found.select([]) == found
    Path("b.toml").unlink()  # it was run, and its label is enough
    assert list(found.select(["b"]).methods) == ["b"]
    with pytest.raises(ValueError, match=r"cub/nsm is not in the comparison; choose from a, b, c"):
        found.select(["a", "cub/nsm"])
    with pytest.raises(ValueError, match=r"a.toml is given twice"):
        found.select(["a", "a.toml"])


def test_a_comparison_in_python_trains_what_is_missing_and_returns_the_table(folder):
    result = compare(["a.toml", "b.toml"], "out", {"run.epochs": 3}, seeds=2, metrics=["R@1"], name="small")
    assert (result.planned, result.failed) == (4, ())
    assert result.notes == ("No row is bold: a,seed=0 has no report of its last epoch.",)
    assert [row.statistics["R@1"].mean for row in result.table.rows] == [pytest.approx(10.5), pytest.approx(20.5)]
    write_recipe("c", 0.3, optimizer={"lr": 0.5})
    more = compare(["c.toml"], "out", ["run.epochs=3"])
    assert more.planned == 1
    assert [dict(row.setting)["recipe"] for row in more.table.rows] == ["a", "b", "c"]
    assert more.notes[0] == "optimizer.lr is 0.5 in c, 1e-05 in a and b."
    assert more.notes[1].startswith("No row is bold: a single training says nothing about another one of the same recipe")
    assert collect_comparison("out", ["b"], metrics=["R@1"]).table.rows == result.table.rows[1:]
    assert (folder / "out/small.tex").exists()
