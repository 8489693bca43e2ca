"""Who asks: the branch of a request, by the name in its address and the token in its cookie; and how it is answered.

A router takes `here: Here`, reads `here.branch` and `here.parameters`, and answers `here.html("its_template.html", ...)`;
one that is sent a form takes `sent: Form` too (see forms.py). Both are in the table of names of its module, because FastAPI
reads annotations from there.
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

PASSING = ("did", "suggest")
"""Parameters that say what was just done or asked; a page that is come back to has them no longer."""

USE_THE_LINK = "This page is for one annotator: open it by the link that `suprank hierarchy review` prints in its terminal."


@dataclass(frozen=True)
class Visit:
    """A request by an annotator who may see the branch. `prefix` begins every address of theirs: "/anna"."""

    request: Request
    review: Review
    branch: Branch

    @property
    def project(self) -> Project:
        return self.review.project

    @property
    def prefix(self) -> str:
        return f"/{self.branch.name}"

    @property
    def parameters(self) -> Mapping[str, str]:
        return self.request.query_params

    @property
    def address(self) -> str:
        """Where this page is: path and parameters. Forms are sent there, so that a refusal shows the same page again."""
        return self.with_(**dict.fromkeys(PASSING))

    def with_(self, **changed: object) -> str:
        """This page with some parameters changed; None takes one away."""
        return link(self.request.url.path, **{**self.parameters, **changed})

    def choice(self, name: str, allowed: Iterable[str]) -> str:
        """A parameter that must be one of some words, the first by default; 400 where it is another."""
        words = list(allowed)
        value = self.parameters.get(name) or words[0]
        if value not in words:
            raise HTTPException(400, f"{name}={value!r} must be one of {', '.join(words)}.")
        return value

    def went(self, event: Event | None, path: str | None = None) -> RedirectResponse:
        """To this page again, or to another, which tells what was done."""
        where, _, query = (path or self.address).partition("?")
        did = None if event is None else event.seq
        return RedirectResponse(link(where, **{**dict(parse_qsl(query)), "did": did}), 303)

    def html(self, template: str, status: int = 200, **values: Any) -> HTMLResponse:
        """A template filled in; what every page shows is there by itself (see pages.py)."""
        return HTMLResponse(self.review.pages.html(template, here=self, **values), status)


def cookie_of(branch: Branch) -> str:
    """The name of an annotator's cookie; another one for every project, because cookies do not tell ports apart."""
    return f"suprank_{hashlib.sha256(branch.token.encode()).hexdigest()[:12]}"


def known(branch: Branch, token: str | None) -> bool:
    """Whether this token opens the branch."""
    return token is not None and secrets.compare_digest(token.encode(), branch.token.encode())


def entered(request: Request, name: str, token: str, path: str) -> Response:
    """To a page of the branch, with the cookie that opens it; 403 where the token is another."""
    review: Review = request.app.state.review
    branch = review.branches.get(name)
    if branch is None or not known(branch, token):
        raise HTTPException(403, USE_THE_LINK)
    answer: Response
    if request.headers.get("sec-fetch-site", "none") in ("none", "same-origin"):
        answer = RedirectResponse(path, 303)
    else:  # from a page elsewhere, such as one with mail: a strict cookie is not sent along a redirect from there
        answer = HTMLResponse(review.pages.html("enter.html", path=path))
    answer.set_cookie(cookie_of(branch), branch.token, path=f"/{name}", httponly=True, samesite="strict")
    answer.headers["Cache-Control"] = "no-store"
    return answer


def visit(name: str, request: Request) -> Visit:
    """The visit, or 403: also for names that are nobody's, so that nobody learns which there are."""
    review: Review = request.app.state.review
    branch = review.branches.get(name)
    if branch is None or not known(branch, request.cookies.get(cookie_of(branch))):
        raise HTTPException(403, USE_THE_LINK)
    return Visit(request, review, branch)


Here = Annotated[Visit, Depends(visit)]
Number = Annotated[int, Path(ge=0, lt=10**15)]
"""In an address: a group, or a row. SQLite takes no larger ones."""
