"""The list of groups, search, excluded labels, the tree, and the history."""

import re

import pytest

from suprank.hierarchy import Recipe
from suprank.hierarchy.review import Create, Exclude, Mark, Move, Rename, SetParent, open_branch
from suprank.hierarchy.review.instructions import write_instructions
from tests.hierarchy.review.small_project import CASTLE, CHURCH, HUMAN, ID, LAKE, NATURAL, small_project, tree, two_branches
from tests.hierarchy.review.web.annotator import Annotator, selected
from tests.hierarchy.review.web.large_project import large_project


def names(page):
    """The groups of a table, in its order."""
    return [part.split(">")[1].split("<")[0] for part in page.split("<a data-open")[1:]]


# The list of groups


def test_the_list_shows_progress_and_sorts_and_filters(anna):
    anna.branch.apply(Rename(CASTLE, "castle"))
    anna.branch.apply(Mark((CASTLE,), "done"))
    anna.branch.apply(SetParent((LAKE,), NATURAL))
    anna.branch.apply(Exclude((ID["heritage site"],), "too vague"))
    page = anna.get("/")
    assert "1 of 3 groups done · 2 of 6 labels · <a" in page
    assert "1 excluded" in page
    assert names(page) == ["castle", "church", "lake"]  # all of two labels: by name
    assert names(anna.get("/?sort=items")) == ["church", "castle", "lake"]
    assert names(anna.get("/?sort=state")) == ["church", "lake", "castle"]
    assert names(anna.get("/?show=done")) == ["castle"]
    assert names(anna.get("/?show=open")) == ["church", "lake"]
    assert names(anna.get("/?show=unnamed")) == ["church", "lake"]
    assert names(anna.get(f"/?under={NATURAL}")) == ["lake"]
    assert names(anna.get("/?under=none")) == ["castle", "church"]
    assert names(anna.get("/?q=A")) == ["castle", "lake"]
    assert "No group matches" in anna.get("/?q=nothing")


def test_the_start_page_says_what_the_job_is_in_two_lines_or_in_the_projects_own_words(project, anna):
    def job():
        return re.findall(r"<p>([^<]*)</p>", anna.get("/").split('<section class="job"')[1].split("<details")[0])

    assert [line[:29] for line in job()] == ["Sort the labels into groups: ", "Open a group, split off, move"]
    assert job()[1].endswith("accept or correct its name, choose its kind, and mark it done.")
    write_instructions(project, " Group by use.\n\nAsk <Carl> if in doubt.\n")
    assert job() == ["Group by use.", "Ask &lt;Carl&gt; if in doubt."]
    write_instructions(project, " ")
    assert len(job()) == 2
    with pytest.raises(ValueError, match="2,001 characters, and the start page has room for 2,000"):
        write_instructions(project, "x" * 2001)


def test_the_start_page_shows_a_good_group_and_how_far_the_others_are(project, anna):
    page = anna.get("/")
    assert "annotators" not in page
    example = page.split('<ul class="example">')[1].split("</ul>")[0]
    assert re.findall("<span>(.*?)</span>", example) == ["church", "chapel", "heritage site"]  # the only group of three labels
    assert "church</a>, whose labels are more alike than those of other groups" in page
    ben = open_branch(project, "ben")
    assert "<strong>ben</strong> 0 of 3 groups done <span" in anna.get("/")
    assert "nothing yet</span>" in anna.page
    for branch, group in ((ben, LAKE), (ben, CASTLE), (anna.branch, CHURCH)):
        branch.apply(Rename(group, "x"))
        branch.apply(Mark((group,), "done"))
        branch.apply(Rename(group, f"group {group}"))
    page = anna.get("/")
    assert "<strong>ben</strong> 2 of 3 groups done <span" in page
    assert "<strong>anna</strong> 1 of 3 groups done" in page
    assert "group 3</a>, which you marked done" in page


def test_pages_of_the_list_keep_sort_and_filter(tmp_path):
    project = large_project(tmp_path / "p", labels=120, clusters=60, largest=5)
    anna = Annotator(project, open_branch(project, "anna"))
    first, second = anna.get("/?sort=tightest&show=open"), anna.get("/?sort=tightest&show=open&offset=50")
    assert 'href="/anna/?offset=50&amp;sort=tightest&amp;show=open"' in first
    assert (len(names(first)), len(names(second))) == (50, 10)
    with project.snapshot() as db:
        rows = db.execute("SELECT names_json FROM cluster ORDER BY tightness DESC").fetchall()
    assert [name.split()[1] for name in names(first) + names(second)] == [row[0].split('"')[1].split()[1] for row in rows]


def test_actions_on_several_groups(anna):
    anna.get("/")
    anna.press("parent", ["castle", "church"], parent=HUMAN)
    assert tree(anna.branch)[0]["castle"][0] == tree(anna.branch)[0]["church"][0] == "human-made"
    page = anna.press("done", ["castle", "church"], status=400)
    assert "is only a suggested name" in page
    assert selected(page) == ["castle", "church"]
    page = anna.press("merge", ["castle"], into="churches of", status=400)
    assert 'value="churches of"' in page
    anna.press(f"merge:#{CHURCH}")
    assert tree(anna.branch)[0]["church"][1] == ["castle", "chapel", "church", "fort", "heritage site"]
    page = anna.press("merge", status=400, into="x")
    assert "Select at least one group" in page


def test_a_group_that_changed_is_refused_and_marked(project, anna):
    old = anna.get("/")
    Annotator(project, anna.branch).branch.apply(Rename(CASTLE, "fortress"))
    before = tree(anna.branch)
    page = anna.press("merge", ["castle", "lake"], page=old, into="church", status=409)
    assert tree(anna.branch) == before
    assert selected(page) == ["fortress", "lake"]
    assert page.count("changed in the meantime</span>") == 1
    assert 'value="church"' in page
    anna.press("merge")
    assert list(tree(anna.branch)[0]) == ["human-made", "natural", "church"]


def test_labels_that_cleaning_adds_or_removes_are_synced_by_a_click(anna):
    assert ">update</button>" not in anna.get("/")
    with anna.branch.project.transaction() as db:
        db.execute("INSERT INTO label (id, key, text, weight, state) VALUES (99, 'pond', 'pond', 1, 'active')")
        db.execute("UPDATE label SET state = 'removed', reason = 'vague' WHERE id = ?", (ID["heritage site"],))
    assert "added or removed 2 labels" in anna.get("/")
    old = anna.page
    for _ in range(2):  # a second click finds nothing more
        page = anna.press("sync", page=old)
    assert ">update</button>" not in page
    groups, excluded = tree(anna.branch)
    assert groups["unsorted"] == (None, ["pond"])
    assert excluded == {"heritage site": "removed by cleaning: vague"}
    assert [event.action for event in anna.branch.log()] == ["sync", "start"]
    assert anna.branch.problems() == []


@pytest.mark.parametrize(("path", "button"), [("/", "parent"), ("/tree", "put")])
def test_a_refused_form_keeps_selected_groups_that_moved_to_another_page(tmp_path, path, button):
    project = large_project(tmp_path / "p", labels=900, clusters=300, largest=3)
    anna = Annotator(project, open_branch(project, "anna"))
    old = anna.get(f"{path}?q=church")
    first, second = names(old)[:2]
    numbers = {row: one for one, row in _groups(anna).items()}
    anna.branch.apply(Rename(numbers[first], "elsewhere"))  # the filter passes it over now
    page = anna.press(button, [first, second], page=old, parent=HUMAN, status=409)
    assert selected(page) == [second]
    assert f'<option value="{HUMAN}" selected>' in page
    anna.press(button)
    assert tree(anna.branch)[0]["elsewhere"][0] == tree(anna.branch)[0][second][0] == "human-made"


def test_an_empty_group_can_be_created_and_a_taken_name_stays_in_the_field(anna):
    anna.get("/")
    anna.press("create", name="new one")
    assert tree(anna.branch)[0]["new one"] == (None, [])
    page = anna.press("create", name="New One", status=400)
    assert 'value="New One"' in page
    assert names(anna.get("/?show=empty")) == ["new one"]


# Search


def test_a_search_finds_labels_in_all_groups_and_excluded_ones(anna):
    anna.branch.apply(Exclude((ID["chapel"],), "<i>reason"))
    page = anna.get("/search?q=CH")
    assert "2 labels in 1 group" in page
    assert "&lt;i&gt;reason" in page
    assert "7 labels in 3 groups" in anna.get("/search")
    assert "No label contains all of these words" in anna.get("/search?q=church+castle")
    assert "1 label in 1 group" in anna.get("/search?q=site+heri")


def test_all_search_results_go_into_one_group_in_two_clicks(tmp_path):
    project = large_project(tmp_path / "p", labels=900, clusters=20, largest=300)
    anna = Annotator(project, open_branch(project, "anna"))
    page = anna.get("/search?q=church")
    with project.snapshot() as db:
        count = db.execute("SELECT count(*) FROM label WHERE text LIKE '%church%'").fetchone()[0]
    assert count > 300
    assert f"all {count} results, not only this page" in page
    page = anna.press("split", all=1, split_name="church")
    assert f"Gathered {count} labels as &#39;church&#39;" in page
    groups = tree(anna.branch)[0]
    assert len(groups["church"][1]) == count
    assert all("church" in text for text in groups["church"][1])
    assert sum(len(labels) for _, labels in groups.values()) == 900
    anna.press("undo")
    assert "church" not in tree(anna.branch)[0]
    anna.get("/search?q=old+church")
    anna.press("move", all=1, to="lake 2")
    assert anna.branch.problems() == []


def test_an_action_on_search_results_is_refused_if_a_group_changed(anna):
    old = anna.get("/search?q=c")
    anna.branch.apply(Move((ID["fort"],), LAKE))
    page = anna.press("exclude", ["castle", "church"], page=old, reason="odd", status=409)
    assert selected(page) == ["castle", "church"]
    assert 'value="odd"' in page
    anna.press("exclude")
    assert tree(anna.branch)[1] == {"castle": "odd", "church": "odd"}


def test_labels_selected_on_other_pages_are_sent_in_one_field(anna):
    anna.get("/search?q=church")
    anna.press("move", ["church"], labels=f"{ID['castle']} {ID['fort']}", to="lake", status=409)  # theirs was not seen
    anna.get("/search")
    anna.press("move", ["church"], labels=f"{ID['castle']} {ID['fort']}", to="lake")
    assert tree(anna.branch)[0]["lake"][1] == ["castle", "church", "fort", "lake", "river"]


def test_an_excluded_label_that_somebody_restored_is_shown_and_no_longer_selected(anna):
    anna.branch.apply(Exclude((ID["chapel"], ID["fort"]), "why"))
    old = anna.get("/excluded")
    anna.branch.apply(Move((ID["fort"],), LAKE))
    page = anna.press("move", ["chapel", "fort"], page=old, to="castle", status=409)
    assert f'fort → <a href="/anna/group/{LAKE}">lake</a>' in page
    assert selected(page) == ["chapel"]
    anna.press("move")
    assert "fort" in tree(anna.branch)[0]["lake"][1]
    assert "chapel" in tree(anna.branch)[0]["castle"][1]


def test_excluded_labels_can_be_filtered_and_gathered(anna):
    assert "Nothing is excluded." in anna.get("/excluded")
    anna.branch.apply(Exclude((ID["chapel"], ID["fort"]), "why"))
    assert "fort</label>" not in anna.get("/excluded?q=chap")
    anna.press("split", ["chapel"], split_name="back again")
    assert tree(anna.branch)[0]["back again"] == (None, ["chapel"])


# The tree


def test_groups_get_parents_and_parents_are_created_renamed_merged_and_deleted(anna):
    page = anna.get("/tree")
    assert "no parent yet" in page
    anna.press("put", ["castle", "church"], parent=HUMAN)
    page = anna.press("put", ["lake"], parent=NATURAL)
    assert names(page) == ["church", "castle", "lake"]
    anna.press("create", name="mixed")
    number = next(one for one, row in _groups(anna).items() if row == "mixed")
    anna.get(f"/parent/{number}")
    anna.press("rename", name="Mixed kinds")
    anna.press("note", note="a note")
    assert "a note</textarea>" in anna.page
    page = anna.press("merge", into="natur", status=400)
    assert f'form="merge" name="act" value="merge:#{NATURAL}"' in page
    page = anna.press("rename", name="NATURAL", status=400)
    assert 'value="NATURAL"' in page
    anna.press(f"merge:#{NATURAL}")
    assert "Mixed kinds" not in tree(anna.branch)[0]
    anna.get(f"/parent/{HUMAN}")
    anna.press("put", ["castle"], parent=NATURAL)
    assert tree(anna.branch)[0]["castle"][0] == "natural"
    anna.press("merge", into="natural")
    assert "human-made" not in tree(anna.branch)[0]
    assert tree(anna.branch)[0]["church"][0] == "natural"
    anna.get("/tree")
    anna.press("create", name="spare")
    number = next(one for one, row in _groups(anna).items() if row == "spare")
    anna.get(f"/parent/{number}")
    anna.press("delete")
    assert "spare" not in tree(anna.branch)[0]
    assert anna.branch.problems() == []


def _groups(who):
    with who.branch.project.snapshot() as db:
        return dict(db.execute('SELECT id, name FROM "group" WHERE branch = ?', (who.branch.id,)).fetchall())


def test_a_tree_of_four_levels(tmp_path):
    project = small_project(tmp_path / "p", Recipe(name="deep", title="deep", levels=("a", "b", "c", "d", "e"), top=("all",)))
    anna = Annotator(project, open_branch(project, "anna"))
    for level, name in ((1, "worship"), (2, "built")):
        anna.get(f"/tree?level={level}")
        anna.press("create", name=name)
    anna.get("/tree")
    with_parent = {name: number for number, name in _groups(anna).items()}
    anna.press("put", ["church"], parent=with_parent["worship"])
    anna.get("/tree?level=2")
    anna.press("put", ["worship"], parent=with_parent["built"])
    anna.get(f"/parent/{with_parent['built']}")
    anna.press("parent", parent=with_parent["all"])
    found = tree(anna.branch)[0]
    assert (found["church"][0], found["worship"][0], found["built"][0]) == ("worship", "built", "all")
    assert "1 group · 3 labels · 75 items" in anna.get(f"/parent/{with_parent['all']}")


def test_refusals_of_the_tree(anna):
    anna.get("/tree")
    assert "Select at least one group" in anna.press("put", status=400, parent=HUMAN)
    assert "Choose the group to put it under" in anna.press("put", ["castle"], status=400, parent="")
    page = anna.press("create", name="Natural", status=400)
    assert 'value="Natural"' in page
    old = anna.get("/tree")
    anna.branch.apply(Rename(CASTLE, "fortress"))
    page = anna.press("put", ["castle"], page=old, parent=HUMAN, status=409)
    assert selected(page) == ["fortress"]
    assert "changed in the meantime" in page
    anna.get(f"/parent/{HUMAN}")
    anna.branch.apply(Create(2, "third"))
    anna.press("delete")
    page = anna.send(f"/anna/parent/{HUMAN}", [("act", "rename"), ("name", "too late"), ("seen", f"{HUMAN}:1")], status=409)
    assert "This group no longer exists" in page
    assert 'value="too late"' in page


# History, undo and redo


def test_undo_and_redo_say_what_they_do_and_return_to_the_page(anna):
    anna.get(f"/group/{CHURCH}?sort=text")
    anna.press("split", ["chapel"], split_name="chapel")
    assert "undo: split &#39;chapel&#39; (1 label) off &#39;church&#39;" in anna.page
    page = anna.press("undo")
    assert "Undid: split" in page
    assert anna.last.headers["location"].startswith(f"/anna/group/{CHURCH}?sort=text&did=")
    assert "redo: split" in page
    assert "chapel" not in tree(anna.branch)[0]
    anna.press("redo")
    assert "chapel" in tree(anna.branch)[0]


def test_each_event_can_be_undone_unless_a_later_one_depends_on_it(anna):
    first = anna.branch.apply(Rename(LAKE, "water"))
    second = anna.branch.apply(Move((ID["fort"],), CHURCH))
    page = anna.get("/history")
    assert page.count('aria-label="undo ') == 2
    back = anna.branch.apply(Rename(LAKE, "waters"))
    anna.get("/history")
    page = anna.send("/anna/undo", [("seq", str(first.seq)), ("token", "t")], status=400)
    assert f"Event {back.seq} came later and depends on it" in page
    anna.send("/anna/undo", [("seq", str(second.seq)), ("token", "u"), ("back", "/anna/history")])
    assert "fort" in tree(anna.branch)[0]["castle"][1]


@pytest.mark.parametrize("back", ["//evil.example/", "https://evil.example", "/ben/", "/anna/../ben/", "/anna/group/99", ""])
def test_undo_returns_only_to_our_own_pages(anna, back):
    anna.branch.apply(Rename(LAKE, "water"))
    anna.send("/anna/undo", [("token", "t"), ("back", back)])
    assert anna.last.headers["location"].startswith("/anna/?did=")


def test_undoing_twice_and_redoing_something_else_are_refused(anna):
    anna.branch.apply(Rename(LAKE, "water"))
    old = anna.get("/")
    anna.press("undo", page=old)
    before = tree(anna.branch)
    anna.press("undo", page=old)  # the same click
    assert tree(anna.branch) == before
    other = anna.send("/anna/undo", [("seq", "2"), ("token", "other")], status=400)
    assert "is undone already" in other
    old = anna.get("/")
    anna.branch.redo()
    anna.branch.apply(Rename(LAKE, "waters"))
    assert "nothing was redone" in anna.press("redo", page=old, status=409)


# Adjudication


def test_doubtful_labels_are_listed_with_what_the_other_says_and_decided_by_moving_them_or_marking_groups_done(tmp_path):
    project = two_branches(tmp_path / "p", weights={"river": 9})
    final = Annotator(project, open_branch(project, "final", source="anna", against="ben"))

    def tags(page):
        return re.findall(r'<span class="tag doubt"[^>]*>(.*?)</span>', page)

    assert "3 doubtful labels</a>: anna against ben" in final.get("/")
    assert "ben: called &#39;cathedral&#39;" in final.page
    assert tags(final.get("/doubtful")) == ["ben: stream", "ben: castle", "anna: excluded: vague"]
    assert tags(final.get("/doubtful?q=castle")) == ["ben: castle"]  # not what is in castle
    final.press("move", ["fort"], to="castle")
    assert tree(final.branch)[0]["castle"] == ("made", ["castle", "fort", "heritage"])
    (castle,) = [number for number, name in re.findall(r'/group/(\d+)">(\w+)<', final.get("/doubtful")) if name == "castle"][:1]
    assert tags(final.get(f"/group/{castle}")) == ["ben: castle", "anna: excluded: vague"]
    final.press("done")
    assert tags(final.get("/doubtful")) == ["ben: stream"]
    final.press("exclude", ["river"], reason="too long")
    assert "Nothing is doubtful" in final.get("/doubtful")
    assert "Nothing is doubtful any more (anna against ben)" in final.get("/")
    anna = Annotator(project, open_branch(project, "anna"))
    assert "doubtful" not in anna.get("/")
