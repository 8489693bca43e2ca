"""The page on which the disagreements of two annotators are resolved. All of it works without scripts."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fastapi import APIRouter, HTTPException, Request
from fastapi.responses import RedirectResponse, Response

from suprank.hierarchy.adjudication import Adjudication, AdjudicationStatus, Case
from suprank.hierarchy.agreement.disagreements import KINDS, Annotation, Disagreement, Kind
from suprank.hierarchy.project import BusyError, FullError
from suprank.hierarchy.review.actions import ConflictError, RefusedError
from suprank.hierarchy.review.web.auth import AnnotatorRequest, Authenticated, log_in
from suprank.hierarchy.review.web.forms import MAX_SUGGESTED_NAMES, Form, Refusal, SubmittedForm, refusal_for
from suprank.hierarchy.review.web.queries import LabelQuery, read_labels, sample_items
from suprank.hierarchy.text import label_key
from suprank.web.forms import page_offset
from suprank.web.pages import link

if TYPE_CHECKING:
    from collections.abc import Iterable

    from suprank.hierarchy.adjudication import Choice

router = APIRouter()

ROWS = 50
GROUP_IMAGES = 4
MAX_PAIRS = 8
"""Number of pairs of places whose labels can be resolved at once."""

FILTERS = {"open": "to resolve", "resolved": "resolved", "all": "all"}
_CHOICES: tuple[Choice, ...] = ("first", "second", "other", "excluded")


@dataclass(frozen=True)
class PlacePair:
    """Labels that the first annotator put into one place and the second into another."""

    key: str
    first: str
    second: str
    labels: int
    items: int


@router.get("/{name}/adjudicate")
def adjudicate(request: Authenticated) -> Response:
    return _page(request)


@router.get("/{name}/adjudicate/enter")
def enter(request: Request, name: str, token: str = "") -> Response:
    """The link that `agree --adjudicate` prints. It opens this page; the link of a review opens the list of groups."""
    return log_in(request, name, token, f"/{name}/adjudicate")


@router.post("/{name}/adjudicate")
def submit(request: Authenticated, form: Form) -> Response:
    adjudication = _adjudication(request)
    choice, _, which = form.text("act").partition(":")
    try:
        if choice not in _CHOICES:
            raise RefusedError("Use one of the buttons: take one of the two answers, another one, or exclude.")
        chosen, seen = _chosen_cases(request, adjudication.status(), which, form)
        event = adjudication.resolve(
            chosen,
            choice,
            form.text("other"),
            reason=form.text("reason"),
            who=form.text("who").strip() or None,
            token=form.action_token(f"{choice} {which} {' '.join(one.subject for one in chosen)}"),
            seen=seen,
        )
    except (RefusedError, ConflictError, BusyError, FullError) as error:
        return _page(request, refusal_for(error), form)
    query = {key: value for key, value in request.query.items() if key not in ("did", "who")}
    return RedirectResponse(link(request.path, **query, who=form.text("who").strip(), did=event.seq), 303)


def _adjudication(request: AnnotatorRequest) -> Adjudication:
    if request.branch.kind != "final":
        raise HTTPException(404, "Only the branch `final` has this page; `suprank hierarchy agree --adjudicate` opens it.")
    return request.review.adjudication


def _chosen_cases(
    request: AnnotatorRequest, status: AdjudicationStatus, which: str, form: SubmittedForm
) -> tuple[list[Disagreement], dict[tuple[Kind, str], str]]:
    """The cases of a button, with their fingerprints: one row, the selected rows, all open cases, or those of a pair."""
    kind = _kind(request)
    if which != "all" and not which.startswith("pair:"):
        subjects = set(form.fields.getlist("row")) if which == "" else {which}
        return [case.disagreement for case in status.cases[kind] if case.disagreement.subject in subjects], _fingerprints(form)
    # The page does not show all of them, so nothing may have been decided since.
    if form.number("newest") != _newest_event(request):
        raise ConflictError("Something was decided in the meantime, so other cases are open now; nothing was saved.")
    pair = request.query.get("pair", "") if which == "all" else which.removeprefix("pair:")
    open_cases = [case for case in status.cases[kind] if not case.resolved and _is_in_pair(pair, case.disagreement)]
    fingerprints = {(kind, case.disagreement.subject): case.fingerprint for case in open_cases}
    return [case.disagreement for case in open_cases], fingerprints


def _newest_event(request: AnnotatorRequest) -> int:
    return request.branch.log(limit=1)[0].seq


def _fingerprints(form: SubmittedForm) -> dict[tuple[Kind, str], str]:
    """The fingerprints of the rows on the page, from fields `KIND SUBJECT FINGERPRINT`."""
    found: dict[tuple[Kind, str], str] = {}
    for text in form.fields.getlist("was"):
        kind, _, rest = str(text).partition(" ")
        subject, _, fingerprint = rest.partition(" ")
        if kind in KINDS:
            found[kind, subject] = fingerprint
    return found


def _kind(request: AnnotatorRequest) -> Kind:
    kind = request.choice("kind", KINDS)
    return next(one for one in KINDS if one == kind)


def _page(request: AnnotatorRequest, refusal: Refusal | None = None, form: SubmittedForm | None = None) -> Response:
    adjudication = _adjudication(request)
    kind, show, offset = _kind(request), request.choice("show", FILTERS), page_offset(request.query)
    newest = _newest_event(request)  # read first: an action in between leads to a refusal, and is not missed
    pair, status = request.query.get("pair", ""), adjudication.status()
    cases = [case for case in status.cases[kind] if not pair or _is_in_pair(pair, case.disagreement)]
    listed = [case for case in cases if show == "all" or case.resolved == (show == "resolved")]
    if offset and offset >= len(listed):
        offset = max(0, (len(listed) - 1) // ROWS * ROWS)  # everything on the last page was resolved
    pairs = _pairs(case for case in cases if pair or not case.resolved) if kind == "label" and (pair or show == "open") else []
    first, second = adjudication.names()
    return request.html(
        "adjudicate.html",
        200 if refusal is None else refusal.status,
        kind=kind,
        newest=newest,
        show=show,
        filters=FILTERS,
        kinds=KINDS,
        overview=status,
        first=first,
        second=second,
        listed=listed[offset : offset + ROWS],
        images=_images(request, listed[offset : offset + ROWS]),
        total=len(listed),
        open_count=sum(not case.resolved for case in cases),
        pairs=[] if pair else [one for one in pairs if one.labels > 1][:MAX_PAIRS],
        pair=pairs[0] if pair and pairs else None,
        names=_suggested_names(adjudication, kind),
        offset=offset,
        page=ROWS,
        who=request.query.get("who", "") if form is None else form.text("who"),
        selected=set() if form is None else set(form.fields.getlist("row")),
        message=None if refusal is None else refusal.message,
        form=form,
    )


def _images(request: AnnotatorRequest, cases: list[Case]) -> dict[str, list[int]]:
    """Subject → manifest rows that show it: of the label, or of the heaviest labels of the group."""
    if request.review.samples is None:
        return {}
    images: dict[str, list[int]] = {}
    with request.project.snapshot() as db:
        for case in cases:
            one = case.disagreement
            if one.kind == "label":
                images[one.subject] = request.review.image_rows(one.about, sample_items(db, int(one.subject)))
                continue
            query = LabelQuery(int(one.subject.split("|")[0]))
            labels = read_labels(db, request.branch, query, limit=GROUP_IMAGES).labels
            images[one.subject] = [row for label in labels for row in request.review.image_rows(label.text, label.samples)[:1]]
    return images


def _pairs(cases: Iterable[Case]) -> list[PlacePair]:
    """Pairs of places, those with the most items first."""
    by_pair: defaultdict[str, list[Disagreement]] = defaultdict(list)
    for case in cases:
        by_pair[_pair_key(case.disagreement)].append(case.disagreement)
    pairs = [PlacePair(key, *ones[0].descriptions, len(ones), sum(one.weight for one in ones)) for key, ones in by_pair.items()]
    return sorted(pairs, key=lambda one: (-one.items, -one.labels, one.key))


def _pair_key(one: Disagreement) -> str:
    return f"{_place_key(one.first)}.{_place_key(one.second)}"


def _place_key(annotation: Annotation) -> str:
    return str(annotation.group) if annotation.group is not None else "out" if annotation.reason is not None else "none"


def _is_in_pair(pair: str, one: Disagreement) -> bool:
    return not pair or _pair_key(one) == pair


def _suggested_names(adjudication: Adjudication, kind: Kind) -> list[str]:
    """Names of groups on the final branch, and of groups that either annotator has."""
    if kind == "name":
        return []
    names = {row.name for row in adjudication.group_rows().values() if (row.level == 1) == (kind == "label")}
    return sorted(names, key=label_key)[:MAX_SUGGESTED_NAMES]
