"""The log of a branch: what was done, with undo for each; undo and redo of every page; help, and pictures."""

from __future__ import annotations

import re

from fastapi import APIRouter, HTTPException
from fastapi.responses import Response

from suprank.hierarchy.project import BusyError, FullError
from suprank.hierarchy.review.acts import ConflictError, RefusedError
from suprank.hierarchy.review.web.acting import Refusal, refusal_of
from suprank.hierarchy.review.web.auth import Here, Number, Visit
from suprank.hierarchy.review.web.forms import Form, Sent
from suprank.hierarchy.review.web.views.events import undoable_of
from suprank.web.pages import offset_of

router = APIRouter()

PAGE = 50


@router.get("/{name}/history")
def history(here: Here) -> Response:
    return _page(here)


@router.post("/{name}/undo")
def undo(here: Here, sent: Form) -> Response:
    return _reversed(here, sent, "undo")


@router.post("/{name}/redo")
def redo(here: Here, sent: Form) -> Response:
    return _reversed(here, sent, "redo")


@router.get("/{name}/help")
def keys(here: Here) -> Response:
    return here.html("help.html")


@router.get("/{name}/picture/{row}")
def picture(here: Here, row: Number) -> Response:
    samples = here.review.samples
    if samples is None or not 0 <= row < len(samples.manifest):
        raise HTTPException(404, "There is no such picture.")
    made = samples.picture(row)
    return Response(made.data, 200 if made.there else 404, made.kept, made.kind)


def _reversed(here: Visit, sent: Sent, act: str) -> Response:
    seq = sent.number("seq")
    try:
        reverse = here.branch.undo if act == "undo" else here.branch.redo
        event = reverse(seq, token=sent.click(f"{act} {seq}"))
    except (RefusedError, ConflictError, BusyError, FullError) as error:
        return _page(here, refusal_of(error))
    return here.went(event, _back(here, sent.text("back")))


def _back(here: Visit, address: str) -> str:
    """The page the button was on, if it is one of ours and still there; else the list of groups."""
    path = address.partition("?")[0]
    if not re.fullmatch(rf"/{re.escape(here.branch.name)}/[a-z0-9/]*", path):
        return f"{here.prefix}/"
    number = re.fullmatch(r"/[^/]+/(?:group|above)/([0-9]{1,15})", path)
    if number is not None:
        with here.project.reading() as db:
            asked = 'SELECT 1 FROM "group" WHERE branch = ? AND id = ?'
            if db.execute(asked, (here.branch.id, int(number[1]))).fetchone() is None:
                return f"{here.prefix}/"
    return address


def _page(here: Visit, refusal: Refusal | None = None) -> Response:
    offset = offset_of(here.parameters)
    with here.project.reading() as db:
        total = db.execute("SELECT count(*) FROM event WHERE branch = ?", (here.branch.id,)).fetchone()[0]
        undoable = undoable_of(db, here.branch)
    return here.html(
        "history.html",
        200 if refusal is None else refusal.status,
        events=here.branch.log(offset=offset, limit=PAGE),
        undoable=undoable,
        total=total,
        offset=offset,
        page=PAGE,
        said=None if refusal is None else refusal.said,
    )
