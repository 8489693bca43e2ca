"""Pages that list labels of all groups: search results, excluded labels, and doubtful ones."""

from __future__ import annotations

from dataclasses import replace

from fastapi import APIRouter, HTTPException
from fastapi.responses import Response

from suprank.hierarchy.review.actions import Action, Exclude, Gather
from suprank.hierarchy.review.branch import EXCLUDED
from suprank.hierarchy.review.web.auth import AnnotatorRequest, Authenticated
from suprank.hierarchy.review.web.forms import (
    MAX_SUGGESTED_NAMES,
    UNCLEAR_ACTION,
    Form,
    Offer,
    Refusal,
    SubmittedForm,
    label_action,
    move_action,
    selected_labels,
    try_action,
)
from suprank.hierarchy.review.web.group_index import GroupIndex, read_groups
from suprank.hierarchy.review.web.queries import (
    LABEL_ORDERS,
    LabelQuery,
    Location,
    current_places,
    frequent_reasons,
    groups_of_labels,
    label_ids,
    read_labels,
)
from suprank.web.forms import page_offset

router = APIRouter()

ROWS = 200
MAX_SEARCH_TEXT = 200
"""Longest text to search for, in characters."""


@router.get("/{name}/search")
@router.get("/{name}/excluded")
@router.get("/{name}/doubtful")
def labels(request: Authenticated) -> Response:
    return _page(request)


@router.post("/{name}/search")
@router.post("/{name}/excluded")
@router.post("/{name}/doubtful")
def submit_labels(request: Authenticated, form: Form) -> Response:
    with request.project.snapshot() as db:
        index = read_groups(db, request.branch)
        selected = selected_labels(db, request, form, _query(request))
    result = try_action(request.branch, _action(index, selected, form), form, form.versions())
    if not isinstance(result, Refusal):
        return request.redirect(result)
    namesake = index.get(result.merge_with)
    if namesake is not None:
        offer = Offer("selection", f"move:#{namesake.id}", f"move the selected labels to {namesake.name!r}")
        result = replace(result, offers=(offer,))
    return _page(request, result, form, selected)


def _query(request: AnnotatorRequest) -> LabelQuery:
    text = request.query.get("q", "").strip()
    if len(text) > MAX_SEARCH_TEXT:
        raise HTTPException(400, f"The search text has {len(text):,} characters; at most {MAX_SEARCH_TEXT} are allowed.")
    page = request.path.rpartition("/")[2]
    return LabelQuery(excluded=page == "excluded", doubtful=page == "doubtful", text=text)


def _action(index: GroupIndex, selected: tuple[int, ...], form: SubmittedForm) -> Action | Refusal:
    if not selected:
        return Refusal(400, "Select at least one label first.")
    name, argument = label_action(form)
    if name == "split":
        return Gather(selected, argument or form.text("split_name"))
    if name == "exclude":
        return Exclude(selected, form.text("reason"))
    if name == "move":
        return move_action(index, selected, argument or form.text("to"))
    return Refusal(400, UNCLEAR_ACTION)


def _page(
    request: AnnotatorRequest,
    refusal: Refusal | None = None,
    form: SubmittedForm | None = None,
    selected: tuple[int, ...] = (),
) -> Response:
    sort, offset, query = request.choice("sort", LABEL_ORDERS), page_offset(request.query), _query(request)
    with request.project.snapshot() as db:
        index = read_groups(db, request.branch)
        listing = read_labels(db, request.branch, query, sort=sort, offset=offset, limit=ROWS)
        versions = groups_of_labels(db, request.branch, query)
        reasons = frequent_reasons(db, request.branch)
        elsewhere = list[Location]()
        if refusal is not None and refusal.status == 409:  # otherwise a selection that a tab remembers would be refused forever
            inside = set(label_ids(db, request.branch, query))
            elsewhere = current_places(db, request.branch, [label for label in selected if label not in inside])
            selected = tuple(label for label in selected if label in inside)
    on_page = {label.id for label in listing.labels}
    return request.html(
        "search.html",
        200 if refusal is None else refusal.status,
        index=index,
        query=query,
        text=query.text,
        listing=listing,
        images={label.id: request.review.image_rows(label.text, label.samples) for label in listing.labels},
        seen=" ".join(f"{group}:{version}" for group, version in {**versions, EXCLUDED: index.newest}.items()),
        groups=len(versions),
        reasons=reasons,
        group_names=[one.name for one in index.sorted_by("size")[:MAX_SUGGESTED_NAMES]],
        sort=sort,
        sorts=LABEL_ORDERS,
        offset=offset,
        page=ROWS,
        selected=set(selected),
        elsewhere=elsewhere,
        off_page=[label for label in selected if label not in on_page],
        everything=bool(form is not None and form.text("all")),
        refusal=refusal,
        message=None if refusal is None else refusal.message,
        form=form,
    )
