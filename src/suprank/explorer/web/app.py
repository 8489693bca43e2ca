"""The web page: addresses to answers. Every route reads; none changes anything."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from anyio.to_thread import run_sync
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, Response
from starlette.exceptions import HTTPException

from suprank.data.datasets import Broken
from suprank.explorer.web.browsing import Asked
from suprank.explorer.web.ids import RUNS, Node, Place
from suprank.explorer.web.pages import Pages
from suprank.explorer.web.searching import Filters
from suprank.explorer.web.tree import ORDERS
from suprank.explorer.web.uploads import Uploads
from suprank.web.pages import page_offset
from suprank.web.security import HEADERS, SecurityMiddleware
from suprank.web.thumbnails import data_url

if TYPE_CHECKING:
    from collections.abc import Mapping

    from PIL.Image import Image

    from suprank.explorer.web.explorer import Explorer

PAGE = 48
"""Images on a page; labels on a page of the tree are twice as many."""

SIDES = {"small": 224, "large": 800}
"""The longest sides of pictures, in pixels."""

TEXT = 200
"""The longest text that is looked for, in characters."""


def create_app(explorer: Explorer, *, host: str = "127.0.0.1") -> FastAPI:
    """The page of an explorer, to be bound to `host`: where that is loopback, requests under other names are refused."""
    app = FastAPI(title="suprank explore", docs_url=None, redoc_url=None, openapi_url=None)
    app.add_middleware(SecurityMiddleware, host=host)
    pages, uploads = Pages(explorer), Uploads()

    @app.get("/", response_class=HTMLResponse)
    def browse(request: Request) -> str:
        asked = _asked(explorer, request.query_params)
        offset = page_offset(request.query_params)
        nodes, named = explorer.browser.labels(asked.text) if asked.text else ([], 0)
        listing = explorer.browser.images(asked, offset=offset, limit=PAGE)
        return pages.html("browse.html", asked=asked, listing=listing, nodes=nodes, named=named, offset=offset, page=PAGE)

    @app.get("/item/{run}/{side}/{row}", response_class=HTMLResponse)
    def item(request: Request, run: str, side: str, row: int) -> str:
        place = _place(explorer, run, side, row)
        filters, offset = _filters(explorer, request.query_params), page_offset(request.query_params)
        rankings = explorer.searcher.neighbors(place, filters, offset=offset, limit=PAGE)
        values = [_of_query(explorer, place, number) for number in range(len(explorer.runs))]
        return pages.html("item.html", place=place, rankings=rankings, filters=filters, offset=offset, page=PAGE, values=values)

    @app.get("/upload")
    def no_upload() -> Response:
        raise HTTPException(400, "An uploaded image is not kept, so its page cannot be opened again; choose it once more.")

    @app.post("/upload", response_class=HTMLResponse)
    async def upload(request: Request) -> str:
        if not explorer.can_embed:
            raise HTTPException(400, "There is no model here to embed an image with; explore a run's folder, or give --model.")
        async with uploads.picture(request) as picture:

            def answered() -> str:
                rankings, shown = explorer.searcher.nearest(picture, limit=PAGE), data_url(picture, SIDES["small"])
                return pages.html(
                    "upload.html", picture=shown, size=picture.size, rankings=rankings, filters=Filters(), page=PAGE
                )

            return await run_sync(answered)

    @app.get("/tree", response_class=HTMLResponse)
    def tree(request: Request) -> str:
        node, offset = _node(explorer, request.query_params), page_offset(request.query_params)
        order = request.query_params.get("order") or ORDERS[0]
        if order not in ORDERS:
            raise HTTPException(400, f"There is no order {order!r}; choose from {', '.join(ORDERS)}.")
        below = explorer.tree.below(node, order=order, offset=offset, limit=2 * PAGE)
        here = {} if node is None else {side: Asked(side=side, node=node) for side in explorer.browser.sides}
        listed = {side: explorer.browser.images(asked, limit=PAGE // 2) for side, asked in here.items()}
        return pages.html(
            "tree.html", node=node, below=below, listed=listed, order=order, orders=ORDERS, offset=offset, page=2 * PAGE
        )

    @app.get("/picture/{size}/{run}/{side}/{row}")
    def picture(size: str, run: str, side: str, row: int) -> Response:
        place = _place(explorer, run, side, row)
        if size not in SIDES:
            raise HTTPException(404, f"There is no size {size!r}; choose from {', '.join(SIDES)}.")
        images = explorer.searcher.images(place)

        def read() -> Image | None:
            found = images.picture(place.row, at_least=SIDES[size])
            return None if isinstance(found, Broken) else found

        made = explorer.pictures.thumbnail((place, size), SIDES[size], read)
        return Response(made.data, 200 if made.found else 404, made.cache_headers, made.media_type)

    @app.get("/help", response_class=HTMLResponse)
    def keys() -> str:
        return pages.html("help.html")

    @app.get("/style.css")
    def style() -> Response:
        return Response(pages.style, media_type="text/css", headers={"Cache-Control": "no-cache"})

    @app.get("/script.js")
    def script() -> Response:
        return Response(pages.script, media_type="text/javascript", headers={"Cache-Control": "no-cache"})

    def failed(status: int, said: str, headers: Mapping[str, str] | None = None) -> HTMLResponse:
        # With the headers once more: starlette answers what nobody caught from outside of `SecurityMiddleware`.
        return HTMLResponse(pages.html("error.html", status=status, said=said), status, {**HEADERS, **(headers or {})})

    @app.exception_handler(HTTPException)
    def refused(_: Request, error: HTTPException) -> HTMLResponse:
        known = {404: "There is no such page.", 405: "This address only answers to being opened."}
        plain = error.detail in ("Not Found", "Method Not Allowed")
        said = known.get(error.status_code, error.detail) if plain else error.detail
        return failed(error.status_code, said, error.headers)

    @app.exception_handler(RequestValidationError)
    def malformed(_: Request, error: RequestValidationError) -> HTMLResponse:
        return failed(404, "There is no such page: rows are whole numbers.")

    @app.exception_handler(Exception)
    def broken(_: Request, error: Exception) -> HTMLResponse:
        return failed(500, "Something went wrong here; the terminal that runs `suprank explore` says what.")

    return app


def _place(explorer: Explorer, run: str, side: str, row: int) -> Place:
    place = Place(RUNS.find(run) if len(run) == 1 else -1, side, row)
    if side not in ("gallery", "query"):
        raise HTTPException(404, f"There are no images called {side!r}; choose from gallery and query.")
    try:
        explorer.searcher.images(place)
    except IndexError as error:
        raise HTTPException(404, "There is no such image here.") from error
    return place


def _filters(explorer: Explorer, parameters: Mapping[str, str]) -> Filters:
    level, split = parameters.get("level") or None, parameters.get("split") or None
    depth = len(explorer.source.levels)
    if level is not None and level not in map(str, range(depth + 1)):
        raise HTTPException(400, f"level={level!r} must be a whole number from 0 to {depth}: how many levels a hit shares.")
    _check_split(split, explorer.browser.splits["gallery"])
    return Filters(None if level is None else int(level), split)


def _asked(explorer: Explorer, parameters: Mapping[str, str]) -> Asked:
    text, split = parameters.get("q", "").strip(), parameters.get("split") or None
    side = parameters.get("side") or next(iter(explorer.browser.sides))
    if len(text) > TEXT:
        raise HTTPException(400, f"The text has {len(text):,} characters; {TEXT} are looked for at most.")
    if side not in explorer.browser.sides:
        raise HTTPException(400, f"side={side!r} must be one of {', '.join(explorer.browser.sides)}.")
    _check_split(split, explorer.browser.splits[side])
    return Asked(text, side, split, _node(explorer, parameters))


def _check_split(split: str | None, there: list[str]) -> None:
    if split is not None and split not in there:
        raise HTTPException(400, f"split={split!r} must be one of {', '.join(there)}.")


def _node(explorer: Explorer, parameters: Mapping[str, str]) -> Node | None:
    text = parameters.get("node", "")
    node = Node.parse(text)
    if text and (node is None or not explorer.tree.has(node)):
        raise HTTPException(404, "There is no such label here.")
    return node


def _of_query(explorer: Explorer, place: Place, run: int) -> Any:
    """What a run's judgment of this image as a query is; None where it is none, or not judged."""
    own = explorer.searcher.counterpart(place, run)
    if own is None or (own.side == "gallery" and not explorer.runs[run].source.against_each_other):
        return None
    return explorer.judged[run].of_query(own.row)
