"""The page of a group: every action on its labels and on itself, and refusals that lose nothing."""

import numpy as np
import pytest

from suprank.hierarchy import Recipe
from suprank.hierarchy.review import Exclude, Move, Rename, Split, open_branch
from suprank.hierarchy.review.web.suggestions import Suggestions
from tests.hierarchy.review.small_project import CASTLE, CHURCH, HUMAN, ID, LAKE, NATURAL, small_project, tree
from tests.hierarchy.review.web.annotator import Annotator, selected
from tests.hierarchy.review.web.large_project import large_project


def groups(who):
    return tree(who.branch)[0]


def test_labels_are_listed_with_their_numbers(reader):
    page = reader.get(f"/group/{CHURCH}")
    assert "3 labels · 75 items · tightness 0.50 · stability 0.90 · 0 of 3 groups done" in page
    assert page.index(">church</label>") < page.index(">chapel</label>") < page.index(">heritage site</label>")  # by items
    assert "suggested" in page
    page = reader.get(f"/group/{CHURCH}?sort=text&q=CH")
    assert page.index(">chapel</label>") < page.index(">church</label>")
    assert "heritage site</label>" not in page
    assert "2 of 3 labels contain" in page


def test_split_move_exclude_and_restore(anna):
    anna.get(f"/group/{CHURCH}")
    page = anna.press("split", ["chapel"], split_name="Chapel ")
    assert "Split &#39;Chapel &#39; (1 label) off &#39;church&#39;." in page
    assert groups(anna)["Chapel "] == (None, ["chapel"])
    anna.press("move", ["heritage site"], to="CASTLE")
    assert groups(anna)["castle"] == (None, ["castle", "fort", "heritage site"])
    anna.get(f"/group/{CASTLE}")
    anna.press("exclude", ["heritage site"], reason="not a kind")
    assert tree(anna.branch)[1] == {"heritage site": "not a kind"}
    page = anna.get("/excluded")
    assert "not a kind" in page
    anna.press("move", ["heritage site"], to=f"#{LAKE}")
    assert groups(anna)["lake"] == (None, ["heritage site", "lake", "river"])
    assert anna.branch.problems() == []


def test_a_group_that_is_emptied_leads_to_the_list(anna):
    anna.get(f"/group/{CASTLE}")
    page = anna.press("move", ["castle", "fort"], to="church")
    assert "deleted &#39;castle&#39;, now empty" in page
    assert "next open group" in page
    assert "castle" not in groups(anna)


def test_the_enter_key_without_scripts_submits_the_only_filled_field(anna):
    anna.get(f"/group/{CHURCH}")
    anna.press("", ["chapel"], to="lake")
    assert "chapel" in groups(anna)["lake"][1]
    anna.get(f"/group/{CHURCH}")
    page = anna.press("", ["church"], to="lake", reason="x", status=400)
    assert "Use one of the buttons" in page
    assert selected(page) == ["church"]


def test_name_parent_note_and_done(anna):
    anna.get(f"/group/{CHURCH}")
    page = anna.press("done", status=400)
    assert "is only a suggested name" in page
    page = anna.press("next")  # the first offer: accept the name, mark done, go to the next
    assert "<h1" in page
    assert "castle" in page.split("<h1")[1].split("</h1>")[0]
    anna.press("rename", name="castle / fort")
    anna.press("parent", parent=HUMAN)
    anna.press("note", note="two\r\nlines")
    page = anna.press("next")
    assert "lake" in page.split("<h1")[1].split("</h1>")[0]
    assert groups(anna)["castle / fort"] == ("human-made", ["castle", "fort"])
    assert "2 of 3 groups done" in page
    page = anna.get(f"/group/{CASTLE}")
    assert "two\r\nlines</textarea>" in page
    anna.press("open")
    anna.press("parent", parent="none")
    assert groups(anna)["castle / fort"][0] is None
    assert "1 of 3 groups done" in anna.get("/")


def test_a_suggested_name_is_one_click(anna):
    page = anna.get(f"/group/{CHURCH}")
    assert 'value="rename:chapel"' in page
    anna.press("rename:chapel")
    assert "chapel" in groups(anna)


def test_groups_merge_by_name_and_an_empty_group_can_be_deleted(anna):
    anna.get(f"/group/{CASTLE}")
    page = anna.press("merge", into="nowhere", status=400)
    assert "There is no group called &#39;nowhere&#39;" in page
    assert 'value="nowhere"' in page
    page = anna.press("merge", into="a lake", status=400)
    assert f'value="merge:#{LAKE}"' in page  # of a similar name
    anna.get(f"/group/{CASTLE}")
    anna.press("merge", into="Lake")
    assert groups(anna)["lake"] == (None, ["castle", "fort", "lake", "river"])
    anna.get("/")
    anna.press("create", name="empty one")
    number = next(one.split('"')[0] for one in anna.page.split("/group/") if ">empty one<" in one)
    anna.get(f"/group/{number}")
    anna.press("delete")
    assert "empty one" not in groups(anna)


def test_a_taken_name_offers_to_merge_or_to_move(anna):
    anna.get(f"/group/{CASTLE}")
    page = anna.press("rename", name="Church", status=400)
    assert "There is already a group called &#39;church&#39;" in page
    assert 'value="Church"' in page
    anna.press(f"merge:#{CHURCH}")
    assert "castle" in groups(anna)["church"][1]
    anna.get(f"/group/{LAKE}")
    page = anna.press("split", ["river"], split_name="CHURCH", status=400)
    assert selected(page) == ["river"]
    anna.press(f"move:#{CHURCH}")
    assert "river" in groups(anna)["church"][1]


def test_an_unknown_target_offers_to_create_it(anna):
    anna.get(f"/group/{CHURCH}")
    page = anna.press("move", ["heritage site"], to="site", status=400)
    assert selected(page) == ["heritage site"]
    anna.press("split:site")
    assert groups(anna)["site"] == (None, ["heritage site"])


@pytest.mark.parametrize(
    ("button", "labels", "fields", "message"),
    [
        ("split", [], {"split_name": "x"}, "Select at least one label"),
        ("split", ["chapel"], {"split_name": " "}, "A name must have 1 to 200 characters"),
        ("move", ["chapel"], {"to": ""}, "Enter the group to move"),
        ("exclude", ["chapel"], {"reason": ""}, "Give a reason"),
        ("rename", [], {"name": "a\u0007b"}, "on one line"),
        ("note", [], {"note": "x" * 2001}, "at most 2,000 are allowed"),
        ("merge", [], {"into": ""}, "Enter the group to merge"),
    ],
)
def test_a_refused_form_keeps_its_selection_and_text(reader, button, labels, fields, message):
    before = tree(reader.branch)
    reader.get(f"/group/{CHURCH}")
    page = reader.press(button, labels, status=400, **fields)
    assert message in page
    assert selected(page) == sorted(labels)
    assert tree(reader.branch) == before
    typed = next(iter(fields.values()))
    assert f'value="{typed}"' in page or f">{typed}</textarea>" in page


def test_a_repeated_click_is_one_action_and_another_action_from_an_old_page_is_not_swallowed(anna):
    old = anna.get(f"/group/{CHURCH}")
    for _ in range(2):
        anna.press("move", ["chapel"], to="lake", page=old)
    assert [event.action for event in anna.branch.log()] == ["move", "start"]
    page = anna.press("move", ["heritage site"], to="lake", page=old, status=409)  # by the button "back"
    assert "changed in the meantime" in page


def test_repeating_a_click_that_was_undone_is_not_reported_as_done(anna):
    old = anna.get(f"/group/{CHURCH}")
    anna.press("move", ["chapel"], to="lake", page=old)
    undone = anna.page
    anna.press("undo", page=undone)
    page = anna.press("move", ["chapel"], to="lake", page=old, status=409)  # by the button "back", twice
    assert "undone since; nothing was saved" in page
    assert selected(page) == ["chapel"]
    assert 'value="lake"' in page
    anna.press("move")
    assert "chapel" in groups(anna)["lake"][1]
    again = anna.get(f"/group/{CHURCH}")
    anna.press("undo", page=again)
    anna.press("redo")
    assert "undone since" in anna.press("undo", page=again, status=409)
    assert "chapel" in groups(anna)["lake"][1]


@pytest.mark.parametrize("path", [f"/group/{CHURCH}", "/search?q=ch"])
@pytest.mark.parametrize(("button", "fields"), [("move", {"to": "lake"}), ("exclude", {"reason": "mine"})])
def test_a_label_that_somebody_excluded_in_the_meantime_is_not_restored_unseen(anna, path, button, fields):
    old = anna.get(path)
    anna.branch.apply(Exclude((ID["chapel"],), "theirs"), who="ben")
    before = tree(anna.branch)
    page = anna.press(button, ["chapel"], page=old, status=409, **fields)
    assert "ben excluded 1 label: theirs" in page
    assert "nothing was saved" in page
    assert tree(anna.branch) == before
    assert "excluded: theirs" in page or ">theirs<" in page
    anna.get("/excluded")  # knowingly
    anna.press(button, ["chapel"], **fields)
    assert tree(anna.branch) != before


def test_a_remembered_selection_does_not_bring_back_a_label_that_left_the_group(anna):
    anna.branch.apply(Exclude((ID["chapel"],), "why"))
    anna.get(f"/group/{CHURCH}")  # after it left
    page = anna.press("move", ["church"], labels=ID["chapel"], to="lake", status=409)
    assert "1 label is no longer in &#39;church&#39;; nothing was saved" in page
    assert "chapel → excluded: why" in page
    assert selected(page) == ["church"]
    anna.press("move")
    assert groups(anna)["lake"][1] == ["church", "lake", "river"]
    assert tree(anna.branch)[1] == {"chapel": "why"}


def test_all_excluded_labels_means_all_that_were_shown(tmp_path):
    project = large_project(tmp_path / "p", labels=300, clusters=2, largest=250)
    anna = Annotator(project, open_branch(project, "anna"))
    anna.branch.apply(Exclude(tuple(range(1, 221)), "why"))
    old = anna.get("/excluded")
    anna.branch.apply(Exclude((225,), "one more"))
    assert "one more" in anna.press("move", page=old, all=1, to="#4", status=409)
    anna.press("move")
    assert tree(anna.branch)[1] == {}


def test_a_refused_form_keeps_the_chosen_parent(anna):
    old = anna.get(f"/group/{CHURCH}")
    anna.branch.apply(Rename(CHURCH, "churches"))
    page = anna.press("parent", page=old, parent=NATURAL, status=409)
    assert f'<option value="{NATURAL}" selected>' in page
    anna.press("parent")
    assert groups(anna)["churches"][0] == "natural"
    assert f'<option value="{NATURAL}" selected>' in anna.press("rename", name=" ", status=400)  # of another form: as it is


def test_spaces_that_a_browser_hides_are_shown(tmp_path):
    labels = {"ocean area ": 3, " lead": 2, "two  blanks": 1, "plain one": 1}
    project = small_project(tmp_path / "p", labels=labels, clusters=[["ocean area ", " lead"], ["two  blanks", "plain one"]])
    anna = Annotator(project, open_branch(project, "anna"))
    page = anna.get("/group/3")
    assert '<h1 class="suggested">ocean area  <span class="tag doubt">ends with a space</span>' in page
    assert "starts with a space</span>" in page.split("> lead</label>")[1].split("</td>")[0]
    assert " space" not in anna.get("/group/4").split(">plain one</label>")[1].split("</td>")[0]
    for path in ("/", "/tree", "/search?q=ocean"):
        assert "ends with a space</span>" in anna.get(path), path


def test_two_annotators_on_one_group_lose_nothing(project, anna):
    other = Annotator(project, open_branch(project, "anna"))
    old = anna.get(f"/group/{CHURCH}")
    other.get(f"/group/{CHURCH}")
    other.press("split", ["chapel"], split_name="chapel")
    other.get(f"/group/{LAKE}")
    other.press("move", ["river"], to="church")
    before = tree(anna.branch)
    page = anna.press("split", ["chapel", "heritage site"], page=old, split_name="<b>sacred", status=409)
    assert tree(anna.branch) == before
    assert selected(page) == ["heritage site"]  # what is still here
    assert 'value="&lt;b&gt;sacred"' in page
    assert "You had selected labels that are no longer in this group" in page
    assert 'chapel → <a href="/anna/group/6">chapel</a>' in page
    assert '<span class="tag good">new here</span>' in page.split(">river</label>")[1].split("</td>")[0]
    assert "moved 1 label to &#39;church&#39;" in page
    anna.press("split", split_name="sacred")  # now knowingly, from the fresh page
    assert groups(anna)["sacred"] == (None, ["heritage site"])


def test_the_page_of_a_deleted_group_shows_what_was_selected_and_typed(project, anna):
    old = anna.get(f"/group/{CASTLE}")
    anna.branch.apply(Move((ID["castle"], ID["fort"]), LAKE))
    page = anna.press("split", ["fort"], page=old, split_name="forts", status=409)
    assert "This group no longer exists" in page
    assert 'value="forts"' in page
    assert 'fort → <a href="/anna/group/5">lake</a>' in page
    assert "never existed, or it was merged" in anna.get(f"/group/{CASTLE}", status=404)


def test_the_list_offers_to_continue_with_the_last_group(project, anna):
    anna.get(f"/group/{LAKE}")
    assert "continue with lake" in anna.get("/")
    again = Annotator(project, open_branch(project, "anna"))
    assert "continue with lake" in again.get("/")


def test_next_and_previous_open_groups_follow_the_order_of_the_list(anna):
    names = [anna.get(f"/next?after={CHURCH}").split("<h1")[1].split("</h1>")[0]]
    names.append(anna.get(f"/next?after={CHURCH}&back=1").split("<h1")[1].split("</h1>")[0])
    assert "castle" in names[0]
    assert "lake" in names[1]
    for number in (CHURCH, CASTLE, LAKE):
        anna.branch.apply(Rename(number, f"name {number}"))
        anna.get(f"/group/{number}")
        anna.press("next")
    assert "All groups are done." in anna.page


def test_a_suggested_split_selects_labels_on_other_pages_too(tmp_path):
    project = large_project(tmp_path / "p", labels=520, clusters=2, largest=500)
    anna = Annotator(project, open_branch(project, "anna"))
    page = anna.get("/group/3?suggest=1")
    assert "belong together. They are selected below, before the others" in page
    on_page = len(selected(page))
    assert on_page == 200
    second = anna.get("/group/3?suggest=1&offset=200")  # those that are left come first here, too
    assert 'href="/anna/group/3?suggest=1"' in second
    assert 'data-selection="keep"' in second
    anna.get("/group/3?suggest=1")
    anna.press("split", split_name="half")
    half = groups(anna)["half"][1]
    assert on_page < len(half) < 500
    vector_of = dict(zip(*_vectors(project), strict=True))
    center = np.mean([vector_of[text] for text in half], axis=0)
    rest = np.mean([vector_of[text] for text in groups(anna)["church 0"][1]], axis=0)
    assert np.mean([vector_of[text] @ (center - rest) for text in half]) > 0


def test_labels_of_a_suggested_split_come_first(tmp_path):
    project = large_project(tmp_path / "p", labels=40, clusters=2, largest=30)
    anna = Annotator(project, open_branch(project, "anna"))
    page = anna.get("/group/3?suggest=1")
    checked = [" checked " in row for row in page.split('name="label"')[1:]]
    assert sorted(checked, reverse=True) == checked
    assert 0 < sum(checked) < 30
    assert sum(checked) == len(selected(page))


def _vectors(project):
    with np.load(project.folder / "embeddings" / "f.npz") as arrays:
        return arrays["labels"].tolist(), arrays["embeddings"]


def test_without_vectors_the_page_says_so(reader):
    assert "No split can be suggested" in reader.get(f"/group/{CHURCH}?suggest=1")
    assert "Nearest groups" not in reader.page


def test_an_action_on_all_results_includes_other_pages(tmp_path):
    project = large_project(tmp_path / "p", labels=300, clusters=2, largest=250)
    anna = Annotator(project, open_branch(project, "anna"))
    anna.get("/group/3?q=old")
    anna.press("split", split_name="old ones", all=1)
    assert len(groups(anna)["old ones"][1]) == 21
    assert all(text.startswith("old ") for text in groups(anna)["old ones"][1])


def test_nearest_groups_are_those_with_the_most_similar_mean(tmp_path):
    project = large_project(tmp_path / "p", labels=60, clusters=6, largest=10, dim=3)
    branch = open_branch(project, "anna")
    anna = Annotator(project, branch)
    texts, vectors = _vectors(project)
    vector_of = dict(zip(texts, vectors, strict=True))
    means = {
        name: np.mean([vector_of[text] for text in labels], axis=0) for name, (_, labels) in groups(anna).items() if labels
    }
    unit = {name: mean / np.linalg.norm(mean) for name, mean in means.items()}
    own = next(iter(unit))
    expected = sorted((name for name in unit if name != own), key=lambda name: -unit[name] @ unit[own])[:5]
    with project.snapshot() as db:
        number = db.execute('SELECT id FROM "group" WHERE name = ?', (own,)).fetchone()[0]
    page = anna.get(f"/group/{number}").split("Nearest groups")[1].split("</ul>")[0]
    assert [part.split(">")[1].split("<")[0] for part in page.split('<li><a href="')[1:]] == expected


def test_preloaded_vectors_are_not_read_again(tmp_path):
    project = large_project(tmp_path / "p", labels=40, clusters=4, largest=10)
    branch = open_branch(project, "anna")
    suggestions = Suggestions(project)
    suggestions.preload([branch])
    (project.folder / "embeddings" / "f.npz").unlink()
    assert len(suggestions.nearest_groups(branch, 3)) == 3
    Suggestions(project).preload([branch])  # there are no vectors to preload
    assert Suggestions(project).nearest_groups(branch, 3) == []


def test_a_project_with_one_level_of_groups(tmp_path):
    project = small_project(tmp_path / "p", Recipe(name="flat", title="flat", levels=("label", "group")))
    anna = Annotator(project, open_branch(project, "anna"))
    page = anna.get("/group/1")
    assert "put under" not in page
    anna.press("split", ["chapel"], split_name="chapel")
    assert "only one level of groups" in anna.get("/tree")


def test_history_of_a_group(anna):
    anna.branch.apply(Split(CHURCH, (ID["chapel"],), "chapel"))
    anna.branch.apply(Rename(LAKE, "water"))
    page = anna.get(f"/group/{CHURCH}").split("Recent changes")[1]
    assert "split &#39;chapel&#39;" in page
    assert "water" not in page.split("</ol>")[0]
