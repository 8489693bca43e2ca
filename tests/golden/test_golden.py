"""Every value is what it was: see cases.py for what is computed, and exceptions.toml for changes that are wanted."""

import pytest

from suprank import losses
from tests.golden import values
from tests.golden.cases import CASES, SHARED, SHARED_CASES

STORED = values.read()


def group(key):
    return "/".join(key.split("/")[:2])


@pytest.mark.parametrize("name", dict.fromkeys(map(group, STORED)))
def test_every_value_is_what_it_was(name):
    if name.startswith("shared/") and not SHARED.is_dir():
        pytest.skip("needs ../shared/data, which is no part of the repository")
    keys = [key for key in STORED if group(key) == name]
    found = values.compute(keys)
    different = [key + text for key in keys if key in found and (text := values.compare(key, STORED[key], found[key]))]
    assert not different, "if this is wanted, name the keys in exceptions.toml and run `python -m tests.golden.write`"


def test_every_case_has_a_value():
    assert STORED.keys() == CASES.keys() | SHARED_CASES.keys(), "run `python -m tests.golden.write`"


def test_every_loss_of_the_package_has_values():
    exported = {name: getattr(losses, name) for name in losses.__all__}
    kinds = {name for name, kind in exported.items() if isinstance(kind, type) and issubclass(kind, losses.RetrievalLoss)}
    named = {key.split("/")[1].split()[0] for key in CASES if key.startswith("losses/")}
    assert kinds - named == {"RetrievalLoss", "RankLoss"}


def test_every_exception_has_a_reason():
    assert all(why.strip() for why in values.exceptions()[0].values())


def test_an_exception_is_for_the_keys_of_its_pattern():
    changed = {"losses/Fast*/ties": "other slopes"}
    assert values.reason("losses/FastAP/ties", changed) == "other slopes"
    assert values.reason("losses/FastAP/flat", changed) is None
    assert values.under_new_names({"a": 1, "c": 2}, {"a": "b"}) == {"b": 1, "c": 2}


@pytest.mark.parametrize(
    ("old", "new", "same"),
    [
        (0.25, 0.25 + 1e-10, True),
        (0.25, 0.25 + 1e-8, False),
        ([1.0, 1e-11], [1.0, 0.0], True),  # relative to the largest
        ([1.0, 1e-8], [1.0, 0.0], False),
        ({"AP": [float("nan")]}, {"AP": [float("nan")]}, True),
        ({"AP": [float("nan")]}, {"AP": [0.0]}, False),
        ({"AP": 1.0}, {"AP": 1.0, "R@1": 1.0}, False),
        ([1, 2], [1, 2, 3], False),
        (3, 4, False),
        (1, 1.0, False),
        ("refused: ValueError", [1.0], False),
    ],
)
def test_a_value_may_move_by_rounding_errors_only(old, new, same):
    assert (values.compare("key", old, new) == "") == same
    assert (values.compare("key", {"inside": [old]}, {"inside": [new]}) == "") == same


def test_float32_is_compared_less_strictly():
    assert values.compare("losses/SupAP/float32", [1.0], [1.00005]) == ""
    assert values.compare("losses/SupAP/float32", [1.0], [1.0005]) == "[0] is 1.0005, not 1.0"
