import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from suprank.hierarchy.agreement import Comparison, compare_branches
from suprank.hierarchy.review import Branch, Create, Exclude, Mark, Move, Note, Rename, SetParent, Split, open_branch
from suprank.hierarchy.tree import Hierarchy
from tests.hierarchy.review.small_project import CASTLE, CHURCH, HUMAN, ID, LAKE, NATURAL, small_project

LEVELS = ("landmark", "supercategory", "kind")


def hierarchy(paths, **options):
    return Hierarchy.from_paths(paths, levels=LEVELS, **options)


def test_the_same_partition_under_other_names():
    first = hierarchy({"a": ["x"], "b": ["x"], "c": ["y"], "d": ["y"]})
    second = hierarchy({"a": ["u"], "b": ["u"], "c": ["v"], "d": ["v"]})
    found = Comparison(first, second).agreement()
    assert (found.rand.value, found.pairs.f1.value) == (1.0, 1.0)
    assert (found.aligned.kappa.value, found.aligned.percent.value) == (1.0, 1.0)
    assert (found.by_name.kappa.value, found.by_name.percent.value) == (0.0, 0.0)
    assert found.disagreements == {"label": 0, "name": 2, "parent": 0}


@pytest.fixture
def project(tmp_path):
    """anna splits forts off and excludes the heritage site; ben keeps both, moves the river, and says cathedral."""
    project = small_project(tmp_path / "project")
    anna, ben = open_branch(project, "anna"), open_branch(project, "ben")
    anna.apply(Split(CASTLE, (ID["fort"],), "fort"))
    anna.apply(Exclude((ID["heritage site"],), "not a kind of place"))
    anna.apply(SetParent((CHURCH, CASTLE), HUMAN))
    anna.apply(Note(CHURCH, "large ones too?"))
    ben.apply(Move((ID["river"],), CASTLE))
    ben.apply(Rename(CHURCH, "cathedral"))
    ben.apply(SetParent((CHURCH,), HUMAN))
    ben.apply(SetParent((CASTLE,), NATURAL))
    for one in (anna, ben):
        one.apply(Rename(LAKE, "lake"))
        one.apply(Mark((LAKE,), "done"))
    return project


def test_statistics_of_two_reviews_worked_by_hand(project):
    found = compare_branches(project, "anna", "ben").agreement()
    # Placed by both: church chapel castle fort lake river. anna: {church chapel} {castle} {fort} {lake river};
    # ben: {church chapel} {castle fort river} {lake}. anna's pairs: church-chapel, lake-river; ben's: church-chapel and three.
    assert (found.labels, found.placed, found.excluded, found.unknown) == (7, 6, 0, 0)
    assert (found.excluded_by_first, found.excluded_by_second) == (1, 0)
    assert (found.pairs.precision.value, found.pairs.recall.value) == (1 / 2, 1 / 4)
    # By items: church·chapel = 50·20; lake·river = 30·15; castle·fort + castle·river + fort·river = 400 + 600 + 150.
    assert found.pairs_by_items.precision.value == pytest.approx(1000 / 1450)
    assert found.pairs_by_items.recall.value == pytest.approx(1000 / 2150)
    # Aligned: church and cathedral are one; fort and river are elsewhere. p_o = 4/6, p_e = (2·2 + 1·3 + 1·0 + 2·1)/36 = 1/4.
    assert found.aligned.percent.value == pytest.approx(4 / 6)
    assert found.aligned.kappa.value == pytest.approx((4 / 6 - 9 / 36) / (1 - 9 / 36))
    # By name, church and chapel are apart too: p_o = 2/6, p_e = (1·3 + 2·1)/36.
    assert found.by_name.kappa.value == pytest.approx((2 / 6 - 5 / 36) / (1 - 5 / 36))
    # One of seven is excluded by one alone, none by both: p_o = 6/7 = p_e.
    assert (found.included.labels, found.included.kappa.value) == (7, pytest.approx(0))
    assert found.included.percent.value == pytest.approx(6 / 7)
    # Both have parents for church, chapel, castle and (anna's fort, split off castle before) not for fort: 2 of 3 agree.
    assert found.parents["kind"].labels == 3
    assert found.parents["kind"].percent.value == pytest.approx(2 / 3)
    assert found.done == 1  # the lake; the river is in another group of ben's, which is open


def test_matched_groups_are_sorted_by_disagreement(project):
    rows = compare_branches(project, "anna", "ben").agreement().groups
    assert [(row.first, row.second, row.common, row.only_first, row.only_second, row.apart) for row in rows] == [
        ("castle", "castle", 1, 0, 2, 25),
        ("lake", "lake", 1, 1, 0, 15),
        ("fort", None, 0, 1, 0, 10),
        ("church", "cathedral", 2, 0, 1, 5),
    ]


def test_disagreements_have_both_annotations_and_are_sorted_by_weight(project):
    comparison = compare_branches(project, "anna", "ben")
    assert [(one.kind, one.about, *one.descriptions, one.weight) for one in comparison.disagreements] == [
        ("label", "river", "lake", "castle", 15),
        ("label", "fort", "fort", "castle", 10),
        ("label", "heritage site", "excluded: not a kind of place", "cathedral", 5),
        ("name", "church | cathedral", "church", "cathedral", 75),
        ("parent", "castle", "human-made", "natural", 65),
    ]
    assert comparison.disagreements[3].first.note == "large ones too?"
    assert comparison.agreement().disagreements == {"label": 3, "name": 1, "parent": 1}


def test_a_parent_that_only_one_has_is_a_disagreement_and_no_parent_at_all_is_none(project):
    Branch(project, "anna").apply(SetParent((LAKE,), NATURAL))
    found = [one for one in compare_branches(project, "anna", "ben").disagreements if one.kind == "parent"]
    assert [(one.about, *one.descriptions) for one in found] == [
        ("castle", "human-made", "natural"),
        ("lake", "natural", "no parent"),
    ]
    created = Branch(project, "ben").apply(Create(2, "wet"))
    Branch(project, "ben").apply(SetParent((LAKE,), NATURAL))
    assert created.summary == "created 'wet'"
    assert len([one for one in compare_branches(project, "anna", "ben").disagreements if one.kind == "parent"]) == 1


def test_labels_that_one_branch_has_not_seen_are_counted_and_listed(project):
    with project.transaction() as db:
        db.execute("INSERT INTO label (id, key, text, weight, state) VALUES (8, 'moor', 'moor', 7, 'active')")
        db.execute("UPDATE label SET state = 'removed', reason = 'x' WHERE text = 'fort'")
    open_branch(project, "anna")
    comparison = compare_branches(project, "anna", "ben")
    found = comparison.agreement()
    assert (found.labels, found.unknown, found.placed) == (7, 1, 5)
    assert ("moor", "unsorted", "not looked at yet") in [(one.about, *one.descriptions) for one in comparison.disagreements]
    assert "fort" not in [one.about for one in comparison.disagreements]


def test_a_branch_is_not_compared_with_itself_nor_with_one_that_is_not_there(project):
    with pytest.raises(ValueError, match="compared with itself"):
        compare_branches(project, "anna", "anna")
    with pytest.raises(ValueError, match="there is no branch 'carl'; choose from anna, ben"):
        compare_branches(project, "anna", "carl")


@settings(max_examples=15, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 5)), min_size=1, max_size=12))
def test_label_disagreements_complement_the_aligned_agreement_and_swapping_the_branches_changes_nothing(rows):
    texts = [f"label {place}" for place in range(len(rows))]
    weights = {text: row[2] for text, row in zip(texts, rows, strict=True)}
    first, second = (
        hierarchy({text: [f"{name}{row[side]}"] for text, row in zip(texts, rows, strict=True)}, weights=weights)
        for side, name in ((0, "a"), (1, "b"))
    )
    found, swapped = Comparison(first, second).agreement(), Comparison(second, first).agreement()
    assert found.disagreements["label"] == round(len(rows) * (1 - found.aligned.percent.value))
    assert (found.rand, found.pairs.f1) == (swapped.rand, swapped.pairs.f1)
    whole = Comparison(first, first).agreement()
    assert (whole.aligned.percent.value, whole.disagreements) == (1.0, {"label": 0, "name": 0, "parent": 0})
