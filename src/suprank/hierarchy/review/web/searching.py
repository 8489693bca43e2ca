"""Labels wherever they are: a search over all groups, and what is excluded."""

from __future__ import annotations

from fastapi import APIRouter, HTTPException
from fastapi.responses import Response

from suprank.hierarchy.review.acts import Act, Exclude, Gather
from suprank.hierarchy.review.branch import EXCLUDED
from suprank.hierarchy.review.web.acting import NO_BUTTON, Offer, Refusal, attempt
from suprank.hierarchy.review.web.auth import Here, Visit
from suprank.hierarchy.review.web.forms import Form, Sent
from suprank.hierarchy.review.web.ticked import NAMES, chosen_labels, filled, moved, pictures_of
from suprank.hierarchy.review.web.views.board import Board, read_board
from suprank.hierarchy.review.web.views.events import places_now
from suprank.hierarchy.review.web.views.labels import SORTS, Asked, groups_asked, label_ids, read_labels, recent_reasons
from suprank.web.pages import offset_of

router = APIRouter()

PAGE = 200
TEXT = 200
"""The longest text that is looked for, in characters."""


@router.get("/{name}/search")
def search(here: Here) -> Response:
    return _page(here)


@router.post("/{name}/search")
def search_acted(here: Here, sent: Form) -> Response:
    return _acted(here, sent)


@router.get("/{name}/excluded")
def excluded(here: Here) -> Response:
    return _page(here)


@router.post("/{name}/excluded")
def excluded_acted(here: Here, sent: Form) -> Response:
    return _acted(here, sent)


def _asked(here: Visit) -> Asked:
    text = here.parameters.get("q", "").strip()
    if len(text) > TEXT:
        raise HTTPException(400, f"The text has {len(text):,} characters; {TEXT} are looked for at most.")
    return Asked(excluded=here.request.url.path.endswith("/excluded"), text=text)


def _acted(here: Visit, sent: Sent) -> Response:
    with here.project.reading() as db:
        board = read_board(db, here.branch)
        ticked = chosen_labels(db, here, sent, _asked(here))
    act = _act(board, ticked, sent)
    done = act if isinstance(act, Refusal) else attempt(here.branch, act, sent, sent.seen())
    if not isinstance(done, Refusal):
        return here.went(done)
    twin = board.get(done.merge_with)
    if twin is not None:
        offer = Offer("selection", f"move:#{twin.id}", f"move the ticked labels to {twin.name!r}")
        done = Refusal(done.status, done.said, done.groups, done.merge_with, (offer,))
    return _page(here, done, sent, ticked)


def _act(board: Board, ticked: tuple[int, ...], sent: Sent) -> Act | Refusal:
    called, _, given = sent.text("act").partition(":")
    if not ticked:
        return Refusal(400, "Tick at least one label first.")
    called = called or filled(sent)
    if called == "split":
        return Gather(ticked, given or sent.text("split_name"))
    if called == "exclude":
        return Exclude(ticked, sent.text("reason"))
    if called == "move":
        return moved(board, ticked, given or sent.text("to"))
    return Refusal(400, NO_BUTTON)


def _page(here: Visit, refusal: Refusal | None = None, sent: Sent | None = None, ticked: tuple[int, ...] = ()) -> Response:
    sort, offset, asked = here.choice("sort", SORTS), offset_of(here.parameters), _asked(here)
    with here.project.reading() as db:
        board = read_board(db, here.branch)
        listing = read_labels(db, here.branch, asked, sort=sort, offset=offset, limit=PAGE)
        seen = groups_asked(db, here.branch, asked)
        reasons = recent_reasons(db, here.branch)
        elsewhere = list[tuple[str, str, int | None]]()
        if refusal is not None and refusal.status == 409:  # else a tick that a tab kept would be refused for ever
            inside = set(label_ids(db, here.branch, asked))
            elsewhere = places_now(db, here.branch, [label for label in ticked if label not in inside])
            ticked = tuple(label for label in ticked if label in inside)
    on_page = {label.id for label in listing.labels}
    return here.html(
        "search.html",
        200 if refusal is None else refusal.status,
        board=board,
        asked=asked,
        text=asked.text,
        listing=listing,
        pictures={label.id: pictures_of(here, label) for label in listing.labels},
        seen=" ".join(f"{group}:{version}" for group, version in {**seen, EXCLUDED: board.newest}.items()),
        groups=len(seen),
        reasons=reasons,
        offered=[one.name for one in board.ordered("size")[:NAMES]],
        sort=sort,
        sorts=SORTS,
        offset=offset,
        page=PAGE,
        ticked=set(ticked),
        elsewhere=elsewhere,
        off_page=[label for label in ticked if label not in on_page],
        everything=bool(sent is not None and sent.text("all")),
        refusal=refusal,
        said=None if refusal is None else refusal.said,
        kept=sent,
    )
