"""Held-out classes: disjoint, as many as asked for, groups on both sides, and the same whatever the order of the rows."""

import itertools
from collections import Counter

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from suprank.data.manifest import Manifest
from suprank.data.splits import class_folds, holdout_classes


def open_manifest(classes, *, splits=None, levels=("species", "genus", "family")):
    """One image for each (species, genus, family, ...)."""
    columns = {f"label_{level}": list(column) for level, column in zip(levels, zip(*classes, strict=True), strict=True)}
    paths = [f"{index}.jpg" for index in range(len(classes))]
    return Manifest.from_columns({"path": paths, "split": splits or ["train"] * len(classes), **columns}, root=".")


def sides(manifest, level=0):
    """Class → its splits."""
    found = {}
    labels = manifest.table[f"label_{manifest.levels[level]}"].to_pylist()
    for label, split in zip(labels, manifest.table["split"].to_pylist(), strict=True):
        found.setdefault(label, set()).add(split)
    return found


TREES = st.lists(  # families of genera of numbers of species
    st.lists(st.integers(1, 6), min_size=1, max_size=5), min_size=1, max_size=5
).filter(lambda families: sum(map(sum, families)) >= 2)


def species_of(families):
    return [
        (f"s{family}.{genus}.{species}", f"g{family}.{genus}", f"f{family}")
        for family, genera in enumerate(families)
        for genus, size in enumerate(genera)
        for species in range(size)
    ]


# Worked examples


def test_half_of_every_group_is_held_out():
    classes = [(f"{group}{number}", group) for group in ("birds", "cats") for number in range(4)]
    found = holdout_classes(open_manifest(classes, levels=("kind", "group")))
    assert Counter(zip(found.table["split"].to_pylist(), found.table["label_group"].to_pylist(), strict=True)) == {
        (split, group): 2 for split in ("train", "test") for group in ("birds", "cats")
    }


def test_all_images_of_a_class_go_the_same_way_and_distractors_stay():
    classes = [("jay", "a"), ("jay", "a"), ("crow", "a"), ("crow", "a"), ("jay", "a"), (None, None), ("only here", "a")]
    splits = ["train", "test", "query", "gallery", "train", "distractor", "distractor"]
    manifest = open_manifest(classes, splits=splits, levels=("species", "genus"))
    found = holdout_classes(manifest)
    assert found.table["split"].to_pylist()[5:] == ["distractor", "distractor"]
    assert sorted(map(tuple, sides(found.take(np.arange(5))).values())) == [("test",), ("train",)]
    assert found.names == manifest.names
    assert found.table.drop_columns(["split"]) == manifest.table.drop_columns(["split"])


def test_the_choice_is_the_same_for_ever():
    """Fixed here: a new version of this function must not silently change what people trained on."""
    found = holdout_classes(open_manifest([(f"class {number}",) for number in range(10)], levels=("class",)), 0.3, seed=7)
    assert [name for name, split in sides(found).items() if split == {"test"}] == ["class 4", "class 5", "class 7"]


def test_classes_of_a_coarser_level_can_be_held_out_whole():
    manifest = open_manifest(species_of([[3, 3], [2, 2]]))
    found = holdout_classes(manifest, level="genus")
    assert all(len(split) == 1 for split in sides(found, 1).values())
    assert all(split == {"train", "test"} for split in sides(found, 2).values())


def test_groups_too_small_for_the_fraction_can_be_let_go():
    manifest = open_manifest(species_of([[2] * 5, [2] * 5]))  # every genus has two species: only a half is possible
    with pytest.raises(
        ValueError, match=r"fraction=0.2 of 20 species is 4, but .*: 0.5 to 0.5 .shared='genus'.; 0.1 to 0.9 .shared='f"
    ):
        holdout_classes(manifest, 0.2)
    found = holdout_classes(manifest, 0.2, shared="family")
    assert sum(split == {"test"} for split in sides(found).values()) == 4
    assert all(split == {"train", "test"} for split in sides(found, 2).values())
    with pytest.raises(
        ValueError, match=r"0.1 to 0.9 .shared='family'.; 0.05 to 0.95 .shared='species', which shares no groups"
    ):
        holdout_classes(manifest, 0.01, shared="family")


# Laws


@given(TREES, st.integers(0, 5), st.floats(0.01, 0.99), st.sampled_from([None, "genus", "family", "species"]))
def test_the_split_is_disjoint_of_the_size_asked_for_and_shares_the_groups(families, seed, fraction, shared):
    classes = species_of(families)
    manifest = open_manifest(classes)
    try:
        found = holdout_classes(manifest, fraction, seed=seed, shared=shared)
    except ValueError:  # see below
        assume(False)
    assert all(len(split) == 1 for split in sides(found).values())
    tested = sum(split == {"test"} for split in sides(found).values())
    assert abs(tested - fraction * len(classes)) < 1
    assert 0 < tested < len(classes)
    for level in {None: (1, 2), "genus": (1, 2), "family": (2,), "species": ()}[shared]:
        sizes = Counter(row[level] for row in classes)
        assert all(len(split) == 2 for name, split in sides(found, level).items() if sizes[name] > 1)


@given(TREES, st.integers(0, 5))
def test_a_half_is_always_possible(families, seed):
    classes = species_of(families)
    found = holdout_classes(open_manifest(classes), 0.5, seed=seed)
    assert abs(found.splits["test"] - len(classes) / 2) <= 0.5


@given(TREES, st.integers(0, 5), st.randoms(use_true_random=False))
def test_the_order_of_the_rows_does_not_matter(families, seed, random):
    classes = species_of(families)
    shuffled = random.sample([*classes, *random.choices(classes, k=5)], len(classes) + 5)
    assume(set(shuffled) == set(classes))
    assert sides(holdout_classes(open_manifest(classes), seed=seed)) == sides(
        holdout_classes(open_manifest(shuffled), seed=seed)
    )


@given(TREES, st.floats(0.01, 0.99))
def test_an_error_offers_fractions_that_work(families, fraction):
    manifest = open_manifest(species_of(families))
    try:
        holdout_classes(manifest, fraction)
    except ValueError as error:
        offers = str(error).partition("Possible fractions: ")[2].split("; ")
        assert offers
        for offer in offers:
            limits, shared, _ = offer.split("'")
            low, _, high, *_ = limits.split()
            for possible in (float(low), float(high)):
                holdout_classes(manifest, possible, shared=shared)


def test_seeds_differ_and_every_class_has_its_turn():
    manifest = open_manifest([(f"class {number}",) for number in range(8)], levels=("class",))
    chosen = [
        frozenset(name for name, split in sides(holdout_classes(manifest, 0.25, seed=seed)).items() if split == {"test"})
        for seed in range(200)
    ]
    counted = Counter(itertools.chain.from_iterable(chosen))
    assert len(set(chosen)) == 28  # every pair of 8 occurs
    assert all(25 <= counted[f"class {number}"] <= 75 for number in range(8))  # 50 expected, ± 4 standard deviations


# Bad input


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"fraction": 0}, "fraction=0 must lie between 0 and 1, because train and test both need classes; try 0.5"),
        ({"fraction": 1.0}, "fraction=1.0 must lie between"),
        ({"fraction": float("nan")}, "fraction=nan must lie between"),
        ({"level": "order"}, "level='order' is not a level of this manifest; choose from species, genus, family"),
        ({"shared": "order"}, "shared='order' is not a level of this manifest"),
        ({"level": "genus", "shared": "species"}, "shared='species' is finer than 'genus', .*choose from genus, family"),
        ({"level": "family"}, "there are 1 classes of 'family' outside distractors, and a split needs two"),
    ],
)
def test_what_cannot_be_is_refused(options, complaint):
    with pytest.raises(ValueError, match=complaint):
        holdout_classes(open_manifest(species_of([[2, 2]])), **options)


def test_a_class_in_two_groups_is_refused():
    manifest = open_manifest([("jay", "a", "x"), ("crow", "a", "x"), ("jay", "b", "x")])
    with pytest.raises(ValueError, match="species 'jay' stands under genus 'a' and 'b', and not in one group"):
        holdout_classes(manifest)
    assert holdout_classes(manifest, shared="family").splits.keys() == {"train", "test"}


def test_a_manifest_without_labels_or_classes_is_refused():
    manifest = Manifest.from_columns({"path": ["1.jpg"], "split": ["train"]}, root=".", levels=())
    with pytest.raises(ValueError, match="has no labels, and so no classes to split"):
        holdout_classes(manifest)
    with pytest.raises(ValueError, match="there are 0 classes of 'species'"):
        holdout_classes(open_manifest([("jay",)], splits=["distractor"], levels=("species",)))


def test_a_finer_class_under_two_of_the_level_may_not_be_on_both_sides():
    columns = {"path": list("abcd"), "split": ["train"] * 4, "label_f": list("xxyz"), "label_g": list("ghgh")}
    with pytest.raises(ValueError, match="f 'x' stands under two g, one for train and one for test"):
        holdout_classes(Manifest.from_columns(columns, root="."), 0.5, level="g")


# Folds


@given(TREES, st.integers(2, 5), st.integers(0, 3), st.randoms(use_true_random=False))
def test_every_fold_has_its_share_of_every_group_whatever_the_order_of_the_rows(families, folds, seed, random):
    classes = species_of(families) * 2  # two images of each class
    assume(len(classes) // 2 >= folds)
    found = class_folds(open_manifest(classes), folds, seed=seed)
    by_class = dict(zip([one[0] for one in classes], found.tolist(), strict=True))
    assert [by_class[one[0]] for one in classes] == found.tolist(), "a class is in one fold"
    for level in (1, 2, None):
        groups = {}
        for one in set(classes):
            groups.setdefault(None if level is None else one[level], []).append(by_class[one[0]])
        for members in groups.values():
            counts = [members.count(fold) for fold in range(folds)]
            assert max(counts) - min(counts) <= 1
    shuffled = random.sample(classes, len(classes))
    assert class_folds(open_manifest(shuffled), folds, seed=seed).tolist() == [by_class[one[0]] for one in shuffled]


def test_folds_of_a_coarser_level_keep_its_groups_together_and_rows_without_a_label_have_none():
    manifest = open_manifest([*species_of([[3, 2], [2, 4]]), (None, "g9", "f9")], splits=["train"] * 11 + ["distractor"])
    genera = class_folds(manifest, 2, level="genus")
    assert all(len(set(genera[manifest.labels[:, 1] == genus].tolist())) == 1 for genus in range(5))
    assert class_folds(manifest, 2)[-1] == -1
    assert len({tuple(class_folds(manifest, 3, seed=seed).tolist()) for seed in range(9)}) > 3


@pytest.mark.parametrize(("folds", "level", "complaint"), [(1, None, "from 2 to 4"), (5, None, "from 2 to 4"), (2, "x", "no")])
def test_folds_that_cannot_be_are_refused(folds, level, complaint):
    with pytest.raises(ValueError, match=complaint):
        class_folds(open_manifest(species_of([[2, 2]])), folds, level=level)
