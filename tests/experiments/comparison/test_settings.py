"""What recipes must share to be compared, and what is told of the rest."""

import pytest

from suprank.experiments.comparison import Method, check_budget, told
from tests.experiments.sweep.runs import config


def methods(**tables):
    """Methods by label, of the tables in which each differs from a recipe."""
    return {label: Method.of(f"{label}.toml", config(**changes)) for label, changes in tables.items()}


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
    with pytest.raises(ValueError, match=r"not of one dataset and one budget: \w+\.\w+ is .* in a, .* in b.*=\.\.\., or"):
        check_budget(methods(a={}, b=changes))


def test_the_refusal_names_every_entry_and_who_has_it():
    small = {"batch": {"size": 64}, "run": {"epochs": 3}}
    with pytest.raises(ValueError) as refused:  # noqa: PT011 - the whole message is below
        check_budget(methods(a={}, b=small, c={}, d=small, e={}))
    assert str(refused.value) == (
        "the recipes are not of one dataset and one budget: batch.size is 64 in b and d, 256 in the others; run.epochs is 3 "
        "in b and d, 100 in the others. Give one value for all, batch.size=..., or compare them apart, each with an --out of "
        "its own."
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
            b={"data": {"manifest": "glyphs", "workers": 0, "hold": True}, "engine": {"accelerator": "cpu"}},
            c={"checkpoint": {"minutes": 1}, "logging": {"every": 1}, "optimizer": {"lr": 1.0}, "memory": {"size": 9}},
        )
    )


def test_another_optimizer_or_memory_is_told():
    memory = {"memory": {"size": "all", "weight": 0.25}}
    found = methods(a={}, b={"optimizer": {"lr": 0.5}}, c=memory, d={"loss": {"name": "nsm"}})
    assert told(found) == [
        "memory.size is 'all' in c, 0 in the others.",
        "memory.weight is 0.25 in c, 0.5 in the others.",
        "optimizer.lr is 0.5 in b, 1e-05 in the others.",
    ]
    assert told(methods(a={}, b={"loss": {"name": "nsm"}})) == []


def test_an_entry_that_a_later_version_brought_is_nothing_to_refuse():
    found = methods(a={}, b={})
    found["b"].settings["batch.color"] = "red"
    found["b"].settings["optimizer.color"] = "red"
    check_budget(found)
    assert told(found) == []
