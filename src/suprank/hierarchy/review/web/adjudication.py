"""The page on which two annotators settle what they differ in. All of it works without a script."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from importlib.resources import files
from typing import TYPE_CHECKING

from fastapi import APIRouter, HTTPException, Request
from fastapi.responses import RedirectResponse, Response

from suprank.hierarchy.adjudication import Settling, Subject, Unsettled
from suprank.hierarchy.agreement.disagreements import KINDS, Disagreement, Kind, View
from suprank.hierarchy.project import BusyError, FullError
from suprank.hierarchy.review.acts import ConflictError, RefusedError
from suprank.hierarchy.review.web.acting import Refusal, refusal_of
from suprank.hierarchy.review.web.auth import Here, Visit, entered
from suprank.hierarchy.review.web.forms import Form, Sent
from suprank.hierarchy.text import key_of
from suprank.web.pages import link, offset_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from suprank.hierarchy.adjudication import Choice

router = APIRouter()

PAGE = 50
PAIRS = 8
"""Pairs of places that are offered to be settled at once."""

NAMES = 1_000
"""Group names that are offered while one types; any other can be typed all the same."""

SHOWN = {"open": "to settle", "settled": "settled", "all": "all"}
_CHOICES: tuple[Choice, ...] = ("first", "second", "other", "excluded")


@dataclass(frozen=True)
class Pair:
    """Labels that the first put into one place and the second into another."""

    key: str
    first: str
    second: str
    labels: int
    items: int


@router.get("/{name}/settle")
def settle(here: Here) -> Response:
    return _page(here)


@router.get("/{name}/settle/enter")
def enter(request: Request, name: str, token: str = "") -> Response:
    """The link that `agree --settle` prints: to the settling, where the link of a review goes to the groups."""
    return entered(request, name, token, f"/{name}/settle")


@router.post("/{name}/settle")
def settled(here: Here, sent: Form) -> Response:
    settling = _settling(here)
    choice, _, which = sent.text("act").partition(":")
    try:
        if choice not in _CHOICES:
            raise RefusedError("Use one of the buttons: which of the two to take, another, or to exclude.")
        chosen, seen = _chosen(here, settling.now(), which, sent)
        event = settling.settle(
            chosen,
            choice,
            sent.text("other"),
            reason=sent.text("reason"),
            who=sent.text("who").strip() or None,
            token=sent.click(f"{choice} {which} {' '.join(one.subject for one in chosen)}"),
            seen=seen,
        )
    except (RefusedError, ConflictError, BusyError, FullError) as error:
        return _page(here, refusal_of(error), sent)
    kept = {key: value for key, value in here.parameters.items() if key not in ("did", "who")}
    return RedirectResponse(link(here.request.url.path, **kept, who=sent.text("who").strip(), did=event.seq), 303)


@router.get("/settle/{file}")
def asset(file: str) -> Response:
    kinds = {"settle.css": "text/css", "settle.js": "text/javascript"}
    if file not in kinds:
        raise HTTPException(404)
    text = (files("suprank.hierarchy.review.web") / file).read_text(encoding="utf-8")
    return Response(text, media_type=kinds[file], headers={"Cache-Control": "no-cache"})


def _settling(here: Visit) -> Settling:
    """Kept from one request to the next, because it knows what was read from the logs."""
    if here.branch.kind != "final":
        raise HTTPException(404, "Only the final branch is settled; `suprank hierarchy agree --settle` opens it.")
    state = here.request.app.state
    if not hasattr(state, "settling"):
        state.settling = Settling(here.project)
    found: Settling = state.settling
    return found


def _chosen(here: Visit, now: Unsettled, which: str, sent: Sent) -> tuple[list[Disagreement], dict[tuple[Kind, str], str]]:
    """What a button is for, and how that stood on the page: one row, the ticked ones, all that wait, or those of a pair."""
    kind = _kind(here)
    if which != "all" and not which.startswith("pair:"):
        wanted = set(sent.fields.getlist("row")) if which == "" else {which}
        return [one.disagreement for one in now.subjects[kind] if one.disagreement.subject in wanted], _seen(sent)
    if sent.number("newest") != _newest(here):  # they are not all on the page: nothing else may have been decided since
        raise ConflictError("Something was decided meanwhile, and other ones wait now; nothing was saved.")
    pair = here.parameters.get("pair", "") if which == "all" else which.removeprefix("pair:")
    waiting = [one for one in now.subjects[kind] if not one.settled and _is_of(pair, one.disagreement)]
    return [one.disagreement for one in waiting], {(kind, one.disagreement.subject): one.standing for one in waiting}


def _newest(here: Visit) -> int:
    """The last event of the branch."""
    return here.branch.log(limit=1)[0].seq


def _seen(sent: Sent) -> dict[tuple[Kind, str], str]:
    """How the rows stood on the page, from `KIND SUBJECT STANDING`."""
    found: dict[tuple[Kind, str], str] = {}
    for text in sent.fields.getlist("was"):
        kind, _, rest = str(text).partition(" ")
        subject, _, stood = rest.partition(" ")
        if kind in KINDS:
            found[kind, subject] = stood
    return found


def _kind(here: Visit) -> Kind:
    kind = here.choice("kind", KINDS)
    return next(one for one in KINDS if one == kind)


def _page(here: Visit, refusal: Refusal | None = None, sent: Sent | None = None) -> Response:
    settling = _settling(here)
    kind, show, offset = _kind(here), here.choice("show", SHOWN), offset_of(here.parameters)
    newest = _newest(here)  # before the rest is read: an act in between is refused rather than missed
    pair, now = here.parameters.get("pair", ""), settling.now()
    subjects = [one for one in now.subjects[kind] if not pair or _is_of(pair, one.disagreement)]
    listed = [one for one in subjects if show == "all" or one.settled == (show == "settled")]
    if offset and offset >= len(listed):
        offset = max(0, (len(listed) - 1) // PAGE * PAGE)  # the last page was settled
    pairs = _pairs(one for one in subjects if pair or not one.settled) if kind == "label" and (pair or show == "open") else []
    first, second = settling.sides()
    return here.html(
        "settle.html",
        200 if refusal is None else refusal.status,
        kind=kind,
        newest=newest,
        show=show,
        shown=SHOWN,
        kinds=KINDS,
        now=now,
        first=first,
        second=second,
        listed=listed[offset : offset + PAGE],
        total=len(listed),
        waiting=sum(not one.settled for one in subjects),
        pairs=[] if pair else [one for one in pairs if one.labels > 1][:PAIRS],
        pair=pairs[0] if pair and pairs else None,
        names=_names(settling, kind),
        offset=offset,
        page=PAGE,
        who=here.parameters.get("who", "") if sent is None else sent.text("who"),
        ticked=set() if sent is None else set(sent.fields.getlist("row")),
        said=None if refusal is None else refusal.said,
        kept=sent,
    )


def _pairs(subjects: Iterable[Subject]) -> list[Pair]:
    """The heaviest first."""
    together: defaultdict[str, list[Disagreement]] = defaultdict(list)
    for one in subjects:
        together[_key(one.disagreement)].append(one.disagreement)
    found = [Pair(key, *ones[0].sides, len(ones), sum(one.weight for one in ones)) for key, ones in together.items()]
    return sorted(found, key=lambda one: (-one.items, -one.labels, one.key))


def _key(one: Disagreement) -> str:
    return f"{_side(one.first)}.{_side(one.second)}"


def _side(view: View) -> str:
    return str(view.group) if view.group is not None else "out" if view.reason is not None else "none"


def _is_of(pair: str, one: Disagreement) -> bool:
    return not pair or _key(one) == pair


def _names(settling: Settling, kind: Kind) -> list[str]:
    """Names to offer: of the groups there are, and of those that either of the two has."""
    if kind == "name":
        return []
    rows = {**settling.plan_now().rows, **settling.groups()}
    names = {row.name for row in rows.values() if (row.level == 1) == (kind == "label")}
    return sorted(names, key=key_of)[:NAMES]
