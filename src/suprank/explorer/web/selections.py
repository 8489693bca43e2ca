"""Selections of images in addresses: filters and order are query parameters, so that an address can be kept or sent."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, urlencode

from starlette.exceptions import HTTPException

from suprank.explorer.tags import MAX_LENGTH
from suprank.explorer.web.browsing import ORDERS, ImageSelection
from suprank.explorer.web.ids import ImageId
from suprank.explorer.web.image_metrics import RESULTS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from suprank.explorer.web.explorer import Explorer
    from suprank.explorer.web.ids import Node

MAX_TEXT = 200
"""The longest text that can be searched for, in characters."""

RESULT_PARAMETERS = ("result_a", "result_b")
"""The query parameters with the result of the first run and of the second."""

_BY_DIFFERENCE = ("first_better", "second_better")


def parse_selection(explorer: Explorer, parameters: Mapping[str, str]) -> ImageSelection:
    """The selection that the query parameters describe; status 400 with a sentence for a value that makes no sense."""
    text, side = parameters.get("q", "").strip(), parameters.get("side") or default_side(explorer)
    if len(text) > MAX_TEXT:
        raise HTTPException(400, f"The text has {len(text):,} characters; search for at most {MAX_TEXT}.")
    _check("side", side, list(explorer.browser.sides))
    split, tag = parameters.get("split") or None, parameters.get("tag", "").strip()
    check_split(split, explorer.browser.splits[side])
    if len(tag) > MAX_LENGTH:
        raise HTTPException(400, f"The tag has {len(tag):,} characters; a tag has at most {MAX_LENGTH}.")
    levels = explorer.data.levels
    level, order = parameters.get("level") or next(iter(levels), ""), parameters.get("order") or ORDERS[0]
    if levels or level:
        _check("level", level, levels)
    if order in ORDERS[1:] and not levels:
        raise HTTPException(400, f"order={order!r} needs labels, and these images have none.")
    if order in _BY_DIFFERENCE and len(explorer.runs) < 2:
        raise HTTPException(400, f"order={order!r} needs two runs; start `suprank explore` with two.")
    _check("order", order, ORDERS)
    return ImageSelection(
        text,
        side,
        split,
        parse_node(explorer, parameters),
        tag,
        levels.index(level) if level else 0,
        _results(explorer, parameters),
        order,
    )


def selection_parameters(explorer: Explorer, selection: ImageSelection) -> dict[str, str | None]:
    """The query parameters of a selection, None for defaults. Labels and levels are named, not numbered."""
    return {
        "q": selection.text or None,
        "side": None if selection.side == default_side(explorer) else selection.side,
        "split": selection.split,
        "node": None if selection.node is None else explorer.tree.address(selection.node),
        "tag": selection.tag or None,
        "level": explorer.data.levels[selection.level] if selection.level else None,
        **dict(zip(RESULT_PARAMETERS, (result or None for result in selection.results), strict=True)),
        "order": None if selection.order == ORDERS[0] else selection.order,
    }


def selection_query(explorer: Explorer, selection: ImageSelection) -> str:
    """The query string of a selection, without the question mark; empty for all images."""
    parameters = selection_parameters(explorer, selection)
    return urlencode({name: value for name, value in parameters.items() if value is not None})


def parse_query(explorer: Explorer, query: str) -> ImageSelection:
    """The selection of a query string."""
    try:
        return parse_selection(explorer, dict(parse_qsl(query, max_num_fields=20)))
    except ValueError as error:
        raise HTTPException(400, "The address has too many parameters.") from error


def parse_node(explorer: Explorer, parameters: Mapping[str, str]) -> Node | None:
    """The label in the parameter `node`, as a number or as `LEVEL:NAME`; status 404 if there is no such label."""
    text = parameters.get("node", "")
    node = explorer.tree.find(text) if text else None
    if text and node is None:
        raise HTTPException(404, "There is no such label.")
    return node


def parse_image(explorer: Explorer, text: str) -> ImageId:
    """The image of an address, such as `a/gallery/12`; status 404 if there is no such image."""
    image = ImageId.parse(text)
    try:
        if image is None:
            raise IndexError(text)
        explorer.searcher.side_images(image)
    except IndexError as error:
        raise HTTPException(404, "There is no such image.") from error
    return image


def check_split(split: str | None, there: list[str]) -> None:
    """Status 400 if the split is not one of these; None is all of them."""
    if split is not None:
        _check("split", split, there)


def default_side(explorer: Explorer) -> str:
    return next(iter(explorer.browser.sides))


def available_orders(explorer: Explorer) -> list[str]:
    """The orders that make sense here."""
    if not explorer.data.levels:
        return [ORDERS[0]]
    return [order for order in ORDERS if len(explorer.runs) > 1 or order not in _BY_DIFFERENCE]


def _results(explorer: Explorer, parameters: Mapping[str, str]) -> tuple[str, str]:
    found = []
    for run, name in enumerate(RESULT_PARAMETERS):
        result = parameters.get(name, "")
        if result:
            _check(name, result, RESULTS)
            if run >= len(explorer.runs):
                raise HTTPException(400, f"{name} is the result of a second run; start `suprank explore` with two.")
            if not explorer.data.levels:
                raise HTTPException(400, f"{name} needs labels, and these images have none.")
        found.append(result)
    return found[0], found[1]


def _check(name: str, value: str, allowed: Sequence[str]) -> None:
    if value not in allowed:
        raise HTTPException(400, f"{name}={value!r} must be one of {', '.join(allowed)}.")
