"""Pages that list groups: all of the finest level, the tree by parent, and the children of one parent."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from fastapi import APIRouter, HTTPException
from fastapi.responses import RedirectResponse, Response

from suprank.hierarchy.review.actions import Action, Create, Delete, Mark, Note, Rename
from suprank.hierarchy.review.instructions import read_instructions
from suprank.hierarchy.review.opening import open_branch
from suprank.hierarchy.review.web.auth import AnnotatorRequest, Authenticated, Number
from suprank.hierarchy.review.web.forms import (
    UNCLEAR_ACTION,
    Form,
    Offer,
    Refusal,
    SubmittedForm,
    merge_action,
    parent_action,
    selected_elsewhere,
    try_action,
)
from suprank.hierarchy.review.web.group_index import SORT_KEYS, GroupIndex, GroupView, read_groups
from suprank.hierarchy.review.web.queries import (
    LabelQuery,
    annotator_progress,
    count_doubts,
    read_labels,
    recent_events,
    unsynced_labels,
)
from suprank.hierarchy.text import label_key
from suprank.web.forms import page_offset

if TYPE_CHECKING:
    import sqlite3

router = APIRouter()

EXAMPLE_LABELS = 6
LIST_ROWS = 50
TREE_ROWS = 200
FILTERS = ("all", "open", "done", "unnamed", "empty")


@router.get("/{name}/")
def group_list(request: Authenticated) -> Response:
    return _list_page(request)


@router.post("/{name}/")
def submit_group_list(request: Authenticated, form: Form) -> Response:
    with request.project.snapshot() as db:
        index = read_groups(db, request.branch)
    if form.text("act") == "sync":
        open_branch(request.project, request.branch.name)
        return request.redirect(request.branch.log(limit=1)[0])
    result = try_action(request.branch, _list_action(index, form), form, form.versions("group"))
    return _list_page(request, result, form) if isinstance(result, Refusal) else request.redirect(result)


@router.get("/{name}/tree")
def tree(request: Authenticated) -> Response:
    return _tree_page(request)


@router.post("/{name}/tree")
def submit_tree(request: Authenticated, form: Form) -> Response:
    creating = form.text("act") == "create"
    groups = form.versions("group")
    action = Create(_level(request) + 1, form.text("name")) if creating else parent_action(tuple(groups), form)
    result = try_action(request.branch, action, form, groups)
    return _tree_page(request, result, form) if isinstance(result, Refusal) else request.redirect(result)


@router.get("/{name}/parent/{number}")
def parent(request: Authenticated, number: Number) -> Response:
    return _parent_page(request, number)


@router.post("/{name}/parent/{number}")
def submit_parent(request: Authenticated, number: Number, form: Form) -> Response:
    with request.project.snapshot() as db:
        index = read_groups(db, request.branch)
    action = _parent_page_action(index, number, form)
    result = try_action(request.branch, action, form, {**form.versions(), **form.versions("group")})
    if isinstance(result, Refusal):
        namesake = index.get(result.merge_with)
        if namesake is not None:
            offer = Offer("merge", f"merge:#{namesake.id}", f"merge this group into {namesake.name!r}")
            result = replace(result, offers=(offer,))
        return _parent_page(request, number, result, form)
    is_gone = form.text("act") == "delete" or form.text("act").startswith("merge")
    return request.redirect(result, f"{request.prefix}/tree" if is_gone else None)


def _list_action(index: GroupIndex, form: SubmittedForm) -> Action | Refusal:
    """The action of a form; `act` may have an argument after a colon, as in `merge:12`."""
    action, _, argument = form.text("act").partition(":")
    groups = tuple(form.versions("group"))
    if action == "create":
        return Create(1, form.text("name"))
    if not groups:
        return Refusal(400, "Select at least one group first.")
    if action == "":  # the Enter key
        action = "merge" if form.text("into").strip() else "parent"
    if action == "merge":
        return merge_action(index, groups, argument or form.text("into"), "selection")
    if action == "parent":
        return parent_action(groups, form)
    return Mark(groups, action)


def _parent_page_action(index: GroupIndex, number: int, form: SubmittedForm) -> Action | Refusal:
    action, _, argument = form.text("act").partition(":")
    match action:
        case "put":
            return parent_action(tuple(form.versions("group")), form)
        case "parent":
            return parent_action((number,), form)
        case "rename":
            return Rename(number, argument or form.text("name"))
        case "merge":
            group = index.get(number)
            level = 1 if group is None else group.level
            return merge_action(index, (number,), argument or form.text("into"), "merge", level)
        case "note":
            return Note(number, form.text("note"))
        case "delete":
            return Delete(number)
    return Refusal(400, UNCLEAR_ACTION)


def _level(request: AnnotatorRequest) -> int:
    """The level whose groups are put under those of the next; by default the finest."""
    depth = request.project.recipe.depth
    return int(request.choice("level", [str(level) for level in range(1, max(2, depth))]))


def _list_page(request: AnnotatorRequest, refusal: Refusal | None = None, form: SubmittedForm | None = None) -> Response:
    order, shown = request.choice("sort", SORT_KEYS), request.choice("show", FILTERS)
    offset, text, under = page_offset(request.query), request.query.get("q", "").strip(), request.query.get("under", "")
    with request.project.snapshot() as db:
        index, unsynced = read_groups(db, request.branch), unsynced_labels(db, request.branch)
        doubts = count_doubts(db, request.branch)
        example, annotators = _example(request, db, index), annotator_progress(db)
    found = [one for one in index.sorted_by(order) if _is_shown(one, shown, under) and label_key(text) in label_key(one.name)]
    rows = found[offset : offset + LIST_ROWS]
    return request.html(
        "groups.html",
        200 if refusal is None else refusal.status,
        index=index,
        unsynced=unsynced,
        doubts=doubts,
        instructions=read_instructions(request.project),
        example=example,
        annotators=[one for one in annotators if one.name != request.branch.name],
        found=rows,
        total=len(found),
        next_open=index.next_open(order, index.last_group),
        order=order,
        orders=tuple(SORT_KEYS),
        shown=shown,
        filters=FILTERS,
        under=under,
        text=text,
        offset=offset,
        page=LIST_ROWS,
        **_form_values(index, rows, refusal, form),
    )


@dataclass(frozen=True)
class ExampleGroup:
    """A group to learn from, with some of its labels, each with a manifest row that shows it, or None."""

    group: GroupView
    labels: list[tuple[str, int | None]]


def _example(request: AnnotatorRequest, db: sqlite3.Connection, index: GroupIndex) -> ExampleGroup | None:
    """The group that the annotator has done, or else the open one, whose labels are most alike; of at least three labels."""
    large = [one for one in index.at_level(1) if one.labels >= 3 and one.tightness is not None]
    group = max(large, key=lambda one: (one.done, one.tightness or 0, -one.id), default=None)
    if group is None:
        return None
    labels = read_labels(db, request.branch, LabelQuery(group.id), limit=EXAMPLE_LABELS).labels
    shown = [(one.text, next(iter(request.review.image_rows(one.text, one.samples)), None)) for one in labels]
    return ExampleGroup(group, shown)


def _is_shown(one: GroupView, shown: str, under: str) -> bool:
    if under and str(one.parent or "none") != under:
        return False
    states = {"open": not one.done, "done": one.done, "unnamed": not one.named, "empty": not one.labels}
    return states.get(shown, True)


def _tree_page(request: AnnotatorRequest, refusal: Refusal | None = None, form: SubmittedForm | None = None) -> Response:
    level, offset = _level(request), page_offset(request.query)
    text, under = request.query.get("q", "").strip(), request.query.get("under", "")
    with request.project.snapshot() as db:
        index = read_groups(db, request.branch)
    parents = index.sorted_by("name", level + 1)
    position = {one.id: number for number, one in enumerate(parents)}
    found = [
        one
        for one in index.sorted_by("size", level)
        if label_key(text) in label_key(one.name) and (not under or str(one.parent or "none") == under)
    ]
    found.sort(key=lambda one: -1 if one.parent is None else position.get(one.parent, -1))
    rows = found[offset : offset + TREE_ROWS]
    return request.html(
        "tree.html",
        200 if refusal is None else refusal.status,
        index=index,
        level=level,
        parents=parents,
        orphans=index.children(None, level),
        found=rows,
        total=len(found),
        text=text,
        under=under,
        offset=offset,
        page=TREE_ROWS,
        **_form_values(index, rows, refusal, form),
    )


def _parent_page(
    request: AnnotatorRequest, number: int, refusal: Refusal | None = None, form: SubmittedForm | None = None
) -> Response:
    offset = page_offset(request.query)
    with request.project.snapshot() as db:
        index = read_groups(db, request.branch)
        events = recent_events(db, request.branch, number)
    group = index.get(number)
    if group is None and refusal is not None:
        typed = {} if form is None else {name: form.text(name) for name in ("name", "into", "note") if form.text(name)}
        message = f"{refusal.message} Nothing was saved."
        return request.html("gone.html", 409, places=[], typed=typed, message=message)
    if group is None:
        raise HTTPException(404, "There is no such group: it never existed, or it was merged or deleted.")
    if group.level == 1:
        return RedirectResponse(f"{request.prefix}/group/{number}", 303)
    children = index.children(number, group.level - 1)
    rows = children[offset : offset + TREE_ROWS]
    return request.html(
        "parent.html",
        200 if refusal is None else refusal.status,
        group=group,
        index=index,
        children=rows,
        total=len(children),
        siblings=[other for other in index.sorted_by("name", group.level) if other.id != number],
        parents=index.sorted_by("name", group.level + 1),
        # A merge moves the children too, so their versions are sent along.
        seen=" ".join(one.checkbox_value for one in (group, *children)),
        events=events,
        offset=offset,
        page=TREE_ROWS,
        **_form_values(index, rows, refusal, form),
    )


def _form_values(
    index: GroupIndex, rows: list[GroupView], refusal: Refusal | None, form: SubmittedForm | None
) -> dict[str, object]:
    """What a page needs to show a refused form again, with its selection."""
    return {
        "selected": set() if form is None else set(form.versions("group")),
        "off_page": selected_elsewhere(index, form, rows),
        "refusal": refusal,
        "message": None if refusal is None else refusal.message,
        "form": form,
    }
