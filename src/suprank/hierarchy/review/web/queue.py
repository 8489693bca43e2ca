"""The list of groups: what is to be done, what is done, and acts on several groups at once."""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.responses import Response

from suprank.hierarchy.review.acts import Act, Create, Mark, Merge, SetParent
from suprank.hierarchy.review.starting import opened_branch
from suprank.hierarchy.review.web.acting import Offer, Refusal, attempt
from suprank.hierarchy.review.web.auth import Here, Visit
from suprank.hierarchy.review.web.forms import Form, Sent
from suprank.hierarchy.review.web.views.board import ORDERS, Board, Group, read_board
from suprank.hierarchy.review.web.views.labels import waiting
from suprank.hierarchy.text import key_of
from suprank.web.pages import offset_of

router = APIRouter()

PAGE = 50
SHOWN = ("all", "open", "done", "unnamed", "empty")


@router.get("/{name}/")
def queue(here: Here) -> Response:
    return _page(here)


@router.post("/{name}/")
def acted(here: Here, sent: Form) -> Response:
    with here.project.reading() as db:
        board = read_board(db, here.branch)
    if sent.text("act") == "sync":
        opened_branch(here.project, here.branch.name)
        return here.went(here.branch.log(limit=1)[0])
    act = _act(board, sent)
    done = act if isinstance(act, Refusal) else attempt(here.branch, act, sent, sent.seen("group"))
    return _page(here, done, sent) if isinstance(done, Refusal) else here.went(done)


def _act(board: Board, sent: Sent) -> Act | Refusal:
    """What the form asks for; `act` may hold its object after a colon, as `merge:12`."""
    called, _, given = sent.text("act").partition(":")
    groups = tuple(sent.seen("group"))
    if called == "create":
        return Create(1, sent.text("name"))
    if not groups:
        return Refusal(400, "Tick at least one group first.")
    if called == "":  # the Enter key
        called = "merge" if sent.text("into").strip() else "parent"
    if called == "merge":
        return merged(board, groups, given or sent.text("into"), "selection")
    if called == "parent":
        return put_under(groups, sent)
    return Mark(groups, called)


def put_under(groups: tuple[int, ...], sent: Sent) -> Act | Refusal:
    """Put groups under the one that is chosen in the field `parent`, or under nothing where that is `none`."""
    chosen = sent.number("parent")
    if chosen is None and sent.text("parent") != "none":
        return Refusal(400, "Choose what it is to stand under.")
    return SetParent(groups, chosen)


def merged(board: Board, groups: tuple[int, ...], into: str, form: str, level: int = 1) -> Act | Refusal:
    """Merge these groups into the one of this name or number; offers those of similar names where there is none."""
    if not into.strip():
        return Refusal(400, "Say which group to merge into.")
    target = board.called(into, level)
    if target is None:
        offers = [Offer(form, f"merge:#{one.id}", f"merge into {one.name!r}") for one in board.like(into, level)]
        return Refusal(400, f"There is no group called {into!r}.", offers=tuple(offers))
    return Merge(groups, target.id)


def ticked_elsewhere(board: Board, sent: Sent | None, shown: list[Group]) -> list[str]:
    """What the boxes of groups would send that are ticked in a form and not on the page that shows it again."""
    on_page = {one.id for one in shown}
    ticked = [] if sent is None else [board.get(number) for number in sent.seen("group") if number not in on_page]
    return [one.tick for one in ticked if one is not None]


def _page(here: Visit, refusal: Refusal | None = None, sent: Sent | None = None) -> Response:
    order, shown = here.choice("sort", ORDERS), here.choice("show", SHOWN)
    offset, text, under = offset_of(here.parameters), here.parameters.get("q", "").strip(), here.parameters.get("under", "")
    with here.project.reading() as db:
        board, new = read_board(db, here.branch), waiting(db, here.branch)
    found = [one for one in board.ordered(order) if _is_shown(one, shown, under) and key_of(text) in key_of(one.name)]
    return here.html(
        "queue.html",
        200 if refusal is None else refusal.status,
        board=board,
        waiting=new,
        found=found[offset : offset + PAGE],
        total=len(found),
        next_open=board.next_open(order, board.last_group),
        order=order,
        shown=shown,
        under=under,
        text=text,
        offset=offset,
        page=PAGE,
        refusal=refusal,
        said=None if refusal is None else refusal.said,
        ticked=set() if sent is None else set(sent.seen("group")),
        off_page=ticked_elsewhere(board, sent, found[offset : offset + PAGE]),
        kept=sent,
    )


def _is_shown(one: Group, shown: str, under: str) -> bool:
    if under and str(one.parent or "none") != under:
        return False
    states = {"open": not one.done, "done": one.done, "unnamed": not one.named, "empty": not one.labels}
    return states.get(shown, True)
