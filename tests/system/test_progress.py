"""Progress is one argument everywhere: bars by default, none with False, or a function."""

import importlib
import inspect

import pytest

from suprank.system.progress import stage_progress

PACKAGES = ("workflows", "evaluation", "data", "models", "training", "adaptation", "embedding", "explorer", "experiments")


def functions():
    for package in PACKAGES:
        module = importlib.import_module(f"suprank.{package}")
        for name in module.__all__:
            one = getattr(module, name)
            if callable(one):
                yield f"{package}.{name}", one
            for method in vars(one) if inspect.isclass(one) else ():
                if callable(getattr(one, method)) and not method.startswith("_"):
                    yield f"{package}.{name}.{method}", getattr(one, method)


def test_progress_is_true_by_default_wherever_it_is_an_argument():
    found = {}
    for name, function in functions():
        try:
            found[name] = inspect.signature(function).parameters["progress"]
        except (KeyError, ValueError, TypeError):
            continue
    assert len(found) > 15
    assert {name: one for name, one in found.items() if one.default is not True} == {}
    assert {name: one for name, one in found.items() if not str(one.annotation).startswith("bool | ")} == {}


@pytest.mark.parametrize("progress", [True, False])
def test_bars_are_drawn_on_a_terminal_only_if_wanted(progress, monkeypatch, capsys):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setattr("suprank.system.progress.DELAY", 0)
    show = stage_progress(progress)
    for done in range(3):
        show("embedding", done, 2)
    assert ("embedding: 100%" in capsys.readouterr().err) == progress
