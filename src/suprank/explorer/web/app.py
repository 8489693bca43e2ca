"""The web application. Its pages only read; `add_selection_routes` adds what changes tags."""

from __future__ import annotations

from typing import TYPE_CHECKING

from anyio.to_thread import run_sync
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, Response
from starlette.exceptions import HTTPException

from suprank.data.images import BrokenImage
from suprank.explorer.images import read_picture
from suprank.explorer.tags import NotSavedError
from suprank.explorer.web.browsing import ImageSelection
from suprank.explorer.web.explorer import Explorer
from suprank.explorer.web.label_page import add_label_routes
from suprank.explorer.web.pages import Pages
from suprank.explorer.web.searching import Filters, WrongModelError
from suprank.explorer.web.selection_routes import add_selection_routes, browse_values
from suprank.explorer.web.selections import check_split, parse_image, parse_node, parse_selection
from suprank.explorer.web.tree import LABEL_ORDERS, NotMeasuredError
from suprank.explorer.web.uploads import Uploads
from suprank.files.tables import MalformedError
from suprank.web.forms import page_offset
from suprank.web.pages import wants_json
from suprank.web.security import HEADERS, SecurityMiddleware
from suprank.web.thumbnails import data_url

if TYPE_CHECKING:
    from collections.abc import Mapping

    from PIL.Image import Image

PAGE = 48
"""Images on a page; the tree shows twice as many labels on a page."""

SIDES = {"small": 224, "large": 800}
"""The longer side of each picture size, in pixels."""

ERRORS: dict[type[Exception], tuple[int, str]] = {
    RequestValidationError: (404, "There is no such page: a row is a whole number."),
    NotSavedError: (403, "Nothing was saved: {}"),
    MalformedError: (409, "The tags cannot be read: {}"),
    NotMeasuredError: (503, "{}"),
    WrongModelError: (500, "{}"),
    Exception: (500, "Something went wrong; the terminal that runs `suprank explore` shows the error."),
}
"""The status of each error and what the page says, with the error's own message in it."""

DETAILS = {"Not Found": "There is no such page.", "Method Not Allowed": "This page can only be opened, not written to."}
"""What the page says for starlette's own errors."""


def create_app(explorer: Explorer, *, host: str = "127.0.0.1") -> FastAPI:
    """The web application of an explorer, to be served at `host`: on loopback, requests for other host names are refused."""
    app = FastAPI(title="suprank explore", docs_url=None, redoc_url=None, openapi_url=None)
    app.add_middleware(SecurityMiddleware, host=host)
    pages, uploads = Pages(explorer), Uploads()
    add_label_routes(app, explorer, pages)

    @app.get("/", response_class=HTMLResponse)
    def browse(request: Request) -> str:
        selection = parse_selection(explorer, request.query_params)
        offset = page_offset(request.query_params)
        nodes, named = explorer.browser.labels(selection.text) if selection.text else ([], 0)
        listing = explorer.browser.list_images(selection, offset=offset, limit=PAGE)
        values = {"selection": selection, "listing": listing, "nodes": nodes, "named": named, "offset": offset, "page": PAGE}
        return pages.render("browse.html", **values, **browse_values(explorer, selection, listing))

    @app.get("/item/{run}/{side}/{row}", response_class=HTMLResponse)
    def item(request: Request, run: str, side: str, row: int) -> str:
        image = parse_image(explorer, f"{run}/{side}/{row}")
        filters, offset = _filters(explorer, request.query_params), page_offset(request.query_params)
        rankings = explorer.searcher.neighbors(image, filters, offset=offset, limit=PAGE)
        values = [explorer.image_metrics.of_image(image, run) for run in range(len(explorer.runs))]
        return pages.render(
            "item.html",
            image=image,
            rankings=rankings,
            filters=filters,
            offset=offset,
            page=PAGE,
            values=values,
            back=request.url.query,
        )

    @app.get("/upload")
    def no_upload() -> Response:
        raise HTTPException(
            400, "Uploaded images are not stored, so this page cannot be opened again; upload the image once more."
        )

    @app.post("/upload", response_class=HTMLResponse)
    async def upload(request: Request) -> str:
        if not explorer.can_embed:
            raise HTTPException(400, " ".join(run.no_model for run in explorer.runs))
        async with uploads.picture(request) as picture:

            def search() -> str:
                rankings = explorer.searcher.rank_picture(picture, limit=PAGE)
                shown = data_url(picture, SIDES["small"])
                return pages.render(
                    "upload.html", picture=shown, size=picture.size, rankings=rankings, filters=Filters(), page=PAGE
                )

            return await run_sync(search)

    @app.get("/tree", response_class=HTMLResponse)
    def tree(request: Request) -> str:
        node, offset = parse_node(explorer, request.query_params), page_offset(request.query_params)
        order = request.query_params.get("order") or LABEL_ORDERS[0]
        orders = LABEL_ORDERS if len(explorer.runs) > 1 else LABEL_ORDERS[:-2]
        if order not in orders:
            raise HTTPException(400, f"order={order!r} must be one of {', '.join(orders)}.")
        children = explorer.tree.children(node, order=order, offset=offset, limit=2 * PAGE)
        selections = {} if node is None else {side: ImageSelection(side=side, node=node) for side in explorer.browser.sides}
        listed = {side: explorer.browser.list_images(selection, limit=PAGE // 2) for side, selection in selections.items()}
        return pages.render(
            "tree.html", node=node, children=children, listed=listed, order=order, orders=orders, offset=offset, page=2 * PAGE
        )

    @app.get("/picture/{size}/{run}/{side}/{row}")
    def picture(size: str, run: str, side: str, row: int) -> Response:
        image = parse_image(explorer, f"{run}/{side}/{row}")
        if size not in SIDES:
            raise HTTPException(404, f"There is no picture size {size!r}; choose from {', '.join(SIDES)}.")
        images = explorer.searcher.side_images(image)

        def read() -> Image | None:
            found = read_picture(images, image.row, min_short_side=SIDES[size])
            return None if isinstance(found, BrokenImage) else found

        made = explorer.pictures.thumbnail((image, size), SIDES[size], read)
        return Response(made.data, 200 if made.found else 404, made.cache_headers, made.media_type)

    add_selection_routes(app, explorer, pages)

    @app.get("/help", response_class=HTMLResponse)
    def keys() -> str:
        return pages.render("help.html")

    @app.get("/style.css")
    def style() -> Response:
        return Response(pages.style, media_type="text/css", headers={"Cache-Control": "no-cache"})

    @app.get("/script.js")
    def script() -> Response:
        return Response(pages.script, media_type="text/javascript", headers={"Cache-Control": "no-cache"})

    def error_page(request: Request, status: int, message: str, headers: Mapping[str, str] | None = None) -> Response:
        # With the security headers again: starlette handles uncaught errors outside of `SecurityMiddleware`.
        headers = {**HEADERS, **(headers or {})}
        if wants_json(request):
            return JSONResponse({"problem": message}, status, headers)
        return HTMLResponse(pages.render("error.html", status=status, message=message), status, headers)

    def error_response(request: Request, error: Exception) -> Response:
        if isinstance(error, HTTPException):
            return error_page(request, error.status_code, DETAILS.get(error.detail, error.detail), error.headers)
        status, message = next(answer for kind, answer in ERRORS.items() if isinstance(error, kind))
        return error_page(request, status, message.format(error))

    app.add_exception_handler(HTTPException, error_response)
    for kind in ERRORS:
        app.add_exception_handler(kind, error_response)
    return app


def _filters(explorer: Explorer, parameters: Mapping[str, str]) -> Filters:
    level, split = parameters.get("level") or None, parameters.get("split") or None
    depth = len(explorer.data.levels)
    if level is not None and level not in map(str, range(depth + 1)):
        raise HTTPException(
            400, f"level={level!r} must be a whole number from 0 to {depth}, the number of levels that a hit shares."
        )
    check_split(split, explorer.browser.splits["gallery"])
    return Filters(None if level is None else int(level), split)
