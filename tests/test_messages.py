"""Messages of the library name Python arguments: an option is the same name with dashes, and only commands show options."""

import ast
import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import suprank

SOURCE = Path(__file__).parents[1] / "src" / "suprank"
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]+")
COMMAND = re.compile(r"`[^`]*`|\A(suprank|git) .*")  # a whole command line may show its options
PROGRAMS = {"explorer/colors.py", "explorer/report/figures.py"}  # CSS


def sentences(path: Path) -> Iterator[tuple[int, str]]:
    """The strings of a module that hold a blank, without docstrings; what is formatted is written as {}."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    nodes = list(ast.walk(tree))
    skipped = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    skipped |= {id(part) for node in nodes if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in nodes:
        text = None
        if isinstance(node, ast.JoinedStr):
            text = "".join(part.value if isinstance(part, ast.Constant) else "{}" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in skipped:
            text = node.value
        if text is not None and " " in text:
            yield node.lineno, text


def test_no_message_outside_the_commands_names_an_option():
    found = [
        f"{path.relative_to(SOURCE)}:{line}: {text}"
        for path in sorted(SOURCE.rglob("*.py"))
        if not path.relative_to(SOURCE).as_posix().startswith(("cli/", *PROGRAMS))
        for line, text in sentences(path)
        if OPTION.search(COMMAND.sub("", text))
    ]
    assert found == []


def test_an_option_is_called_like_its_argument_or_in_the_singular_if_it_repeats():
    ours = {"subject", "frozen", "progress", "settings", "config", "split_test", "on_result"}  # of Python
    for name in ("evaluate", "report", "explore", "search", "adapt"):
        options = inspect.signature(getattr(importlib.import_module(f"suprank.cli.{name}"), name)).parameters
        for argument in inspect.signature(getattr(suprank, name)).parameters.keys() - ours - options.keys():
            option = options.get(argument.removesuffix("s"))
            assert "list[" in str(option), f"{name}: {argument}"
