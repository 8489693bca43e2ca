"""Which words are recipes, which recipes are the same, and what they are called."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from suprank.experiments.comparison import labels, recipes_and_overrides, spelt
from suprank.experiments.sweep import RECIPE, SEED, Combination
from suprank.training.recipe import recipes_folder


def test_words_with_an_equals_sign_are_overrides_unless_they_are_files():
    Path("tau=1.toml").touch()
    words = ["cub/nsm", "run.epochs=3", "tau=1.toml", "proxies=", "mine.toml"]
    assert recipes_and_overrides(words) == (["cub/nsm", "tau=1.toml", "mine.toml"], ["run.epochs=3", "proxies="])


def test_a_shipped_recipe_has_one_name_and_another_file_its_path(folder):
    Path("mine.toml").touch()
    assert spelt(["cub/nsm", "mine.toml"]) == ["cub/nsm", f"{folder}/mine.toml"]
    for same in ("cub/nsm.toml", "recipes/cub/nsm", str(recipes_folder() / "cub" / "nsm.toml")):
        assert spelt([same]) == ["cub/nsm"]
    with pytest.raises(ValueError, match=r"cub/nsm is given twice, as cub/nsm and as cub/nsm.toml; leave one out"):
        spelt(["cub/nsm", "cub/nsm.toml"])
    with pytest.raises(ValueError, match=r"mine.toml is given twice; leave"):
        spelt(["mine.toml", "mine.toml"])


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
    assert labels(recipes, taken) == dict(zip(expected, recipes, strict=True))


@given(st.lists(st.lists(st.sampled_from("abc"), min_size=1, max_size=4).map("/".join), unique=True, min_size=1), st.data())
def test_labels_and_folders_are_distinct_and_stay_whatever_is_added(recipes, data):
    count = data.draw(st.integers(0, len(recipes)))
    before = labels(recipes[:count])
    found = labels(recipes, before)
    assert list(found.values()) == recipes
    assert before.items() <= found.items()
    names = {Combination(((RECIPE, label), (SEED, "0"))).name for label in found}
    assert len(names) == len(recipes)
    assert not any("/" in name for name in names)


def test_the_folder_of_a_run_is_named_as_one_would_name_it():
    assert Combination(((RECIPE, "roadmap"), (SEED, "0"))).name == "roadmap,seed=0"
    assert Combination(((RECIPE, "cub/roadmap"), (SEED, "12"))).name.startswith("cub_roadmap,seed=12-")
