"""How much there is to read, to learn and to keep: the counts, and a ceiling for each.

`python -m tests.test_surface` prints the table. A ceiling is lowered when something has become smaller; raise one only for what
users gain, in the commit that brings it.
"""

import ast
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "suprank"

CEILINGS = {
    "statements in src": 38_600,
    "lines in src": 70_000,
    "lines in tests": 70_500,
    "other lines: explorer": 2_950,
    "other lines: hierarchy": 1_900,
    "other lines: paper": 450,
    "other lines: recipes": 2_100,
    "other lines: web": 450,
    "commands": 25,
    "options": 275,
    "names in __all__": 355,
    "extras": 9,
    "pages": 29,
}
DOCSTRINGS = "docstrings, % of lines in src"
LEAST_DOCSTRINGS = 12.0

_OTHERS = {".html", ".js", ".css", ".toml", ".sql", ".json"}


@cache
def counts() -> dict[str, float]:
    """Every count by the name of its ceiling, and the share of docstrings.

    A docstring is any text that stands on its own, also one below a constant; it is no statement. Lines are those of `wc -l`;
    "other lines" are those of files that are not Python, for each package and the recipes.
    """
    found: Counter[str] = Counter()
    docstrings = 0
    for file in _python(SOURCE):
        code = file.read_text(encoding="utf-8")
        found["lines in src"] += code.count("\n")
        for statement in _statements(ast.parse(code)):
            match statement:
                case ast.Expr(value=ast.Constant(value=str()), lineno=first, end_lineno=last):
                    docstrings += last - first + 1
                case _:
                    found["statements in src"] += 1
            found["names in __all__"] += _public_names(statement)
    found["lines in tests"] = sum(_lines(file) for file in _python(ROOT / "tests"))
    for folder in (SOURCE, ROOT / "recipes"):
        for file in sorted(folder.rglob("*")):
            if file.suffix in _OTHERS:
                found[f"other lines: {'recipes' if folder != SOURCE else file.relative_to(SOURCE).parts[0]}"] += _lines(file)
    found["commands"], found["options"] = _commands_and_options()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    found["extras"] = len(project["optional-dependencies"])
    found["pages"] = len(list((ROOT / "docs").glob("*.md")))
    return {**found, DOCSTRINGS: 100 * docstrings / found["lines in src"]}


def _python(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.py"))


def _lines(file: Path) -> int:
    return file.read_bytes().count(b"\n")


def _statements(node: ast.AST) -> Iterator[ast.stmt]:
    """All statements in a module, in functions and classes too; expressions hold none, and are not looked into."""
    for field in ("body", "handlers", "orelse", "finalbody", "cases"):
        for child in getattr(node, field, ()):
            if isinstance(child, ast.stmt):
                yield child
            yield from _statements(child)


def _public_names(statement: ast.stmt) -> int:
    """How many names `__all__ = [...]` lists."""
    if not isinstance(statement, ast.Assign) or not isinstance(statement.value, ast.List):
        return 0
    return len(statement.value.elts) if any(getattr(one, "id", "") == "__all__" for one in statement.targets) else 0


def _commands_and_options() -> tuple[int, int]:
    """Verbs with a help page of their own, and all options, also hidden ones and those of groups; --help is not counted."""
    import typer

    from suprank.cli.app import app

    waiting, commands, options = [typer.main.get_command(app)], 0, 0
    while waiting:
        command = waiting.pop()
        waiting += (inner := getattr(command, "commands", {})).values()
        commands += not inner
        options += sum(parameter.param_type_name == "option" for parameter in command.params)
    return commands, options


@pytest.mark.parametrize("name", CEILINGS)
def test_there_is_no_more_of_it_than_there_was(name):
    assert counts()[name] <= CEILINGS[name], "make it smaller elsewhere, or say in the commit what the larger ceiling buys"


def test_every_count_has_a_ceiling():
    assert counts().keys() - {DOCSTRINGS} == CEILINGS.keys()


def test_smaller_code_is_not_code_without_docstrings():
    assert counts()[DOCSTRINGS] >= LEAST_DOCSTRINGS


def test_statements_of_all_branches_are_found():
    code = 'A = 1\n"""Of A."""\ndef f(x):\n try: return 1\n except OSError: pass\n match x:\n  case 1: del x'
    found = [type(one).__name__ for one in _statements(ast.parse(code))]
    assert found == ["Assign", "Expr", "FunctionDef", "Try", "Return", "Pass", "Match", "Delete"]


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT / "src"))
    print(f"{'':32}{'now':>10}{'ceiling':>12}")
    for name, count in sorted(counts().items()):
        print(f"{name:32}{round(count, 1):>10,}{CEILINGS.get(name, LEAST_DOCSTRINGS):>12,}")
