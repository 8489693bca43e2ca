"""Routes of selections: their CSV, tags of images, and the manifest with tags. Changes are POST only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import parse_qsl

from fastapi import Depends, FastAPI, Request
from fastapi.responses import HTMLResponse, JSONResponse, RedirectResponse, Response, StreamingResponse
from starlette.datastructures import FormData
from starlette.exceptions import HTTPException

from suprank.explorer.tags import MAX_LENGTH, check_tag
from suprank.explorer.web.browsing import ImageSelection, Listing
from suprank.explorer.web.export import csv_blocks, manifest_bytes, selection_table, tagged_manifest
from suprank.explorer.web.ids import ImageId
from suprank.explorer.web.image_metrics import RESULTS, QueryResult
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
from suprank.web.pages import link, wants_json

if TYPE_CHECKING:
    from suprank.explorer.web.explorer import Explorer
    from suprank.explorer.web.pages import Pages

_FORM_BYTES = 100_000
CSV = "text/csv; charset=utf-8"


async def _read_form(request: Request) -> FormData:
    return await limited_form(request, _FORM_BYTES, f"The form has more than {_FORM_BYTES // 1000} kB; write less.")


Form = Annotated[FormData, Depends(_read_form)]


def browse_values(explorer: Explorer, selection: ImageSelection, listing: Listing) -> dict[str, Any]:
    """What the list of images shows besides the images: filters, results and tags."""
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
    return {
        "results": [list(one) for one in zip(*results, strict=True)] if results else [()] * len(listing.images),
        "metrics_problems": problems,
        "parameters": selection_parameters(explorer, selection),
        "orders": available_orders(explorer),
        "result_names": RESULTS,
        "result_parameters": RESULT_PARAMETERS[: len(explorer.runs)],
        "tag_counts": counts,
        "tags_problem": tags_problem,
        "max_tag": MAX_LENGTH,
    }


def add_selection_routes(app: FastAPI, explorer: Explorer, pages: Pages) -> None:
    """Add the routes to the application. Forms of other sites are refused by `SecurityMiddleware`."""

    @app.get("/selection.csv")
    def download_selection(request: Request) -> Response:
        table = selection_table(explorer, parse_selection(explorer, request.query_params))
        return StreamingResponse(csv_blocks(table), media_type=CSV, headers=_attachment("selection.csv"))

    @app.get("/manifest{suffix}")
    def download_manifest(suffix: str) -> Response:
        kinds = {".parquet": "application/vnd.apache.parquet", ".csv": CSV}
        if suffix not in kinds:
            raise HTTPException(404, "There is no such page.")
        content = manifest_bytes(tagged_manifest(explorer), suffix)
        return Response(content, headers=_attachment(f"manifest{suffix}"), media_type=kinds[suffix])

    @app.get("/tags", response_class=HTMLResponse)
    def tags() -> str:
        counts, problem = _tag_counts(explorer)
        return pages.render("tags.html", tag_counts=counts, tags_problem=problem)

    @app.post("/tags")
    def change_tags(request: Request, form: Form) -> Response:
        image = parse_image(explorer, _text(form, "image"))
        _change(explorer, image.run, image.side, [image.row], form)
        if wants_json(request):
            return JSONResponse({"tags": explorer.tags.of(explorer.searcher.side_images(image).manifest, image.row)})
        back = dict(parse_qsl(_text(form, "back")[:1000]))
        return RedirectResponse(f"{link(f'/item/{image}', **back)}#tags", 303)

    @app.get("/tag-all", response_class=HTMLResponse)
    def confirm(request: Request) -> str:
        _check_changeable(explorer)
        selection = parse_selection(explorer, request.query_params)
        act, tag = _tag_action(request.query_params.get("act", ""), request.query_params.get("name", ""))
        query, total = selection_query(explorer, selection), len(explorer.browser.rows(selection))
        return pages.render("confirm.html", query=query, tag=tag, act=act, total=total)

    @app.post("/tag-all")
    def change_all(form: Form) -> Response:
        selection = parse_query(explorer, _text(form, "selection"))
        rows = explorer.browser.rows(selection)
        if str(len(rows)) != _text(form, "total"):
            raise HTTPException(
                409, f"The selection has {len(rows):,} images now, and nothing was changed. Go back and press the button again."
            )
        _change(explorer, 0, selection.side, rows, form)
        return RedirectResponse(link("/", **selection_parameters(explorer, selection)), 303)


def _change(explorer: Explorer, run: int, side: str, rows: Any, form: FormData) -> None:
    """Add or remove the tag in the form."""
    _check_changeable(explorer)
    act, tag = _tag_action(_text(form, "act"), _text(form, "tag"))
    explorer.tags.change(explorer.searcher.side_images(ImageId(run, side, 0)).manifest, rows, **{act: tag})


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
        raise HTTPException(403, "There is no file to keep tags in; start `suprank explore DATA --tags FILE`.")
    if not explorer.can_change:
        raise HTTPException(403, "Tags cannot be changed: the page was started to be read only.")


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
