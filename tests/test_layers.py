"""Imports point down. The table below is the architecture. It is checked on the source, so nothing is imported here."""

import ast
import sys
from collections.abc import Container, Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "suprank"

MAY_IMPORT: dict[str, set[str]] = {
    # files; the machine and the installation
    "files": set(),
    "system": {"files"},
    # functions in other processes and on other machines
    "executors": set(),
    # leaves: know nothing of each other
    "ranking": set(),
    "data": set(),
    "models": set(),
    "web": set(),
    # siblings: never each other
    "losses": {"ranking"},
    "evaluation": {"ranking"},
    "hierarchy": {"data", "web"},
    # where images meet a model
    "embedding": {"ranking", "evaluation", "data", "models"},
    # shows what is given to it, and never sees a model
    "explorer": {"ranking", "evaluation", "data", "web"},
    # our losses in the trainers of other libraries, and our models in their benchmarks
    "integrations": {"ranking", "losses", "evaluation", "data", "models", "embedding"},
    # one training run, and several of them
    "training": {"ranking", "losses", "evaluation", "data", "models", "embedding"},
    "experiments": {"evaluation", "data", "models", "training"},
    # a head on stored embeddings
    "adaptation": {"ranking", "losses", "evaluation", "data", "models", "training", "embedding"},
}
for _package in ("embedding", "experiments"):
    MAY_IMPORT[_package] |= {"executors"}
for _package in set(MAY_IMPORT) - {"system", "files"}:
    MAY_IMPORT[_package] |= {"system", "files"}
MAY_IMPORT["workflows"] = set(MAY_IMPORT)  # what a command does, as a function
MAY_IMPORT["paper"] = set(MAY_IMPORT)  # the paper's tables and figures, made of all of these
MAY_IMPORT["cli"] = set(MAY_IMPORT)  # and nobody imports cli

# The rooms of `ranking`. Kernels take the place of plain functions by `seam`; nobody imports them but `ranking/__init__.py`.
ROOMS: dict[str, set[str]] = {
    "seam": set(),
    "hyper_parameters": set(),
    "reading": {"seam"},
    "steps": {"hyper_parameters"},
    "relevance": {"seam", "reading", "hyper_parameters"},
    "label_tree": {"relevance"},
    "ranks": {"seam", "steps"},
    "measures": {"seam", "steps", "relevance", "ranks"},
    "exact": {"ranks"},
}
ROOMS["gpu"] = set(ROOMS)
ROOMS["__init__"] = {*ROOMS, "gpu"}

# `pip install suprank` brings these two and no more.
CORE = ("files", "system", "ranking", "losses", "evaluation")
CORE_NEEDS = {"torch", "numpy"}
ALSO = {  # by file or folder: imported when they are there and of use, with an error that names the extra where they must be
    "files/locking.py": {"filelock"},
    "files/binary.py": {"pyarrow"},
    "files/tables.py": {"pyarrow"},
    "system/progress.py": {"tqdm"},
    "ranking/gpu": {"triton"},
    "ranking/exact/numba_loops.py": {"numba"},
    "evaluation/embedding_files.py": {"pyarrow"},
    "evaluation/report.py": {"pandas"},
    "evaluation/search.py": {"threadpoolctl"},
    "evaluation/runs.py": {"pyarrow"},
    "evaluation/torchmetrics_adapter.py": {"torchmetrics"},
}
ONLY_FOR_TYPES = {"jaxtyping"}


class Import(NamedTuple):
    """One imported module, by its dotted name, and whether only a type checker sees it."""

    module: str
    line: int
    for_types: bool


def imports(source: str, package: str = "suprank", submodules: Container[str] = ()) -> Iterator[Import]:
    """Every import of the source, wherever it stands, with relative ones resolved against the package it is in.

    `from package import name` is an import of package, or of package.name if that is one of `submodules`.
    """
    for node, for_types in import_statements(source):
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        else:
            start = ".".join(package.split(".")[: len(package.split(".")) - node.level + 1]) if node.level else ""
            base = ".".join(filter(None, (start, node.module)))
            # `from suprank import losses` imports suprank.losses.
            named = [f"{base}.{alias.name}" for alias in node.names]
            modules = [name if base == "suprank" or name in submodules else base for name in named]
        yield from (Import(module, node.lineno, for_types) for module in modules)


@cache
def import_statements(source: str) -> list[tuple[ast.Import | ast.ImportFrom, bool]]:
    """Every import statement, and whether only a type checker sees it."""
    tree = list(ast.walk(ast.parse(source)))
    for_types = {
        id(inner)
        for node in tree
        if isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")
        for statement in node.body
        for inner in ast.walk(statement)
    }
    return [(node, id(node) in for_types) for node in tree if isinstance(node, ast.Import | ast.ImportFrom)]


def violations(source: str, path: str) -> list[str]:
    """What the file at `path`, relative to src/suprank, imports and may not."""
    package = path.split("/")[0]
    found = []
    for module, line, for_types in imports(source, ".".join(("suprank", *path.split("/")[:-1]))):
        root, *rest = module.split(".")
        if root == "suprank":
            ours = rest[0] if rest else ""
            if ours in MAY_IMPORT and ours != package and ours not in MAY_IMPORT[package]:
                found.append(f"{path}:{line}: {package} imports {ours}")
            if ours == "ranking" and rest[1:] and not for_types:
                own = path.split("/")[1].removesuffix(".py") if package == "ranking" else package
                if rest[1] not in ROOMS.get(own, ROOMS.keys() - {"gpu"}) | {own}:
                    found.append(f"{path}:{line}: {own} imports ranking.{rest[1]}")
        elif package in CORE and root not in sys.stdlib_module_names:
            allowed = (
                CORE_NEEDS | ALSO.get(path, ALSO.get(path.rpartition("/")[0], set())) | (ONLY_FOR_TYPES if for_types else set())
            )
            if root not in allowed:
                found.append(f"{path}:{line}: {package} needs torch and numpy only, but imports {root}")
    return found


def packages() -> list[str]:
    return sorted(path.parent.name for path in SOURCE.glob("*/__init__.py"))


def test_every_package_has_its_row_in_the_table():
    assert set(packages()) <= set(MAY_IMPORT), "say in MAY_IMPORT what a new package may import"
    assert {path.name for path in SOURCE.iterdir() if any(path.glob("*.py"))} == set(packages()), "a package needs __init__.py"


@pytest.mark.parametrize("package", packages())
def test_imports_point_down(package):
    files = sorted((SOURCE / package).rglob("*.py"))
    assert [line for file in files for line in violations(file.read_text(), file.relative_to(SOURCE).as_posix())] == []


def test_no_module_imports_itself_through_others_not_even_inside_a_function():
    names = {file: ".".join(("suprank", *file.relative_to(SOURCE).with_suffix("").parts)) for file in SOURCE.rglob("*.py")}
    modules = {name.removesuffix(".__init__"): file for file, name in names.items()}
    graph = {}
    for module, file in modules.items():
        package = module if file.name == "__init__.py" else module.rpartition(".")[0]
        found = imports(file.read_text(), package, submodules=set(modules))
        graph[module] = {one.module for one in found if not one.for_types and one.module in modules} - {module}
    list(TopologicalSorter(graph).static_order())  # raises CycleError with the modules of a cycle


def test_the_package_itself_imports_only_importlib_so_that_its_version_is_cheap():
    found = imports((SOURCE / "__init__.py").read_text())
    assert {one.module for one in found if not one.for_types} == {"importlib", "typing"}


@pytest.mark.parametrize(
    ("path", "source", "complaint"),
    [
        ("ranking/steps.py", "from suprank.losses import SupAP", "ranking imports losses"),
        ("ranking/steps.py", "def later():\n    import suprank.losses.batch", "ranking imports losses"),
        ("losses/base.py", "from suprank import evaluation", "losses imports evaluation"),
        ("losses/base.py", "from ..evaluation import report", "losses imports evaluation"),
        ("losses/base.py", "from .. import cli", "losses imports cli"),
        ("paper/layout.py", "import suprank.cli.main", "paper imports cli"),
        ("losses/base.py", "from suprank.ranking.gpu.batch import unit", "losses imports ranking.gpu"),
        ("ranking/measures.py", "from suprank.ranking.gpu import batch", "measures imports ranking.gpu"),
        ("ranking/steps.py", "from suprank.ranking.measures import ndcg", "steps imports ranking.measures"),
        ("losses/base.py", "import scipy.special", "imports scipy"),
        ("losses/base.py", "from jaxtyping import Float", "imports jaxtyping"),
        ("ranking/ranks/chunked.py", "import triton", "imports triton"),
    ],
)
def test_a_planted_violation_is_caught(path, source, complaint):
    (found,) = violations(source, path)
    assert complaint in found


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("losses/base.py", "from suprank.ranking import ranks"),
        ("losses/base.py", "from suprank.losses.batch import RetrievalBatch"),
        ("losses/base.py", "from .batch import RetrievalBatch"),
        ("losses/base.py", "from suprank import __version__"),
        ("ranking/steps.py", "import math\nimport torch.nn.functional\nfrom numpy import pi"),
        ("ranking/steps.py", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from jaxtyping import Float"),
        ("ranking/gpu/pairs.py", "import triton.language as tl\nfrom suprank.ranking.seam import by_kernels"),
        ("ranking/__init__.py", "import suprank.ranking.gpu"),
        ("cli/main.py", "import typer\nfrom suprank import losses"),
    ],
)
def test_what_the_table_allows_passes(path, source):
    assert violations(source, path) == []
