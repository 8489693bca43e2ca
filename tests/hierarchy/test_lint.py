"""Lint: the flaws of the published H-GLDv2 labels, each check on a tree by hand, and the order of labels is of no matter."""

import csv
from itertools import combinations
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from suprank.hierarchy.lint import format_findings, lint_project, lint_tree, severity_counts
from suprank.hierarchy.lint.names import head, is_plural, singular
from suprank.hierarchy.recipe import LintRecipe, read_recipe
from suprank.hierarchy.tree import Hierarchy
from tests.hierarchy.branches import BIRDS, landmarks, plain, write_branch

REAL = Path(__file__).parents[2] / "../shared/data/hgldv2_index_labels.csv"
HGLDV2 = read_recipe("hgldv2")

# The 78 published labels (CC BY 4.0, Google Landmarks v2), with how many landmarks of the index have each; * is natural.
PUBLISHED = """church 12871, castle / fort 4603, mountain* 4054, museum 3877, parks* 3355, lake* 1847, bridge 1585, sports
venue 1517, house 1282, cemetery 1175, lighthouse 1041, island* 1020, monastery 855, city 846, river* 809,
palace 718, tower 700, theatre 651, sculpture 647, square 627, archeological site 609, skyscraper 570, library
551, rail transportation 536, garden* 461, government building 430, amusement park 395, buddhist temple 395, dam
387, shinto shrine 364, zoo 354, hotel 345, boat 330, harbor 314, mosque 300, waterfall* 299, road 276, canal*
252, ocean area_* 249, settlement 247, gate 239, cave* 234, synagogue 214, memorial 212, school 204, fountain
184, beach* 174, shopping 167, village 149, agricultural land* 148, market 125, prison 122, volcano* 119,
observatory 109, trail* 107, festival 104, tree* 87, hindu temple 86, windmill 85, mine 82, cable transportation
79, factory 78, ruins 78, air transportation 65, restaurant 63, stone* 57, bath 50, hospital 45, power plant 43,
aqueduct 42, swimming pool 41, wetland* 35, artwork 35, underground infrastructure 35, pyramid 27, cliff* 23,
cross 21, stairs 17"""


def published():
    """(name, kind, landmarks) of each published label."""
    for entry in " ".join(PUBLISHED.split()).split(", "):
        name, _, count = entry.rpartition(" ")
        yield name.rstrip("*").replace("_", " "), "natural" if name.endswith("*") else "human-made", int(count)


def lint(paths, rules=None, levels=("id", "group", "top"), weights=None, **options):
    return lint_tree(Hierarchy.from_paths(paths, levels=levels, weights=weights), rules or LintRecipe(), **options)


def codes_and_names(paths, *codes, **options):
    """(code, names) of the findings; only of these codes, where some are given."""
    return [(one.code, one.names) for one in lint(paths, **options) if not codes or one.code in codes]


def summaries(findings):
    return [(one.severity, one.code, one.names) for one in findings]


KNOWN = [
    ("error", "blanks", ("ocean area ",)),
    ("warning", "lone-plural", ("parks",)),
    ("warning", "slash", ("castle / fort",)),
    ("warning", "alike", ("air transportation", "rail transportation")),
    ("warning", "alike", ("cable transportation", "rail transportation")),
    ("warning", "overlap", ("artwork", "sculpture")),
    ("warning", "overlap", ("church", "monastery")),
    ("warning", "overlap", ("city", "settlement", "village")),
    ("warning", "imbalance", ("church", "stairs")),
    ("warning", "largest", ("church",)),
]


def test_the_flaws_of_the_published_labels_are_found():
    # Two rows for every 17 landmarks, as many as the smallest group has.
    rows = [(name, kind) for name, kind, count in published() for _ in range(2 * count // 17)]
    findings = lint({str(number): row for number, row in enumerate(rows)}, HGLDV2.lint, HGLDV2.levels, unit="rows")
    assert summaries(findings) == KNOWN
    assert "'church' has 1,514 rows and 'stairs' 2, 757 : 1" in "\n".join(format_findings(findings))
    assert format_findings(findings)[0] == "1 error, 9 warnings"


@pytest.mark.skipif(not REAL.is_file(), reason="needs ../shared/data, which is no part of the repository")
def test_so_are_those_of_the_published_file_itself():
    with REAL.open(newline="") as file:
        rows = {row["landmark_id"]: (row[HGLDV2.levels[1]], row[HGLDV2.levels[2]]) for row in csv.DictReader(file)}
    assert summaries(lint(rows, HGLDV2.lint, HGLDV2.levels)) == KNOWN


def test_a_clean_tree_has_no_findings(tmp_path):
    assert codes_and_names(BIRDS) == []
    assert lint_project(write_branch(plain(tmp_path / "p")), "final") == []


@pytest.mark.parametrize("name", [" park", "park ", "a  park", "a\u00a0park", "a\tpark", "pa\u200brk"])
def test_blanks_that_nobody_sees_are_errors(name):
    assert codes_and_names({"1": (name, "t"), "2": ("lake", "t")}) == [("blanks", (name,))]


def test_twins():
    assert codes_and_names({"1": ("Park", "t"), "2": ("park", "t")}, "case", "alike") == [("case", ("Park", "park"))]
    assert codes_and_names({"1": ("park", "t"), "2": ("parks", "t")}) == [("plural-twin", ("park", "parks"))]
    assert codes_and_names({"1": ("archeological site", "t"), "2": ("archaeological site", "t")}) == [
        ("alike", ("archaeological site", "archeological site"))
    ]
    assert codes_and_names({"1": ("train 7", "t"), "2": ("train 70", "t")}) == []  # numbered, not alike


def test_plurals_among_singulars_and_none_where_all_are():
    trees = {"1": ("parks", "t"), "2": ("lake", "t"), "3": ("ruins", "t")}
    assert codes_and_names(trees) == [("lone-plural", ("parks",))]
    assert codes_and_names({"1": ("parks", "t"), "2": ("lakes", "t"), "3": ("hills", "t")}) == []
    assert codes_and_names({"1": ("parks", "t"), "2": ("lakes", "t"), "3": ("hill", "t")}) == []  # who is the stranger?


def test_siblings_overlap_by_their_words_and_by_the_recipe():
    assert codes_and_names({"1": ("park", "t"), "2": ("amusement park", "t")}) == [("overlap", ("amusement park", "park"))]
    rules = LintRecipe(overlaps=(("church", "monastery"),))
    paths = {"1": ("stave church", "t"), "2": ("monasteries", "t"), "3": ("dam", "t")}
    assert ("overlap", ("monasteries", "stave church")) in codes_and_names(paths, rules=rules)
    apart = {"1": ("church", "s"), "2": ("monastery", "t"), "3": ("dam", "s"), "4": ("lake", "t")}
    assert codes_and_names(apart, rules=rules) == []  # not siblings


def test_labels_that_name_a_sibling_are_told():
    paths = {"stave church": ("monastery", "t"), "wooden church": ("monastery", "t"), "abbey": ("monastery", "t")}
    findings = lint({**paths, "dome": ("church", "t")}, LintRecipe(alike=1), strays=True)
    (overlap,) = [one for one in findings if one.code == "overlap"]
    assert "'monastery' holds 2 labels that say 'church', its sibling: 'stave church', 'wooden church'" in overlap.message


def test_the_shape_of_a_branch(tmp_path):
    project = plain(tmp_path / "p")
    paths = {**BIRDS, "wren": ("Troglodytidae",), "screamer": ("Corvidae", "waterfowl")}
    write_branch(project, paths, extra=[(1, "Paridae"), (2, "raptor")], open_groups=["Corvidae"])
    assert [entry for entry in summaries(lint_project(project, "final")) if entry[1] != "undone"] == [
        ("error", "empty", ("Paridae",)),
        ("error", "empty", ("raptor",)),
        ("error", "no-parent", ("Paridae",)),
        ("error", "no-parent", ("Troglodytidae",)),
        ("error", "two-parents", ("Corvidae", "songbird", "waterfowl")),
        ("warning", "one-child", ("songbird", "Corvidae")),
    ]
    (undone,) = [one for one in lint_project(project, "final") if one.code == "undone"]
    assert undone.message == "2 of 5 family are not marked done: 'Corvidae', 'Corvidae'"


def test_groups_of_one_label_are_told_where_others_have_several():
    several = {str(n): ("lake", "t") if n < 9 else ("hill", "t") if n < 15 else ("dam", "t") for n in range(16)}
    assert codes_and_names(several, "single") == [("single", ("dam",))]
    assert codes_and_names({"1": ("lake", "t"), "2": ("hill", "t"), "3": ("dam", "t")}, "single") == []


def test_labels_without_a_place_are_warnings(tmp_path):
    project = write_branch(plain(tmp_path / "p"), {text: path for text, path in BIRDS.items() if text != "wren"})
    assert ("warning", "unplaced", ("wren",)) in summaries(lint_project(project, "final"))


def test_a_verb_is_not_a_lone_plural():
    """Names of operators, as Unicode has them."""
    names = ("Divides", "Colon equals", "There exists", "Downwards arrow leftwards of upwards arrow", "Plus sign", "Dots")
    paths = {str(number): (name, "operator") for number, name in enumerate(names)}
    assert codes_and_names(paths, "lone-plural") == [("lone-plural", ("Dots",))]


def test_a_group_under_a_parent_of_its_own_level_is_an_error(tmp_path):
    project = write_branch(plain(tmp_path / "p"))
    with project.transaction() as db:
        (other,) = db.execute("SELECT id FROM \"group\" WHERE name = 'Corvidae'").fetchone()
        db.execute("UPDATE \"group\" SET parent = ? WHERE name = 'Troglodytidae'", (other,))
    assert ("error", "wrong-level", ("Troglodytidae", "Corvidae")) in summaries(lint_project(project, "final"))


def test_suggested_names_are_told(tmp_path):
    project = write_branch(plain(tmp_path / "p"))
    with project.transaction() as db:
        db.execute("UPDATE \"group\" SET named = 0 WHERE name = 'Anatidae'")
    assert summaries(lint_project(project, "final")) == [("warning", "unnamed", ("Anatidae",))]


def test_names_of_labels_are_left_alone_where_they_are_types_of_items(tmp_path):
    from suprank.hierarchy.cleaning import clean_labels

    project = landmarks(tmp_path / "p", {("train", 1): ["park "], ("train", 2): ["castle / fort"]})
    clean_labels(project, project.recipe.clean)
    write_branch(project, {"park ": ("park", "natural"), "castle / fort": ("castle", "human-made")})
    assert [one.code for one in lint_project(project, "final")] == ["one-child", "one-child"]


names = st.sampled_from(["park", "parks", "Park", "lake ", "castle / fort", "church", "stave church", ""])
rows = st.lists(
    st.tuples(st.integers(0, 6).map(str), names, st.sampled_from(["natural", "human-made", ""])), min_size=1, max_size=14
)


@settings(max_examples=40, deadline=None)
@given(rows.flatmap(lambda some: st.tuples(st.just(some), st.permutations(some))))
def test_the_order_of_labels_is_of_no_matter(both):
    first = {label: groups for label, *groups in both[0]}
    seen = [lint({label: first[label] for label, *_ in order}, HGLDV2.lint) for order in both]
    assert seen[0] == seen[1]
    assert severity_counts(seen[0])[0] == sum(one.severity == "error" for one in seen[0])


def test_a_little_english():
    words = "parks", "ruins", "cross", "campus", "basis", "stairs", "churches", "bus", "divides", "leftwards"
    assert list(filter(is_plural, words)) == ["parks", "churches"]
    singulars = {"parks": "park", "galleries": "gallery", "churches": "church", "boxes": "box", "houses": "house"}
    assert {word: singular(word) for word in singulars} == singulars
    heads = {"church building (1172–1954)": "building", "Quarter of Hamburg": "quarter", "": "", "of": "of"}
    assert {name: head(name) for name in heads} == heads


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.text("abs /", min_size=1, max_size=7).filter(str.strip), min_size=2, max_size=8, unique=True),
    st.sampled_from([0.0, 0.6, 0.85]),
)
def test_pairs_that_are_passed_over_would_not_be_findings(names, alike):
    paths, rules = {f"{number}": (name,) for number, name in enumerate(names)}, LintRecipe(alike=alike)
    chosen = codes_and_names(paths, rules=rules, levels=("id", "group"))
    with patch("suprank.hierarchy.lint.names._candidate_pairs", lambda keys, sets, alike: combinations(range(len(keys)), 2)):
        assert codes_and_names(paths, rules=rules, levels=("id", "group")) == chosen


def test_labels_of_one_group_may_be_alike_but_not_singular_and_plural(tmp_path):
    labels = dict.fromkeys(["stone bridge", "stone bridges", "bridge", "old stone bridge", "stane bridge"], 1)
    project = plain(tmp_path / "p", labels, ("label", "group"))
    write_branch(project, dict.fromkeys(labels, ("crossing",)))
    about_labels = [one for one in lint_project(project, "final") if one.level == "label" and one.code != "lone-plural"]
    assert summaries(about_labels) == [("warning", "plural-twin", ("stone bridge", "stone bridges"))]
