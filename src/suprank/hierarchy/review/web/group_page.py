"""The page of one group: its labels, and actions on selected labels and on the group itself."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

from fastapi import APIRouter, HTTPException
from fastapi.responses import RedirectResponse, Response

from suprank.hierarchy.review.actions import Action, Delete, Exclude, Mark, Note, Rename, Split
from suprank.hierarchy.review.branch import EXCLUDED, Event
from suprank.hierarchy.review.web.auth import AnnotatorRequest, Authenticated, Number
from suprank.hierarchy.review.web.forms import (
    LABEL_FIELDS,
    MAX_SUGGESTED_NAMES,
    UNCLEAR_ACTION,
    Form,
    Offer,
    Refusal,
    SubmittedForm,
    label_action,
    merge_action,
    move_action,
    parent_action,
    selected_labels,
    try_action,
)
from suprank.hierarchy.review.web.group_index import SORT_KEYS, GroupIndex, GroupView, read_groups
from suprank.hierarchy.review.web.queries import (
    LABEL_ORDERS,
    GroupChanges,
    LabelQuery,
    Location,
    changes_since,
    current_places,
    doubtful_labels,
    frequent_reasons,
    label_ids,
    read_labels,
    recent_events,
)
from suprank.web.forms import page_offset

if TYPE_CHECKING:
    import sqlite3

router = APIRouter()

ROWS = 200


@router.get("/{name}/group/{number}")
def group(request: Authenticated, number: Number) -> Response:
    with request.project.snapshot() as db:
        index = read_groups(db, request.branch)
        group = index.get(number)
        if group is None:
            raise HTTPException(404, "There is no such group: it never existed, or it was merged, emptied or deleted.")
        if group.level > 1:
            return RedirectResponse(f"{request.prefix}/parent/{number}", 303)
        page = _page(request, db, index, group)
    request.review.remember(request.branch, number)
    return page


@router.get("/{name}/next")
def next_group(request: Authenticated, after: int | None = None, back: bool = False) -> Response:
    """Go to the next open group, or to the list if all are done."""
    order = request.choice("order", SORT_KEYS)
    with request.project.snapshot() as db:
        found = read_groups(db, request.branch).next_open(order, after, -1 if back else 1)
    return RedirectResponse(_group_url(request, found, order), 303)


@router.post("/{name}/group/{number}")
def submit_group(request: Authenticated, number: Number, form: Form) -> Response:
    with request.project.snapshot() as db:
        index = read_groups(db, request.branch)
        selected = selected_labels(db, request, form, LabelQuery(number, text=request.query.get("q", "")))
    order, group = request.choice("order", SORT_KEYS), index.get(number)
    name = form.text("act").partition(":")[0]
    following = index.next_open(order, number)
    result: Event | Refusal
    if name in ("done", "next") and group is not None and form.text("accept") and not group.named:
        result = try_action(request.branch, Rename(number, group.name), form, form.versions())
        if not isinstance(result, Refusal):
            result = try_action(request.branch, Mark((number,), "done"), form, {number: result.seq})
    else:
        action = _action(index, number, selected, form)
        result = try_action(request.branch, action, form, form.versions())
        if isinstance(result, Refusal) and not isinstance(action, Refusal):
            result = replace(result, offers=_offers(result, action, index, group))
    if isinstance(result, Refusal):
        return _refused_page(request, number, result, form, selected)
    with request.project.snapshot() as db:
        sql = 'SELECT 1 FROM "group" WHERE branch = ? AND id = ?'
        still_exists = db.execute(sql, (request.branch.id, number)).fetchone() is not None
    if name == "next":
        return request.redirect(result, _group_url(request, following, order))
    return request.redirect(result, None if still_exists else f"{request.prefix}/")


def _group_url(request: AnnotatorRequest, group: GroupView | None, order: str = "size") -> str:
    """The URL of a group, or of the list if there is none."""
    if group is None:
        return f"{request.prefix}/"
    return f"{request.prefix}/group/{group.id}" + ("" if order == next(iter(SORT_KEYS)) else f"?order={order}")


def _action(index: GroupIndex, number: int, selected: tuple[int, ...], form: SubmittedForm) -> Action | Refusal:
    name, argument = label_action(form)
    if name in LABEL_FIELDS and not selected:
        return Refusal(400, "Select at least one label first.")
    match name:
        case "split":
            return Split(number, selected, argument or form.text("split_name"))
        case "move":
            return move_action(index, selected, argument or form.text("to"), number)
        case "exclude":
            return Exclude(selected, form.text("reason"), number)
        case "rename":
            return Rename(number, argument or form.text("name"))
        case "parent":
            return parent_action((number,), form)
        case "merge":
            return merge_action(index, (number,), argument or form.text("into"), "merge")
        case "note":
            return Note(number, form.text("note"))
        case "delete":
            return Delete(number)
        case "next":
            return Mark((number,), "done")
        case "done" | "open":
            return Mark((number,), name)
    return Refusal(400, UNCLEAR_ACTION)


def _offers(refusal: Refusal, action: Action, index: GroupIndex, group: GroupView | None) -> tuple[Offer, ...]:
    """Buttons for what was probably meant."""
    namesake = index.get(refusal.merge_with)
    if namesake is not None and isinstance(action, Split):
        return (Offer("selection", f"move:#{namesake.id}", f"move the selected labels to {namesake.name!r}"),)
    if namesake is not None and isinstance(action, Rename):
        return (Offer("merge", f"merge:#{namesake.id}", f"merge this group into {namesake.name!r}"),)
    if isinstance(action, Mark) and group is not None and not group.named:
        accept = f"accept the name {group.name!r}"
        return (Offer("accept", "next", f"{accept}, mark done, go to the next"), Offer("accept", "done", "accept, mark done"))
    return ()


def _refused_page(
    request: AnnotatorRequest, number: int, refusal: Refusal, form: SubmittedForm, selected: tuple[int, ...]
) -> Response:
    with request.project.snapshot() as db:
        index = read_groups(db, request.branch)
        group = index.get(number)
        if group is not None and group.level == 1:
            return _page(request, db, index, group, refusal, form, selected)
        if not form.versions():
            raise HTTPException(404, "There is no such group.")
        # Somebody else merged or emptied it: show what was selected and typed, and where the labels are now.
        places = current_places(db, request.branch, list(selected))
        fields = ("split_name", "to", "reason", "name", "into", "note")
        typed = {name: form.text(name) for name in fields if form.text(name)}
        return request.html("gone.html", 409, places=places, typed=typed, message=f"{refusal.message} Nothing was saved.")


def _page(
    request: AnnotatorRequest,
    db: sqlite3.Connection,
    index: GroupIndex,
    group: GroupView,
    refusal: Refusal | None = None,
    form: SubmittedForm | None = None,
    selected: tuple[int, ...] = (),
) -> Response:
    branch, order = request.branch, request.choice("order", SORT_KEYS)
    sort, offset, text = request.choice("sort", LABEL_ORDERS), page_offset(request.query), request.query.get("q", "").strip()
    changed, elsewhere = GroupChanges(), list[Location]()
    if refusal is not None and refusal.status == 409 and form is not None:
        changed = changes_since(db, branch, group.id, form.versions().get(group.id, group.version))
        inside = set(label_ids(db, branch, LabelQuery(group.id)))
        elsewhere = current_places(db, branch, [label for label in selected if label not in inside])
        selected = tuple(label for label in selected if label in inside)
    suggestion, problem = None, None
    if request.query.get("suggest") and refusal is None:
        try:
            suggestion = request.review.suggestions.split(branch, label_ids(db, branch, LabelQuery(group.id)))
            selected = suggestion.labels if offset == 0 else ()  # what was changed on the first page stays as it is
        except (OSError, ValueError) as error:
            problem = f"No split can be suggested: {error}"
    suggested = () if suggestion is None else suggestion.labels
    query = LabelQuery(group.id, text=text)
    listing = read_labels(db, branch, query, sort=sort, offset=offset, limit=ROWS, first=suggested)
    on_page, nearest = {label.id for label in listing.labels}, request.review.suggestions.nearest_groups(branch, group.id)
    return request.html(
        "group.html",
        200 if refusal is None else refusal.status,
        group=group,
        seen=f"{group.checkbox_value} {EXCLUDED}:{index.newest}",
        index=index,
        progress=index.progress,
        listing=listing,
        images={label.id: request.review.image_rows(label.text, label.samples) for label in listing.labels},
        doubtful=doubtful_labels(db, branch, group.id),
        names=_suggested_names(db, request, group),
        nearest=[(index.groups[other], cosine) for other, cosine in nearest if other in index.groups],
        events=recent_events(db, branch, group.id),
        reasons=frequent_reasons(db, branch),
        group_names=[other.name for other in index.sorted_by("size")[:MAX_SUGGESTED_NAMES] if other.id != group.id],
        parents=index.sorted_by("name", 2),
        order=order,
        sort=sort,
        sorts=LABEL_ORDERS,
        text=text,
        offset=offset,
        page=ROWS,
        selected=set(selected),
        off_page=[label for label in selected if label not in on_page],
        everything=bool(form is not None and form.text("all")),
        suggestion=suggestion,
        changed=changed,
        elsewhere=elsewhere,
        refusal=refusal,
        message=problem if refusal is None else refusal.message,
        form=form,
    )


def _suggested_names(db: sqlite3.Connection, request: AnnotatorRequest, group: GroupView) -> list[str]:
    """Names to accept with one click: those suggested for its cluster, and its labels with the most items."""
    row = db.execute(
        "SELECT names_json FROM cluster WHERE clustering = ? AND number = ?", (request.branch.clustering, group.cluster)
    ).fetchone()
    largest = read_labels(db, request.branch, LabelQuery(group.id), limit=2).labels
    names = [*([] if row is None else json.loads(row[0])), *(label.text for label in largest)]
    return [name for name in dict.fromkeys(names) if name != group.name or not group.named][:5]
