"""What recipes must share to be compared, what is noted of the rest, which recipes are the same, and their labels."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from suprank.experiments.grid import RECIPE, SEED, Combination
from suprank.experiments.methods import (
    Method,
    canonical_recipes,
    check_budget,
    difference_notes,
    label_recipes,
    split_arguments,
)
from suprank.training.recipe_files import recipes_folder
from tests.experiments.runs import config


def methods(**tables):
    """Methods by label, of the tables in which each differs from a recipe."""
    return {label: Method.from_config(f"{label}.toml", config(**changes)) for label, changes in tables.items()}


@pytest.mark.parametrize(
    "changes",
    [
        {"data": {"manifest": "emoji"}},
        {"data": {"manifest": "glyphs", "tests": {"fine": "f.parquet"}}},
        {"images": {"size": 64}},
        {"model": {"dim": 64}},
        {"batch": {"size": 64}},
        {"run": {"epochs": 3}},
        {"engine": {"precision": "bf16"}},
        {"evaluation": {"metrics": ["R@1"]}},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_what_is_of_another_dataset_or_budget_is_refused(changes):
    with pytest.raises(
        ValueError, match=r"do not have the same dataset and budget: \w+\.\w+ is .* in a, .* in b.*=\.\.\., allow it"
    ):
        check_budget(methods(a={}, b=changes))


def test_the_refusal_names_every_entry_and_who_has_it():
    small = {"batch": {"size": 64}, "run": {"epochs": 3}}
    with pytest.raises(ValueError) as refused:  # noqa: PT011 - the whole message is below
        check_budget(methods(a={}, b=small, c={}, d=small, e={}))
    assert str(refused.value) == (
        "the recipes do not have the same dataset and budget: batch.size is 64 in b and d, 256 in the others; run.epochs is 3 "
        "in b and d, 100 in the others. Give one value for all, batch.size=..., allow it by may_differ=batch.size, or "
        "compare them in separate folders."
    )


def test_many_differences_are_counted():
    other = {"images": {"size": 96, "flip": 0.1, "resize": 99, "test_resize": 99, "crop_scale": [0.5, 1], "squash": True}}
    with pytest.raises(ValueError, match=r"crop_scale is .*; and 1 more entries"):
        check_budget(methods(a={}, b=other))


def test_losses_may_differ_and_so_may_seeds_and_what_changes_nothing_that_is_learned():
    check_budget({})
    check_budget(
        methods(
            a={"loss": {"name": "nsm"}, "proxies": {"lr": 0.5}, "run": {"seed": 3}},
            b={"data": {"manifest": "glyphs", "workers": 0, "cache_images": True}, "engine": {"accelerator": "cpu"}},
            c={"checkpoint": {"minutes": 1}, "logging": {"every": 1}, "optimizer": {"lr": 1.0}, "memory": {"size": 9}},
        )
    )


def test_another_optimizer_or_memory_is_difference_notes():
    memory = {"memory": {"size": "all", "weight": 0.25}}
    found = methods(a={}, b={"optimizer": {"lr": 0.5}}, c=memory, d={"loss": {"name": "nsm"}})
    assert difference_notes(found) == [
        "memory.size is 'all' in c, 0 in the others.",
        "memory.weight is 0.25 in c, 0.5 in the others.",
        "optimizer.lr is 0.5 in b, 1e-05 in the others.",
    ]
    assert difference_notes(methods(a={}, b={"loss": {"name": "nsm"}})) == []


@pytest.mark.parametrize("exceptions", [["batch.size", "run"], ["batch", "run.epochs"], ["run", "batch", "model"]])
def test_exceptions_are_keys_or_tables_and_are_noted(exceptions):
    found = methods(a={}, b={"batch": {"size": 64}, "run": {"epochs": 3}, "memory": {"size": 9}})
    check_budget(found, exceptions)
    assert difference_notes(found, exceptions) == [
        "batch.size is 256 in a, 64 in b.",
        "memory.size is 0 in a, 9 in b.",
        "run.epochs is 100 in a, 3 in b.",
    ]
    assert difference_notes(found) == ["memory.size is 0 in a, 9 in b."]


def test_what_is_no_exception_is_still_refused():
    found = methods(a={}, b={"batch": {"size": 64, "images_per_class": 2}, "run": {"epochs": 3}})
    with pytest.raises(ValueError, match=r"budget: batch.images_per_class is .* may_differ=batch.images_per_class") as refused:
        check_budget(found, ["batch.size", "run"])
    assert "batch.size" not in str(refused.value)
    assert "run.epochs" not in str(refused.value)


@pytest.mark.parametrize("exception", ["batch.sise", "bat", "batch.", "checkpoint", "run.seed", ""])
def test_an_exception_that_no_recipe_has_is_refused(exception):
    with pytest.raises(
        ValueError, match=rf"may_differ={exception} is neither a key nor a table of the recipes; try batch.size"
    ):
        check_budget(methods(a={}, b={}), [exception])


def test_an_entry_that_a_later_version_brought_is_nothing_to_refuse():
    found = methods(a={}, b={})
    found["b"].settings["batch.color"] = "red"
    found["b"].settings["optimizer.color"] = "red"
    check_budget(found)
    assert difference_notes(found) == []


# Names and labels


def test_words_with_an_equals_sign_are_overrides_unless_they_are_files():
    Path("tau=1.toml").touch()
    words = ["cub/nsm", "run.epochs=3", "tau=1.toml", "proxies=", "mine.toml"]
    assert split_arguments(words) == (["cub/nsm", "tau=1.toml", "mine.toml"], ["run.epochs=3", "proxies="])


def test_a_shipped_recipe_has_one_name_and_another_file_its_path(folder):
    Path("mine.toml").touch()
    assert canonical_recipes(["cub/nsm", "mine.toml"]) == ["cub/nsm", f"{folder}/mine.toml"]
    for same in ("cub/nsm.toml", "recipes/cub/nsm", str(recipes_folder() / "cub" / "nsm.toml")):
        assert canonical_recipes([same]) == ["cub/nsm"]
    with pytest.raises(ValueError, match=r"cub/nsm is given twice, as cub/nsm and as cub/nsm.toml; leave one out"):
        canonical_recipes(["cub/nsm", "cub/nsm.toml"])
    with pytest.raises(ValueError, match=r"mine.toml is given twice; leave"):
        canonical_recipes(["mine.toml", "mine.toml"])


@pytest.mark.parametrize(
    ("recipes", "taken", "expected"),
    [
        (["cub112/nsm", "cub112/roadmap"], {}, ["nsm", "roadmap"]),
        (["/a/mine.toml"], {}, ["mine"]),
        (["cub/roadmap", "cub112/roadmap"], {}, ["cub/roadmap", "cub112/roadmap"]),
        (["cub112/roadmap", "/a/cub112/roadmap.toml"], {}, ["cub112/roadmap", "a/cub112/roadmap"]),
        (["cub/roadmap", "cub/nsm"], {"roadmap": "cub112/roadmap"}, ["cub/roadmap", "nsm"]),
        (["cub112/roadmap"], {"roadmap": "cub112/roadmap"}, ["roadmap"]),
        (["/a/x.toml", "/a/x"], {}, ["a/x", "x"]),
        (["a/x"], {"x": "y/x", "a/x": "/b/a/x.toml"}, ["a/x.toml"]),
    ],
)
def test_a_label_is_the_end_of_the_name_that_tells_it_from_the_others(recipes, taken, expected):
    assert label_recipes(recipes, taken) == dict(zip(expected, recipes, strict=True))


@given(st.lists(st.lists(st.sampled_from("abc"), min_size=1, max_size=4).map("/".join), unique=True, min_size=1), st.data())
def test_labels_and_folders_are_distinct_and_stay_whatever_is_added(recipes, data):
    count = data.draw(st.integers(0, len(recipes)))
    before = label_recipes(recipes[:count])
    found = label_recipes(recipes, before)
    assert list(found.values()) == recipes
    assert before.items() <= found.items()
    names = {Combination(((RECIPE, label), (SEED, "0"))).name for label in found}
    assert len(names) == len(recipes)
    assert not any("/" in name for name in names)


def test_the_folder_of_a_run_is_named_as_one_would_name_it():
    assert Combination(((RECIPE, "roadmap"), (SEED, "0"))).name == "roadmap,seed=0"
    assert Combination(((RECIPE, "cub/roadmap"), (SEED, "12"))).name.startswith("cub_roadmap,seed=12-")
