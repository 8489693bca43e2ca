"""One group: its labels, what can be done with those that are ticked, and with the group itself."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from fastapi import APIRouter, HTTPException
from fastapi.responses import RedirectResponse, Response

from suprank.hierarchy.review.acts import Act, Delete, Exclude, Mark, Note, Rename, Split
from suprank.hierarchy.review.branch import EXCLUDED, Event
from suprank.hierarchy.review.web.acting import NO_BUTTON, Offer, Refusal, attempt
from suprank.hierarchy.review.web.auth import Here, Number, Visit
from suprank.hierarchy.review.web.forms import Form, Sent
from suprank.hierarchy.review.web.queue import merged, put_under
from suprank.hierarchy.review.web.ticked import LABEL_ACTS, NAMES, chosen_labels, filled, moved, pictures_of
from suprank.hierarchy.review.web.views.board import ORDERS, Board, Group, read_board
from suprank.hierarchy.review.web.views.events import Since, events_of, places_now, since
from suprank.hierarchy.review.web.views.labels import SORTS, Asked, doubtful, label_ids, read_labels, recent_reasons
from suprank.web.pages import offset_of

if TYPE_CHECKING:
    import sqlite3

router = APIRouter()

PAGE = 200


@router.get("/{name}/group/{number}")
def group(here: Here, number: Number) -> Response:
    with here.project.reading() as db:
        board = read_board(db, here.branch)
        one = board.get(number)
        if one is None:
            raise HTTPException(404, "There is no such group: it never was, or it was merged, emptied or removed.")
        if one.level > 1:
            return RedirectResponse(f"{here.prefix}/above/{number}", 303)
        page = _page(here, db, board, one)
    here.review.remember(here.branch, number)
    return page


@router.get("/{name}/next")
def following(here: Here, after: int | None = None, back: bool = False) -> Response:
    """To the next open group, or to the list where all are done."""
    order = here.choice("order", ORDERS)
    with here.project.reading() as db:
        found = read_board(db, here.branch).next_open(order, after, -1 if back else 1)
    return RedirectResponse(address_of(here, found, order), 303)


@router.post("/{name}/group/{number}")
def acted(here: Here, number: Number, sent: Form) -> Response:
    with here.project.reading() as db:
        board = read_board(db, here.branch)
        one = board.get(number)
        ticked = chosen_labels(db, here, sent, Asked(number, text=here.parameters.get("q", "")))
    order = here.choice("order", ORDERS)
    called, _, given = sent.text("act").partition(":")
    following = board.next_open(order, number)
    done: Event | Refusal
    if called in ("done", "next") and one is not None and sent.text("take") and not one.named:
        named = attempt(here.branch, Rename(number, one.name), sent, sent.seen())
        if isinstance(named, Refusal):
            return _refused(here, number, named, sent, ticked)
        done = attempt(here.branch, Mark((number,), "done"), sent, {number: named.seq})
    else:
        act = _act(board, number, called, given, ticked, sent)
        done = act if isinstance(act, Refusal) else attempt(here.branch, act, sent, sent.seen())
        if isinstance(done, Refusal) and not isinstance(act, Refusal):
            done = _with_ways_out(done, act, board, one)
    if isinstance(done, Refusal):
        return _refused(here, number, done, sent, ticked)
    with here.project.reading() as db:
        there = db.execute('SELECT 1 FROM "group" WHERE branch = ? AND id = ?', (here.branch.id, number)).fetchone()
    if called == "next":
        return here.went(done, address_of(here, following, order))
    return here.went(done, None if there else f"{here.prefix}/")


def address_of(here: Visit, group: Group | None, order: str = "size") -> str:
    """The page of a group; the list where there is none."""
    if group is None:
        return f"{here.prefix}/"
    return f"{here.prefix}/group/{group.id}" + ("" if order == next(iter(ORDERS)) else f"?order={order}")


def _act(board: Board, number: int, called: str, given: str, ticked: tuple[int, ...], sent: Sent) -> Act | Refusal:
    called = called or filled(sent)
    if called in LABEL_ACTS and not ticked:
        return Refusal(400, "Tick at least one label first.")
    match called:
        case "split":
            return Split(number, ticked, given or sent.text("split_name"))
        case "move":
            return moved(board, ticked, given or sent.text("to"), number)
        case "exclude":
            return Exclude(ticked, sent.text("reason"), number)
        case "rename":
            return Rename(number, given or sent.text("name"))
        case "parent":
            return put_under((number,), sent)
        case "merge":
            return merged(board, (number,), given or sent.text("into"), "merge")
        case "note":
            return Note(number, sent.text("note"))
        case "delete":
            return Delete(number)
        case "next":
            return Mark((number,), "done")
        case "done" | "open":
            return Mark((number,), called)
    return Refusal(400, NO_BUTTON)


def _with_ways_out(refusal: Refusal, act: Act, board: Board, one: Group | None) -> Refusal:
    """The refusal with buttons for what was probably meant."""
    offers: tuple[Offer, ...] = ()
    twin = board.get(refusal.merge_with)
    if twin is not None and isinstance(act, Split):
        offers = (Offer("selection", f"move:#{twin.id}", f"move the ticked labels to {twin.name!r}"),)
    elif twin is not None and isinstance(act, Rename):
        offers = (Offer("merge", f"merge:#{twin.id}", f"merge this group into {twin.name!r}"),)
    elif isinstance(act, Mark) and one is not None and not one.named:
        offers = (
            Offer("take", "next", f"take the name {one.name!r}, done, and on to the next"),
            Offer("take", "done", "take it, done"),
        )
    return Refusal(refusal.status, refusal.said, refusal.groups, refusal.merge_with, offers)


def _refused(here: Visit, number: int, refusal: Refusal, sent: Sent, ticked: tuple[int, ...]) -> Response:
    with here.project.reading() as db:
        board = read_board(db, here.branch)
        one = board.get(number)
        if one is not None and one.level == 1:
            return _page(here, db, board, one, refusal, sent, ticked)
        if not sent.seen():
            raise HTTPException(404, "There is no such group.")
        # Merged or emptied by somebody else: what was ticked and typed is shown, with where the labels are now.
        places = places_now(db, here.branch, list(ticked))
        typed = {name: sent.text(name) for name in ("split_name", "to", "reason", "name", "into", "note") if sent.text(name)}
        return here.html("gone.html", 409, places=places, typed=typed, said=f"{refusal.said} Nothing was saved.")


def _page(
    here: Visit,
    db: sqlite3.Connection,
    board: Board,
    one: Group,
    refusal: Refusal | None = None,
    sent: Sent | None = None,
    ticked: tuple[int, ...] = (),
) -> Response:
    branch, order = here.branch, here.choice("order", ORDERS)
    sort, offset, text = here.choice("sort", SORTS), offset_of(here.parameters), here.parameters.get("q", "").strip()
    changed, elsewhere = Since(), list[tuple[str, str, int | None]]()
    if refusal is not None and refusal.status == 409 and sent is not None:
        changed = since(db, branch, one.id, sent.seen().get(one.id, one.version))
        inside = set(label_ids(db, branch, Asked(one.id)))
        elsewhere = places_now(db, branch, [label for label in ticked if label not in inside])
        ticked = tuple(label for label in ticked if label in inside)
    halves, problem = None, None
    if here.parameters.get("suggest") and refusal is None:
        try:
            halves = here.review.vectors.halves(branch, label_ids(db, branch, Asked(one.id)))
            ticked = halves.leaving
        except (OSError, ValueError) as error:
            problem = f"No split can be suggested: {error}"
    listing = read_labels(db, branch, Asked(one.id, text=text), sort=sort, offset=offset, limit=PAGE)
    on_page, near = {label.id for label in listing.labels}, here.review.vectors.nearest(branch, one.id)
    return here.html(
        "group.html",
        200 if refusal is None else refusal.status,
        group=one,
        seen=f"{one.tick} {EXCLUDED}:{board.newest}",
        board=board,
        progress=board.progress,
        listing=listing,
        pictures={label.id: pictures_of(here, label) for label in listing.labels},
        doubtful=doubtful(db, branch, one.id),
        names=_names(db, here, one),
        near=[(board.groups[other], cosine) for other, cosine in near if other in board.groups],
        past=events_of(db, branch, one.id),
        reasons=recent_reasons(db, branch),
        offered=[other.name for other in board.ordered("size")[:NAMES] if other.id != one.id],
        parents=board.ordered("name", 2),
        order=order,
        sort=sort,
        sorts=SORTS,
        text=text,
        offset=offset,
        page=PAGE,
        ticked=set(ticked),
        off_page=[label for label in ticked if label not in on_page],
        everything=bool(sent is not None and sent.text("all")),
        halves=halves,
        changed=changed,
        elsewhere=elsewhere,
        refusal=refusal,
        said=problem if refusal is None else refusal.said,
        kept=sent,
    )


def _names(db: sqlite3.Connection, here: Visit, one: Group) -> list[str]:
    """Names to take with one click: those suggested for its cluster, and its labels of most items."""
    row = db.execute(
        "SELECT names_json FROM cluster WHERE clustering = ? AND number = ?", (here.branch.clustering, one.cluster)
    ).fetchone()
    heaviest = read_labels(db, here.branch, Asked(one.id), limit=2).labels
    names = [*([] if row is None else json.loads(row[0])), *(label.text for label in heaviest)]
    return [name for name in dict.fromkeys(names) if name != one.name or not one.named][:5]
