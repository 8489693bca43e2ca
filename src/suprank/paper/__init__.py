"""The paper's tables and figures, each by its label, as `suprank paper` lists and reproduces them.

`contents` has what the paper shows, `reproduce` trains what is missing and writes a table or figure into a folder.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from suprank.paper.contents import Item, contents, find_item, paper_results

if TYPE_CHECKING:
    from suprank.paper.output import Reproduced
    from suprank.paper.reproduction import Reproduction, reproduce

__all__ = ["Item", "Reproduced", "Reproduction", "contents", "find_item", "paper_results", "reproduce"]


def __getattr__(name: str) -> Any:
    """What trains is imported when it is first used: the list of contents needs neither torch nor timm."""
    modules = {"Reproduced": "output", "Reproduction": "reproduction", "reproduce": "reproduction"}
    if name not in modules:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"suprank.paper.{modules[name]}"), name)
