"""Check the shapes that signatures state on every call while the tests run; users are not affected.

`check(packages)` imports packages under jaxtyping's import hook with beartype. It must run before anything else imports
them. Annotations name types that our modules import under `if TYPE_CHECKING`, so that flag is true for our modules, and
for ours alone: other packages import things under it that do not exist at run time.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import os
import re
import sys
import typing
from importlib.abc import MetaPathFinder
from importlib.util import find_spec
from unittest.mock import patch

import torch

available = os.environ.get("SUPRANK_CHECK_SHAPES", "1") != "0" and bool(find_spec("jaxtyping") and find_spec("beartype"))

# An int is welcome where a float is asked for, as it is to mypy.
CHECKER = "beartype.beartype(conf=beartype.BeartypeConf(is_pep484_tower=True))"

# Triton and numba compile the functions of these modules from their source.
UNCHECKED = {
    "suprank.ranking.gpu.batch_kernels",
    "suprank.ranking.gpu.pair_kernels",
    "suprank.ranking.gpu.exact_kernels",
    "suprank.ranking.exact.numba_loops",
}


class WrongShape(Exception):  # noqa: N818
    """An argument or a result does not have the shape that the signature states. No TypeError, as tests may expect one."""


def check(*packages: str) -> None:
    """Import the packages so that calls of their functions check shapes and dtypes, if jaxtyping and beartype are installed."""
    early = [name for name in packages if name in sys.modules]
    assert not early, f"{early} were imported before their shapes could be checked"
    if not available:
        return
    from jaxtyping import install_import_hook

    typing_names = _TypingNames(packages)
    with install_import_hook(packages, CHECKER), patch("jaxtyping.jaxtyped", _checked):
        sys.meta_path.insert(0, typing_names)
        try:
            for package in packages:
                importlib.import_module(package)
        finally:
            sys.meta_path.remove(typing_names)
            typing.TYPE_CHECKING = False


def _checked(*, typechecker):
    """jaxtyping's decorator, adapted to these tests.

    A wrong call that the library itself refuses is refused by the library, so that tests see the error that users see.
    torch.compile, which cannot trace the checks, sees the plain function. Protocols become runtime-checkable, as annotations
    name them; other classes stay as they are.
    """
    from jaxtyping import TypeCheckError
    from jaxtyping._decorator import jaxtyped  # the name in jaxtyping itself is patched while packages are imported

    def decorator(function):
        if inspect.isclass(function):
            return typing.runtime_checkable(function) if getattr(function, "_is_protocol", False) else function
        if function.__module__ in UNCHECKED or not _states_a_shape(function):
            return function
        strict = jaxtyped(function, typechecker=typechecker)

        @functools.wraps(function)
        def checked(*args, **kwargs):
            if torch.compiler.is_compiling():
                return function(*args, **kwargs)
            try:
                return strict(*args, **kwargs)
            except TypeCheckError as wrong:
                try:
                    function(*args, **kwargs)
                except (TypeError, ValueError, WrongShape) as refusal:
                    raise refusal from None
                except Exception:
                    pass  # torch's own error says less than the shapes do
                raise WrongShape(str(wrong)) from None

        return checked

    return decorator


def _states_a_shape(function) -> bool:
    """Whether an annotation is one of jaxtyping's; checking the others costs as much time and finds what mypy finds."""
    return any(re.search(r"\b(Float|Int|Integer|Bool|Shaped)\[", str(kind)) for kind in function.__annotations__.values())


class _TypingNames(MetaPathFinder):
    """Finds nothing. It is asked before every import, and sets `typing.TYPE_CHECKING` for the module that follows."""

    def __init__(self, packages: tuple[str, ...]) -> None:
        self.packages = packages

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in sys.stdlib_module_names:
            typing.TYPE_CHECKING = name.startswith(self.packages)
        return None
