from suprank.hierarchy.agreement.disagreements import match_groups
from suprank.hierarchy.tree import Hierarchy


def hierarchy(paths, weights=None, levels=("label", "group")):
    return Hierarchy.from_paths(paths, levels=levels, weights=weights)


def names(first, second):
    pairs = match_groups(first, second)
    return {first.groups[one].name: second.groups[two].name for one, two in pairs.items()}


def test_groups_with_the_same_name_are_partners_whatever_is_in_them():
    first = hierarchy({"nave": ["Church "], "keep": ["castle"], "moat": ["castle"]})
    second = hierarchy({"nave": ["castle"], "keep": ["church"], "moat": ["church"]})
    assert names(first, second) == {"Church ": "church", "castle": "castle"}


def test_other_groups_are_paired_by_the_largest_total_weight_in_common():
    # x and u have 6 in common, x and v 5, y and u 5: x-u first would leave 6 + 0, while x-v and y-u have 10.
    first = hierarchy({"a": ["x"], "b": ["x"], "c": ["y"]}, {"a": 6, "b": 5, "c": 5})
    second = hierarchy({"a": ["u"], "b": ["v"], "c": ["u"]}, {"a": 6, "b": 5, "c": 5})
    assert names(first, second) == {"x": "v", "y": "u"}


def test_items_outweigh_labels_and_a_label_without_items_counts_as_one():
    texts = ["a", "b", "c"]
    first = hierarchy({text: ["x"] for text in texts}, {"a": 0, "b": 0, "c": 9})
    second = hierarchy({"a": ["u"], "b": ["u"], "c": ["v"]}, {"a": 0, "b": 0, "c": 9})
    assert names(first, second) == {"x": "v"}
    assert names(hierarchy({"a": ["x"]}, {"a": 0}), hierarchy({"a": ["u"]}, {"a": 0})) == {"x": "u"}


def test_groups_with_nothing_in_common_have_no_partner():
    assert match_groups(hierarchy({"a": ["x"], "b": None}), hierarchy({"a": None, "b": ["y"]})) == {}


def test_coarser_groups_are_partners_by_name_only_and_levels_do_not_mix():
    levels = ("label", "group", "kind")
    first = hierarchy({"a": ["x", "made"], "b": ["made", "natural"]}, levels=levels)
    second = hierarchy({"a": ["x", "built"], "b": ["made", "Natural"]}, levels=levels)
    assert names(first, second) == {"x": "x", "made": "made", "natural": "Natural"}
    pairs = match_groups(first, second)
    assert all(first.groups[one].level == second.groups[two].level for one, two in pairs.items())
