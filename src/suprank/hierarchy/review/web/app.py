"""The review as a web application: routes, entry by link, styles and scripts, and error pages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, Response
from starlette.exceptions import HTTPException

from suprank.hierarchy.project import BusyError, FullError
from suprank.hierarchy.review.web import group_lists, group_page, history, search
from suprank.hierarchy.review.web.auth import USE_THE_LINK, AnnotatorRequest, authenticate, log_in
from suprank.hierarchy.review.web.forms import BUSY, DISK_FULL
from suprank.hierarchy.review.web.review import Review
from suprank.web.security import HEADERS, SecurityMiddleware

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from suprank.hierarchy.project import Project


def create_app(project: Project, names: Iterable[str], *, host: str = "127.0.0.1") -> FastAPI:
    """The application for the branches `names`, to serve on `host`. On a loopback host, it refuses requests to other hosts."""
    app = FastAPI(title="suprank hierarchy review", docs_url=None, redoc_url=None, openapi_url=None)
    app.add_middleware(SecurityMiddleware, host=host)
    review = app.state.review = Review(project, names)
    templates = review.templates

    @app.get("/style.css")
    def style() -> Response:
        return Response(templates.style, media_type="text/css", headers={"Cache-Control": "no-cache"})

    @app.get("/script.js")
    def script() -> Response:
        return Response(templates.script, media_type="text/javascript", headers={"Cache-Control": "no-cache"})

    @app.get("/")
    def root() -> Response:
        raise HTTPException(403, USE_THE_LINK)

    @app.get("/{name}/enter")
    def enter(request: Request, name: str, token: str = "") -> Response:
        return log_in(request, name, token, f"/{name}/")

    for module in (group_lists, group_page, search, history):
        app.include_router(module.router)

    def error_page(request: Request, status: int, problem: str, headers: Mapping[str, str] | None = None) -> HTMLResponse:
        page = templates.render("error.html", _annotator(request), status=status, problem=problem)
        # Starlette answers uncaught errors outside of `SecurityMiddleware`, so the headers are added here too.
        return HTMLResponse(page, status, {**HEADERS, **(headers or {})})

    @app.exception_handler(HTTPException)
    def http_error(request: Request, error: HTTPException) -> HTMLResponse:
        plain = {404: "There is no such page.", 405: "This URL cannot receive a form."}
        is_default = error.detail in ("Not Found", "Method Not Allowed")
        problem = plain.get(error.status_code, error.detail) if is_default else error.detail
        return error_page(request, error.status_code, problem, error.headers)

    @app.exception_handler(RequestValidationError)
    def invalid_url(request: Request, error: RequestValidationError) -> HTMLResponse:
        return error_page(request, 404, "There is no such page: groups and rows are whole numbers.")

    @app.exception_handler(BusyError)
    def busy(request: Request, error: BusyError) -> HTMLResponse:
        return error_page(request, 503, BUSY)

    @app.exception_handler(FullError)
    def disk_full(request: Request, error: FullError) -> HTMLResponse:
        return error_page(request, 507, DISK_FULL)

    @app.exception_handler(Exception)
    def internal_error(_: Request, error: Exception) -> HTMLResponse:
        problem = "Something went wrong; the terminal that runs `suprank hierarchy review` shows the error."
        return HTMLResponse(templates.render("error.html", status=500, problem=problem), 500, HEADERS)

    return app


def _annotator(request: Request) -> AnnotatorRequest | None:
    """The annotator's request, for the header of an error page; None for a stranger."""
    try:
        return authenticate(request.url.path.split("/")[1], request)
    except HTTPException:
        return None
