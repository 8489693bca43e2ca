"""The history of a branch, undo and redo, the help page, and sample images."""

from __future__ import annotations

import re

from fastapi import APIRouter, HTTPException
from fastapi.responses import Response

from suprank.hierarchy.project import BusyError, FullError
from suprank.hierarchy.review.actions import ConflictError, RefusedError
from suprank.hierarchy.review.web.auth import AnnotatorRequest, Authenticated, Number
from suprank.hierarchy.review.web.forms import Form, Refusal, SubmittedForm, refusal_for
from suprank.web.forms import page_offset

router = APIRouter()

ROWS = 50


@router.get("/{name}/history")
def history(request: Authenticated) -> Response:
    return _page(request)


@router.post("/{name}/undo")
def undo(request: Authenticated, form: Form) -> Response:
    return _reverse(request, form, "undo")


@router.post("/{name}/redo")
def redo(request: Authenticated, form: Form) -> Response:
    return _reverse(request, form, "redo")


@router.get("/{name}/help")
def keys(request: Authenticated) -> Response:
    return request.html("help.html")


@router.get("/{name}/picture/{row}")
def image(request: Authenticated, row: Number) -> Response:
    samples = request.review.samples
    if samples is None or not 0 <= row < len(samples.manifest):
        raise HTTPException(404, "There is no such image.")
    encoded = samples.thumbnail(row)
    return Response(encoded.data, 200 if encoded.found else 404, encoded.cache_headers, encoded.media_type)


def _reverse(request: AnnotatorRequest, form: SubmittedForm, action: str) -> Response:
    seq = form.number("seq")
    try:
        reverse = request.branch.undo if action == "undo" else request.branch.redo
        event = reverse(seq, token=form.action_token(f"{action} {seq}"))
    except (RefusedError, ConflictError, BusyError, FullError) as error:
        return _page(request, refusal_for(error))
    return request.redirect(event, _return_url(request, form.text("back")))


def _return_url(request: AnnotatorRequest, url: str) -> str:
    """The page with the button, if it is one of ours and still exists; otherwise the list of groups."""
    path = url.partition("?")[0]
    if not re.fullmatch(rf"/{re.escape(request.branch.name)}/[a-z0-9/]*", path):
        return f"{request.prefix}/"
    number = re.fullmatch(r"/[^/]+/(?:group|parent)/([0-9]{1,15})", path)
    if number is not None:
        with request.project.snapshot() as db:
            sql = 'SELECT 1 FROM "group" WHERE branch = ? AND id = ?'
            if db.execute(sql, (request.branch.id, int(number[1]))).fetchone() is None:
                return f"{request.prefix}/"
    return url


def _page(request: AnnotatorRequest, refusal: Refusal | None = None) -> Response:
    offset = page_offset(request.query)
    with request.project.snapshot() as db:
        total = db.execute("SELECT count(*) FROM event WHERE branch = ?", (request.branch.id,)).fetchone()[0]
        undoable = set(request.branch.undo_stacks(db)[0])
    return request.html(
        "history.html",
        200 if refusal is None else refusal.status,
        events=request.branch.log(offset=offset, limit=ROWS),
        undoable=undoable,
        total=total,
        offset=offset,
        page=ROWS,
        message=None if refusal is None else refusal.message,
    )
