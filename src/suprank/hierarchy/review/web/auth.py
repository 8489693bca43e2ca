"""Authenticate annotators: the URL names the branch, and a cookie has its token.

A page handler takes `request: Authenticated`, reads `request.branch` and `request.query`, and returns
`request.html("template.html", ...)`; one that receives a form also takes `form: Form` (see forms.py). FastAPI looks both up in
the namespace of the handler's module, so they are imported there at run time.
"""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import parse_qsl

from fastapi import Depends, HTTPException, Path, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from suprank.hierarchy.review.branch import Branch
from suprank.web.pages import link

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from suprank.hierarchy.project import Project
    from suprank.hierarchy.review.branch import Event
    from suprank.hierarchy.review.web.review import Review

TRANSIENT = ("did", "suggest")
"""Query parameters about the last action only; they are dropped from the URL that a page returns to."""

USE_THE_LINK = "This page belongs to one annotator: use the link that `suprank hierarchy review` prints in its terminal."


@dataclass(frozen=True)
class AnnotatorRequest:
    """A request of an annotator who may open the branch. All their URLs start with `prefix`, such as "/anna"."""

    http: Request
    review: Review
    branch: Branch

    @property
    def project(self) -> Project:
        return self.review.project

    @property
    def prefix(self) -> str:
        return f"/{self.branch.name}"

    @property
    def path(self) -> str:
        return self.http.url.path

    @property
    def query(self) -> Mapping[str, str]:
        return self.http.query_params

    @property
    def url(self) -> str:
        """The path and query of this page. Forms are sent there, so that a refusal shows the same page again."""
        return self.url_with(**dict.fromkeys(TRANSIENT))

    def url_with(self, **changed: object) -> str:
        """The URL of this page with some query parameters changed; None removes one."""
        return link(self.path, **{**self.query, **changed})

    def choice(self, name: str, allowed: Iterable[str]) -> str:
        """A query parameter that must be one of some words, by default the first; status 400 for any other."""
        words = list(allowed)
        value = self.query.get(name) or words[0]
        if value not in words:
            raise HTTPException(400, f"{name}={value!r} must be one of {', '.join(words)}.")
        return value

    def redirect(self, event: Event | None, url: str | None = None) -> RedirectResponse:
        """Redirect to this page or another one, which reports what was done."""
        path, _, query = (url or self.url).partition("?")
        did = None if event is None else event.seq
        return RedirectResponse(link(path, **{**dict(parse_qsl(query)), "did": did}), 303)

    def html(self, template: str, status: int = 200, **values: Any) -> HTMLResponse:
        """Render a template; `Templates` adds what every page shows."""
        return HTMLResponse(self.review.templates.render(template, self, **values), status)


def cookie_name(branch: Branch) -> str:
    """The name of an annotator's cookie. It differs between projects, because cookies do not distinguish ports."""
    return f"suprank_{hashlib.sha256(branch.token.encode()).hexdigest()[:12]}"


def token_matches(branch: Branch, token: str | None) -> bool:
    """Whether this token opens the branch."""
    return token is not None and secrets.compare_digest(token.encode(), branch.token.encode())


def log_in(request: Request, name: str, token: str, path: str) -> Response:
    """Set the cookie that opens the branch and go to `path`; status 403 for a wrong token."""
    review: Review = request.app.state.review
    branch = review.branches.get(name)
    if branch is None or not token_matches(branch, token):
        raise HTTPException(403, USE_THE_LINK)
    response: Response
    if request.headers.get("sec-fetch-site", "none") in ("none", "same-origin"):
        response = RedirectResponse(path, 303)
    else:  # the link was on another site, such as a mail page: a strict cookie is not sent with a redirect from there
        response = HTMLResponse(review.templates.render("enter.html", path=path))
    response.set_cookie(cookie_name(branch), branch.token, path=f"/{name}", httponly=True, samesite="strict")
    response.headers["Cache-Control"] = "no-store"
    return response


def authenticate(name: str, request: Request) -> AnnotatorRequest:
    """The annotator's request, or status 403, also for unknown names, so that nobody learns which names exist."""
    review: Review = request.app.state.review
    branch = review.branches.get(name)
    if branch is None or not token_matches(branch, request.cookies.get(cookie_name(branch))):
        raise HTTPException(403, USE_THE_LINK)
    return AnnotatorRequest(request, review, branch)


Authenticated = Annotated[AnnotatorRequest, Depends(authenticate)]
Number = Annotated[int, Path(ge=0, lt=10**15)]
"""The id of a group, or a row, in a URL. SQLite accepts no larger numbers."""
