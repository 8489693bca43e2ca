"""The review as a web application: who may enter, what is served to everybody, and how errors are answered."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, Response
from starlette.exceptions import HTTPException

from suprank.hierarchy.project import BusyError, FullError
from suprank.hierarchy.review.web import group, log, queue, searching, tree
from suprank.hierarchy.review.web.auth import USE_THE_LINK, Visit, entered, visit
from suprank.hierarchy.review.web.review import Review
from suprank.hierarchy.tree import FINAL
from suprank.web.safety import HEADERS, Safety

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from suprank.hierarchy.project import Project


def create_app(project: Project, names: Iterable[str], *, host: str = "127.0.0.1") -> FastAPI:
    """The page of these branches, to be bound to `host`: where that is loopback, requests under other names are refused."""
    app = FastAPI(title="suprank hierarchy review", docs_url=None, redoc_url=None, openapi_url=None)
    app.add_middleware(Safety, host=host)
    review = app.state.review = Review(project, names)
    pages = review.pages

    @app.get("/style.css")
    def style() -> Response:
        return Response(pages.style, media_type="text/css", headers={"Cache-Control": "no-cache"})

    @app.get("/script.js")
    def script() -> Response:
        return Response(pages.script, media_type="text/javascript", headers={"Cache-Control": "no-cache"})

    @app.get("/")
    def nobody() -> Response:
        raise HTTPException(403, USE_THE_LINK)

    @app.get("/{name}/enter")
    def enter(request: Request, name: str, token: str = "") -> Response:
        return entered(request, name, token, f"/{name}/")

    for part in (queue, group, searching, tree, log):
        app.include_router(part.router)
    if FINAL in review.branches:
        from suprank.hierarchy.review.web import adjudication

        app.include_router(adjudication.router)

    def failed(request: Request, status: int, problem: str, headers: Mapping[str, str] | None = None) -> HTMLResponse:
        shown = pages.html("error.html", _visitor(request), status=status, problem=problem)
        # With the headers once more: starlette answers what nobody caught from outside of `Safety`.
        return HTMLResponse(shown, status, {**HEADERS, **(headers or {})})

    @app.exception_handler(HTTPException)
    def refused(request: Request, error: HTTPException) -> HTMLResponse:
        known = {404: "There is no such page.", 405: "This address only answers to being opened."}
        plain = error.detail in ("Not Found", "Method Not Allowed")
        said = known.get(error.status_code, error.detail) if plain else error.detail
        return failed(request, error.status_code, said, error.headers)

    @app.exception_handler(RequestValidationError)
    def malformed(request: Request, error: RequestValidationError) -> HTMLResponse:
        return failed(request, 404, "There is no such page: groups and rows are whole numbers.")

    @app.exception_handler(BusyError)
    def busy(request: Request, error: BusyError) -> HTMLResponse:
        return failed(request, 503, "Somebody else is writing to the project; nothing was saved. Try again in a moment.")

    @app.exception_handler(FullError)
    def full(request: Request, error: FullError) -> HTMLResponse:
        return failed(request, 507, "The disk is full; nothing was saved. Make room, and try again.")

    @app.exception_handler(Exception)
    def broken(_: Request, error: Exception) -> HTMLResponse:
        said = "Something went wrong here; the terminal that runs `suprank hierarchy review` says what."
        return HTMLResponse(pages.html("error.html", status=500, problem=said), 500, HEADERS)

    return app


def _visitor(request: Request) -> Visit | None:
    """The annotator who asked, for the head of the page of an error; None for a stranger, and where nothing can be read."""
    try:
        return visit(request.url.path.split("/")[1], request)
    except HTTPException:
        return None
