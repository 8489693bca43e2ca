"""Units: which classes tests and intervals take as independent, by hand, beside a union-find, and in words."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from suprank.evaluation.units import (
    MIN_UNITS,
    SHARED_POSITIVES,
    Units,
    classes_of_positives,
    connected_classes,
    query_classes,
    same_classes,
)

PLENTY = settings(deadline=None, max_examples=100)
LABEL_SETS = arrays(np.int64, array_shapes(min_dims=2, max_dims=2, max_side=12), elements=st.integers(-1, 15))
UNSEEN, SEEN = {"classes_seen": 0}, {"classes_seen": 3}

# Sizes as those of CUB's test birds: 100 species in 56 genera, 20 families and 6 orders, ten images of each species.
GENERA = [*[12, 6, 6, 5, 4], *[5, 4, 4, 4], 4, *[1] * 46]
FAMILIES = [33, 17, 8, 4, *[3] * 6, *[2] * 10]
ORDERS = [50, 30, 10, 4, 4, 2]


def birds(images=10):
    of_species = {"species": [1] * 100, "genus": GENERA, "family": FAMILIES, "order": ORDERS}
    return {level: np.repeat(np.repeat(np.arange(len(sizes)), sizes), images) for level, sizes in of_species.items()}


def chosen(classes, has_value=None):
    queries = len(next(iter(classes.values())))
    return Units.choose(classes, np.full(queries, True) if has_value is None else np.asarray(has_value, bool))


# The choice


def test_of_cubs_birds_the_genus_is_the_coarsest_level_with_enough_classes_by_weight():
    units = chosen(birds())
    assert (units.level, units.count) == ("genus", 56)
    assert units.effective == pytest.approx(100**2 / sum(n**2 for n in GENERA))
    assert str(units) == "genus: 56 classes, effectively 26"
    assert units.classes == {"species": 100, "genus": 56, "family": 20, "order": 6}
    assert 100**2 / sum(n**2 for n in FAMILIES) < 20 <= len(FAMILIES), "families are 20 by count, but not by weight"


def test_without_a_level_of_enough_classes_it_is_the_finest():
    units = chosen({"model": np.arange(38) // 2, "make": np.arange(38) // 4})
    assert (units.level, units.count, units.effective) == ("model", 19, 19)
    assert chosen({"model": np.arange(40) // 2, "make": np.arange(40) // 4}).count == 20


def test_the_effective_number_by_hand():
    # Classes of 3, 1 and 1 queries: 5²/(9 + 1 + 1).
    assert chosen({"class": np.array([0, 0, 0, 5, 9])}).effective == pytest.approx(25 / 11)
    assert chosen({"class": np.array([0, 0, 1, 1])}).effective == 2


def test_a_coarser_level_above_one_of_too_few_classes_may_still_be_the_unit():
    # Fine classes of which one holds most queries, but which are spread evenly over the coarse ones by another grouping.
    fine = np.array([0] * 100 + list(range(1, 21)))
    units = chosen({"fine": fine, "coarse": np.arange(120) % 30})
    assert units.level == "coarse"
    assert units.effective == 30


def test_queries_without_a_value_do_not_count():
    classes = {"species": np.arange(60) // 2, "genus": np.arange(60) // 3}
    assert chosen(classes).level == "genus"
    units = chosen(classes, np.arange(60) < 57)  # 19 genera are left
    assert (units.level, units.count) == ("species", 29)
    assert (units.of_query[57:] == -1).all()
    assert (units.of_query[:57] >= 0).all()
    nothing = chosen(classes, np.full(60, False))
    assert (nothing.count, nothing.effective, nothing.enough) == (0, 0.0, False)


def test_a_query_without_a_label_is_in_a_unit_with_its_finer_class_or_else_on_its_own():
    species = np.array([0, 0, 1, 1, 2, 2, -1, -1])
    genus = np.array([0, 0, 0, 0, -1, -1, -1, -1])
    padding = np.arange(100, 140)  # so that there are enough genera
    units = chosen({"species": np.append(species, padding), "genus": np.append(genus, padding)})
    assert units.level == "genus"
    first = units.of_query[:8]
    assert len(set(first[:4])) == 1, "one genus"
    assert len(set(first[4:6])) == 1, "one species without a genus"
    assert len(set(first)) == 4, "and the others are single"
    assert set(first).isdisjoint(units.of_query[8:])


def test_without_classes_each_query_is_a_unit():
    for classes in (None, {}):
        units = Units.choose(classes, np.array([True, False, True]))
        assert (units.level, units.count, units.effective) == ("", 2, 2.0)
        assert units.of_query.tolist() == [0, -1, 1]
        assert str(units) == "2 queries"


@PLENTY
@given(st.data(), st.integers(1, 40))
def test_neither_the_order_of_queries_nor_the_numbers_of_classes_change_the_units(data, queries):
    labels = arrays(np.int64, queries, elements=st.integers(-1, 30))
    classes = {level: data.draw(labels) for level in ("fine", "coarse")}
    has_value = data.draw(arrays(bool, queries))
    order = np.array(data.draw(st.permutations(range(queries))))
    renumbered = {level: np.where(own < 0, -1, 99 - 3 * own)[order] for level, own in classes.items()}
    one, other = chosen(classes, has_value), chosen(renumbered, has_value[order])
    assert (one.level, one.count) == (other.level, other.count)
    assert one.effective == pytest.approx(other.effective)
    assert same_classes(one.of_query[order], other.of_query)


# Label sets and positives


def components(sets):
    """Union-find, one pair of queries at a time."""
    parent = list(range(len(sets)))

    def root(one):
        while parent[one] != one:
            one = parent[one]
        return one

    for first in range(len(sets)):
        for second in range(first):
            if set(sets[first]) & set(sets[second]) - {-1}:
                parent[root(first)] = root(second)
    return np.array([root(one) if set(own) - {-1} else -1 for one, own in enumerate(sets)])


def test_queries_that_share_a_label_directly_or_through_others_are_one_class():
    sets = np.array([[1, 2], [2, 3], [3, -1], [4, 5], [-1, 5], [6, -1], [-1, -1]])
    assert connected_classes(sets).tolist() == [0, 0, 0, 1, 1, 2, -1]
    assert connected_classes(np.array([7, 7, -1])).tolist() == [7, 7, -1], "plain labels are classes as they are"


@PLENTY
@given(LABEL_SETS)
def test_classes_of_label_sets_are_those_of_a_union_find(sets):
    assert same_classes(connected_classes(sets), components(sets.tolist()))


def test_a_long_chain_of_shared_labels_is_one_class():
    order = np.random.default_rng(0).permutation(3000)
    chain = np.stack([order, order + 1], axis=1)
    assert set(connected_classes(chain).tolist()) == {0}


def test_queries_that_share_a_positive_are_one_class():
    classes = classes_of_positives([["a", "b"], ["c"], ["b", "d"], [], ["d"]])
    assert {level: own.tolist() for level, own in classes.items()} == {SHARED_POSITIVES: [0, 1, 0, -1, 0]}
    assert classes_of_positives([])[SHARED_POSITIVES].shape == (0,)
    assert "groups that share positives" in chosen(classes).sentence()


def test_classes_come_from_tensors_and_lists_and_are_checked():
    found = query_classes({"fine": torch.tensor([3, 4]), "coarse": [[0, 1], [1, -1]]}, 2)
    assert {level: own.tolist() for level, own in found.items()} == {"fine": [3, 4], "coarse": [0, 0]}
    with pytest.raises(ValueError, match=r"classes\['fine'\] have dtype int64 and shape \(3,\), but must be integers \[2\]"):
        query_classes({"fine": [1, 2, 3]}, 2)
    with pytest.raises(ValueError, match="dtype float64"):
        query_classes({"fine": [0.5, 1.0]}, 2)


# In words


def test_the_sentence_of_two_trained_models():
    assert chosen(birds()).sentence(["species"], [UNSEEN, UNSEEN]) == (
        "Measured on 100 species that neither model has seen, in 56 genera (unit: genus, effectively 26). Two trained models, "
        "one training each: another training of the same recipe may differ; compare several seeds of each."
    )


def test_classes_are_called_unseen_only_if_no_model_has_seen_one_of_them():
    units = chosen(birds())
    assert "species that the model has not seen, in" in units.sentence([], [UNSEEN])
    assert "species that no model has seen, in" in units.sentence([], [UNSEEN] * 6, seeds=True)
    for trainings in ([], [SEEN], [SEEN, UNSEEN], [{}, UNSEEN]):
        assert "seen" not in units.sentence([], trainings), trainings


def test_a_single_training_is_called_one_and_several_seeds_are_not():
    units = chosen(birds())
    assert "One trained model: another training of the same recipe may differ" in units.sentence([], [SEEN])
    assert "Two trained models, one training each" in units.sentence([], [SEEN, SEEN])
    assert "--seeds" not in units.sentence([], [SEEN] * 6, seeds=True)
    assert "--seeds" not in units.sentence([]), "embeddings of models whose training is not known"


def test_metrics_at_levels_above_the_unit_are_about_these_classes():
    units = chosen(birds())
    assert "Metrics with coarser levels are about these 20 families and 6 orders, not about new ones." in units.sentence(
        birds()
    )
    assert "these 6 orders, not" in units.sentence(["species", "order"])
    assert "coarser" not in units.sentence(["species", "genus"])


def test_too_few_units_are_said_to_be_too_few():
    units = chosen({"make": np.repeat(np.arange(MIN_UNITS - 1), 50)})
    assert not units.enough
    assert "on 7 classes of make (unit: make); 7 are too few for a test or an interval, which need 8" in units.sentence(
        ["make"]
    )
    assert chosen({"make": np.arange(MIN_UNITS)}).enough


def test_without_classes_the_sentence_says_that_queries_are_taken_as_independent():
    units = Units.choose(None, np.full(50, True))
    assert units.sentence() == "Measured on 50 queries, which are taken as independent of one another."
    assert units.summary() == {"level": "query", "count": 50, "effective": 50.0}


def test_the_summary_names_the_unit_and_its_numbers():
    assert chosen(birds()).summary() == {"level": "genus", "count": 56, "effective": 25.51}
    assert "on 30 classes of emoji (unit: emoji)" in chosen({"emoji": np.arange(30)}).sentence()
