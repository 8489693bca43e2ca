"""The levels above: which groups stand under which, and the groups that hold groups."""

from __future__ import annotations

from fastapi import APIRouter, HTTPException
from fastapi.responses import RedirectResponse, Response

from suprank.hierarchy.review.acts import Act, Create, Delete, Note, Rename
from suprank.hierarchy.review.web.acting import NO_BUTTON, Offer, Refusal, attempt
from suprank.hierarchy.review.web.auth import Here, Number, Visit
from suprank.hierarchy.review.web.forms import Form, Sent
from suprank.hierarchy.review.web.queue import merged, put_under, ticked_elsewhere
from suprank.hierarchy.review.web.views.board import Board, Group, read_board
from suprank.hierarchy.review.web.views.events import events_of
from suprank.hierarchy.text import key_of
from suprank.web.pages import offset_of

router = APIRouter()

PAGE = 200


@router.get("/{name}/tree")
def tree(here: Here) -> Response:
    return _tree(here)


@router.post("/{name}/tree")
def tree_acted(here: Here, sent: Form) -> Response:
    creating = sent.text("act") == "create"
    act = Create(_level(here) + 1, sent.text("name")) if creating else _put(tuple(sent.seen("group")), sent)
    done = act if isinstance(act, Refusal) else attempt(here.branch, act, sent, sent.seen("group"))
    return _tree(here, done, sent) if isinstance(done, Refusal) else here.went(done)


@router.get("/{name}/above/{number}")
def above(here: Here, number: Number) -> Response:
    return _above(here, number)


@router.post("/{name}/above/{number}")
def above_acted(here: Here, number: Number, sent: Form) -> Response:
    with here.project.reading() as db:
        board = read_board(db, here.branch)
    one = board.get(number)
    act = _act(board, number, one, sent)
    seen = {**sent.seen(), **sent.seen("group")}
    done = act if isinstance(act, Refusal) else attempt(here.branch, act, sent, seen)
    if isinstance(done, Refusal):
        twin = board.get(done.merge_with)
        if twin is not None:
            offer = Offer("merge", f"merge:#{twin.id}", f"merge this group into {twin.name!r}")
            done = Refusal(done.status, done.said, done.groups, done.merge_with, (offer,))
        return _above(here, number, done, sent)
    gone = sent.text("act") == "delete" or sent.text("act").startswith("merge")
    return here.went(done, f"{here.prefix}/tree" if gone else None)


def _act(board: Board, number: int, one: Group | None, sent: Sent) -> Act | Refusal:
    called, _, given = sent.text("act").partition(":")
    match called:
        case "put":
            return _put(tuple(sent.seen("group")), sent)
        case "parent":
            return put_under((number,), sent)
        case "rename":
            return Rename(number, given or sent.text("name"))
        case "merge":
            # What stands under it moves along, so that the groups below are changed too.
            return merged(board, (number,), given or sent.text("into"), "merge", 1 if one is None else one.level)
        case "note":
            return Note(number, sent.text("note"))
        case "delete":
            return Delete(number)
    return Refusal(400, NO_BUTTON)


def _put(groups: tuple[int, ...], sent: Sent) -> Act | Refusal:
    if not groups:
        return Refusal(400, "Tick at least one group first.")
    return put_under(groups, sent)


def _level(here: Visit) -> int:
    """Which level's groups are put under those of the next; the finest by default."""
    depth = here.project.recipe.depth
    return int(here.choice("level", [str(level) for level in range(1, max(2, depth))]))


def _tree(here: Visit, refusal: Refusal | None = None, sent: Sent | None = None) -> Response:
    level, offset = _level(here), offset_of(here.parameters)
    text, under = here.parameters.get("q", "").strip(), here.parameters.get("under", "")
    with here.project.reading() as db:
        board = read_board(db, here.branch)
    parents = board.ordered("name", level + 1)
    place = {one.id: number for number, one in enumerate(parents)}
    found = [
        one
        for one in board.ordered("size", level)
        if key_of(text) in key_of(one.name) and (not under or str(one.parent or "none") == under)
    ]
    found.sort(key=lambda one: -1 if one.parent is None else place.get(one.parent, -1))
    return here.html(
        "tree.html",
        200 if refusal is None else refusal.status,
        board=board,
        level=level,
        parents=parents,
        orphans=board.children(None, level),
        found=found[offset : offset + PAGE],
        total=len(found),
        text=text,
        under=under,
        offset=offset,
        page=PAGE,
        ticked=set() if sent is None else set(sent.seen("group")),
        off_page=ticked_elsewhere(board, sent, found[offset : offset + PAGE]),
        refusal=refusal,
        said=None if refusal is None else refusal.said,
        kept=sent,
    )


def _above(here: Visit, number: int, refusal: Refusal | None = None, sent: Sent | None = None) -> Response:
    offset = offset_of(here.parameters)
    with here.project.reading() as db:
        board = read_board(db, here.branch)
        past = events_of(db, here.branch, number)
    one = board.get(number)
    if one is None and refusal is not None:
        typed = {} if sent is None else {name: sent.text(name) for name in ("name", "into", "note") if sent.text(name)}
        return here.html("gone.html", 409, places=[], typed=typed, said=f"{refusal.said} Nothing was saved.")
    if one is None:
        raise HTTPException(404, "There is no such group: it never was, or it was merged or removed.")
    if one.level == 1:
        return RedirectResponse(f"{here.prefix}/group/{number}", 303)
    children = board.children(number, one.level - 1)
    return here.html(
        "above.html",
        200 if refusal is None else refusal.status,
        group=one,
        board=board,
        children=children[offset : offset + PAGE],
        total=len(children),
        siblings=[other for other in board.ordered("name", one.level) if other.id != number],
        parents=board.ordered("name", one.level + 1),
        seen=" ".join(child.tick for child in (one, *children)),
        past=past,
        offset=offset,
        page=PAGE,
        ticked=set() if sent is None else set(sent.seen("group")),
        off_page=ticked_elsewhere(board, sent, children[offset : offset + PAGE]),
        refusal=refusal,
        said=None if refusal is None else refusal.said,
        kept=sent,
    )
