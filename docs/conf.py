"""Sphinx configuration: `make docs`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import fastapi  # noqa: F401  autodoc sets TYPE_CHECKING while it imports, and under that models of FastAPI,

import suprank
import suprank.adaptation  # and a default of ours, fail

project = "suprank"
author = copyright = "the suprank developers"
version = release = suprank.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.viewcode"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"suprank {version}"
html_search_scorer = str(Path(__file__).with_name("search_scorer.js"))  # guides before the API
default_role = "py:obj"  # `ranks` in a docstring links to it where it can, and is code where it cannot
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

autodoc_mock_imports = ["sentence_transformers"]  # large, and only its names are needed
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
python_maximum_signature_line_length = 88


def plain_docstring(app: Any, what: str, name: str, object_: Any, options: Any, lines: list[str]) -> None:
    """Keep docstrings as plain text: `|Ω⁺|` is not a substitution, and an indented equation keeps its line breaks."""
    plain: list[str] = []
    indented = False
    for line in lines:
        if line and line.startswith("    ") != indented:
            indented = not indented
            if indented and not line.lstrip().startswith(">>>"):
                plain += ["::", ""]
            elif indented:
                plain += [""]  # after "Example:"
        plain.append(line if indented else _escaped(line))
    lines[:] = plain


def _escaped(line: str) -> str:
    """Escape | and * outside `code`, and make literal what a role would misread."""
    parts = re.split(r"(`[^`]*`)", line)
    return "".join(_code(part) if part.startswith("`") else re.sub(r"([|*])", r"\\\1", part) for part in parts)


def _code(part: str) -> str:
    """Keep names as links, and make `label_<level>` and `..` literal, because a role would cut them."""
    return f"\\ `{part}`\\ " if re.search(r"<|\.\.", part) else part


def setup(app: Any) -> None:
    app.connect("autodoc-process-docstring", plain_docstring, priority=100)
