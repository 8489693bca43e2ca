"""The documentation keeps its promises: names exist, equations are all there, and code runs."""

import importlib
import re
from pathlib import Path

import pytest
import torch

from suprank import losses, ranking

ROOT = Path(__file__).parents[1]
PAPER = ROOT.parent / "shared" / "paper.tex"
EQUATIONS = (ROOT / "docs" / "equations.md").read_text()
ROWS = re.findall(r"^\| `((?:eq|sec|prop):[^`]+)` \|.*\| (.+) \|$", EQUATIONS, flags=re.MULTILINE)
COMING = "not there yet: comes with `suprank.evaluation`"


def resolved(name):
    """The object behind a dotted name."""
    package, *path = name.removeprefix("suprank.").split(".")
    found = importlib.import_module(f"suprank.{package}")
    assert path[0] in found.__all__, f"{name} is not public"
    for part in path:
        found = getattr(found, part)
    return found


@pytest.mark.parametrize(("label", "computed_by"), ROWS, ids=[label for label, _ in ROWS])
def test_every_equation_names_the_public_function_that_computes_it(label, computed_by):
    names = re.findall(r"\{py:\w+\}`~(suprank[^`]+)`", computed_by)
    assert names or computed_by == COMING
    assert all(callable(found) or isinstance(found, property) for found in map(resolved, names))


def test_only_the_decomposability_gap_and_asi_are_still_to_come():
    to_come = {label for label, computed_by in ROWS if computed_by == COMING}
    assert to_come == {"eq:decomposability-gap", "eq:upperBound", "eq:upperBoundRefined", "sec:sup_asi"}


@pytest.mark.skipif(not PAPER.exists(), reason="the paper is not beside this checkout")
def test_no_equation_of_the_paper_is_missing():
    # Two equations are labelled by a table column, `& eq:upperBound`, which a macro turns into a label.
    labels = set(re.findall(r"\\label\{(eq:[^}]+)\}|^\s*& (eq:\w+)$", PAPER.read_text(), flags=re.MULTILINE))
    labels = {one or other for one, other in labels}
    assert {"eq:ap_definition", "eq:upperBound", "eq:upperBoundRefined"} <= labels
    assert labels <= {label for label, _ in ROWS}


@pytest.mark.parametrize("package", [ranking, losses], ids=lambda package: package.__name__)
def test_the_api_page_has_every_public_name(package):
    documented = re.findall(rf"\.\. [\w:]+:: {package.__name__}\.(\w+)", (ROOT / "docs" / "api.md").read_text())
    assert sorted(documented) == sorted(package.__all__)


@pytest.mark.parametrize("page", ["README.md", "docs/quickstart.md", "docs/conventions.md"])
def test_code_in_the_documentation_runs(page):
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(), flags=re.MULTILINE | re.DOTALL)
    assert blocks
    given = {"model": torch.nn.Linear(8, 4), "images": torch.randn(8, 8), "labels": torch.arange(8) // 2}
    exec("\n".join(blocks), given)
