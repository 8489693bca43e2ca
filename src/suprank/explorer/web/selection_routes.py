"""Routes of selections: their CSV, tags of images, saved selections, and the manifest with tags. Changes are POST only."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import parse_qsl

from fastapi import Depends, FastAPI, Request
from fastapi.responses import FileResponse, HTMLResponse, JSONResponse, RedirectResponse, Response, StreamingResponse
from starlette.background import BackgroundTask
from starlette.datastructures import FormData
from starlette.exceptions import HTTPException

from suprank.explorer.shared_table import NotSavedError
from suprank.explorer.tags import MAX_LENGTH, check_tag
from suprank.explorer.web.browsing import ImageSelection, Listing
from suprank.explorer.web.export import manifest_file, selection_csv
from suprank.explorer.web.ids import ImageId
from suprank.explorer.web.image_metrics import RESULTS, QueryResult
from suprank.explorer.web.saved_selections import MAX_NAME, SavedSelection
from suprank.explorer.web.selections import (
    RESULT_PARAMETERS,
    available_orders,
    parse_image,
    parse_query,
    parse_selection,
    selection_parameters,
    selection_query,
)
from suprank.explorer.web.tree import NotMeasuredError
from suprank.files.tables import MalformedError
from suprank.web.forms import limited_form
from suprank.web.pages import link

if TYPE_CHECKING:
    from suprank.explorer.web.explorer import Explorer
    from suprank.explorer.web.pages import Pages

_FORM_BYTES = 100_000


async def _read_form(request: Request) -> FormData:
    return await limited_form(request, _FORM_BYTES, f"The form has more than {_FORM_BYTES // 1000} kB; write less.")


Form = Annotated[FormData, Depends(_read_form)]


def browse_values(explorer: Explorer, selection: ImageSelection, listing: Listing) -> dict[str, Any]:
    """What the list of images shows besides the images: filters, results, tags and saved selections."""
    levels = explorer.data.levels
    results: list[list[QueryResult]] = []
    problems = [
        f"AP and R@1 of {metrics.data.name} cannot be measured: {metrics.problem}."
        for metrics in explorer.node_metrics
        if levels and metrics.problem
    ]
    if levels and listing.images:
        try:
            results = explorer.image_metrics.results(listing.images, levels[selection.level])
        except NotMeasuredError as error:
            problems.append(str(error))
    counts, tags_problem = _tag_counts(explorer)
    saved: list[SavedSelection] = []
    try:
        saved = explorer.selections.all()
    except MalformedError as error:
        tags_problem = tags_problem or str(error)
    query = selection_query(explorer, selection)
    return {
        "results": [list(one) for one in zip(*results, strict=True)] if results else [()] * len(listing.images),
        "metrics_problems": problems,
        "parameters": selection_parameters(explorer, selection),
        "query": query,
        "orders": available_orders(explorer),
        "result_names": RESULTS,
        "result_parameters": RESULT_PARAMETERS[: len(explorer.runs)],
        "tag_counts": counts,
        "tags_problem": tags_problem,
        "saved": [] if query else saved,
        "saved_as": next((one.name for one in saved if query and one.query == query), None),
        "max_tag": MAX_LENGTH,
        "max_name": MAX_NAME,
    }


def add_selection_routes(app: FastAPI, explorer: Explorer, pages: Pages) -> None:
    """Add the routes to the application. Forms of other sites are refused by `SecurityMiddleware`."""

    @app.get("/selection.csv")
    def download_selection(request: Request) -> Response:
        selection = parse_selection(explorer, request.query_params)
        try:
            blocks = selection_csv(explorer, selection)
        except NotMeasuredError as error:
            raise HTTPException(503, f"The table has AP in it. {error}") from error
        return StreamingResponse(blocks, media_type="text/csv; charset=utf-8", headers=_attachment("selection.csv"))

    @app.get("/manifest{suffix}")
    def download_manifest(suffix: str) -> Response:
        if suffix not in (".parquet", ".csv"):
            raise HTTPException(404, "There is no such page.")
        file = manifest_file(explorer, suffix)
        return FileResponse(file, headers=_attachment(file.name), background=BackgroundTask(shutil.rmtree, file.parent))

    @app.get("/tags", response_class=HTMLResponse)
    def tags() -> str:
        counts, problem = _tag_counts(explorer)
        return pages.render("tags.html", tag_counts=counts, tags_problem=problem)

    @app.post("/tags")
    def change_tags(request: Request, form: Form) -> Response:
        image = parse_image(explorer, _text(form, "image"))
        as_json = "application/json" in request.headers.get("accept", "")
        try:
            _change(explorer, image.run, image.side, [image.row], form)
        except HTTPException as error:
            if not as_json:
                raise
            return JSONResponse({"problem": error.detail}, error.status_code)
        if as_json:
            return JSONResponse({"tags": explorer.tags.of(explorer.searcher.side_images(image).manifest, image.row)})
        back = dict(parse_qsl(_text(form, "back")[:1000]))
        return RedirectResponse(f"{link(f'/item/{image}', **back)}#tags", 303)

    @app.get("/tag-all", response_class=HTMLResponse)
    def confirm(request: Request) -> str:
        _check_changeable(explorer)
        selection = parse_selection(explorer, request.query_params)
        act, tag = _tag_action(request.query_params.get("act", ""), request.query_params.get("name", ""))
        query, total = selection_query(explorer, selection), len(_rows(explorer, selection))
        return pages.render("confirm.html", query=query, tag=tag, act=act, total=total)

    @app.post("/tag-all")
    def change_all(form: Form) -> Response:
        selection = parse_query(explorer, _text(form, "selection"))
        rows = _rows(explorer, selection)
        if str(len(rows)) != _text(form, "total"):
            raise HTTPException(
                409, f"The selection has {len(rows):,} images now, and nothing was changed. Go back and press the button again."
            )
        _change(explorer, 0, selection.side, rows, form)
        return RedirectResponse(link("/", **selection_parameters(explorer, selection)), 303)

    @app.post("/selections")
    def change_selections(form: Form) -> Response:
        _check_changeable(explorer)
        name, query = _text(form, "name"), _text(form, "selection")
        try:
            if form.get("act") == "delete":
                explorer.selections.delete(name)
                return RedirectResponse("/", 303)
            selection = parse_query(explorer, query)
            explorer.selections.save(name, selection_query(explorer, selection))
        except ValueError as error:
            raise HTTPException(400, str(error)) from error
        except NotSavedError as error:
            raise HTTPException(403, f"Nothing was saved: {error}") from error
        return RedirectResponse(link("/", **selection_parameters(explorer, selection)), 303)


def _change(explorer: Explorer, run: int, side: str, rows: Any, form: FormData) -> None:
    """Add or remove the tag in the form; errors become sentences with a status."""
    _check_changeable(explorer)
    act, tag = _tag_action(_text(form, "act"), _text(form, "tag"))
    manifest = explorer.searcher.side_images(ImageId(run, side, 0)).manifest
    try:
        explorer.tags.change(manifest, rows, **{act: tag})
    except MalformedError as error:
        raise HTTPException(409, f"Nothing was saved: {error}") from error
    except NotSavedError as error:
        raise HTTPException(403, f"Nothing was saved: {error}") from error


def _rows(explorer: Explorer, selection: ImageSelection) -> Any:
    try:
        return explorer.browser.rows(selection)
    except NotMeasuredError as error:
        raise HTTPException(503, str(error)) from error


def _tag_action(act: str, tag: str) -> tuple[str, str]:
    """`add` (the default) or `remove`, and the tag; status 400 if a tag to add cannot be one."""
    if act not in ("", "add", "remove"):
        raise HTTPException(400, f"act={act!r} must be add or remove.")
    if act == "remove":
        return act, tag
    try:
        return "add", check_tag(tag)
    except ValueError as error:
        message = str(error)
        raise HTTPException(400, message[0].upper() + message[1:]) from error


def _check_changeable(explorer: Explorer) -> None:
    if explorer.tags.file is None:
        raise HTTPException(403, "There is no file to keep tags and selections in; start `suprank explore DATA --tags FILE`.")
    if not explorer.can_change:
        raise HTTPException(403, "Tags and selections cannot be changed: the page was started to be read only.")


def _text(form: FormData, name: str) -> str:
    value = form.get(name, "")
    return value if isinstance(value, str) else ""


def _tag_counts(explorer: Explorer) -> tuple[dict[str, int], str]:
    """Tag → number of images, and what is wrong with the file of tags."""
    try:
        return explorer.tag_counts(), ""
    except MalformedError as error:
        return {}, str(error)


def _attachment(name: str) -> dict[str, str]:
    return {"Content-Disposition": f'attachment; filename="{name}"', "Cache-Control": "no-store"}
