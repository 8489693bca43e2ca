"""Code of the user's own, named `mine.py:MyLoss` or `package.module:MyLoss`: how it is found and loaded.

`load` and `call` run that code, and are called only where the user has named it: by training (or `suprank train --dry-run`) for
its recipe, and to create a model. A saved model that needs code is refused, unless the caller trusts it: see
`suprank.models.Embedder.load`.
"""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from types import ModuleType

HUB = "hf-hub:"
"""Prefix of a backbone on the Hugging Face Hub, as timm writes it. What follows is no code."""

OBJECT = "python"
"""What stands before the colon in the name of a loss that was given to `train` as an object, and so cannot be loaded."""


class CustomCodeError(ValueError):
    """Code that a recipe or a model names and that cannot be found or used, or that has changed since the run began."""


class UntrustedCodeError(CustomCodeError):
    """A saved model needs code of the user's own, and the caller has not said that it may be loaded."""


class UserCodeError(RuntimeError):
    """The user's code raised an error, which is the cause of this one; the command line shows it with its traceback."""


class SourceFile(NamedTuple):
    """A file of Python code."""

    path: Path
    content: bytes

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.content).hexdigest()


@contextmanager
def running_user_code(name: str) -> Iterator[None]:
    """Tell errors of the user's code from errors in the recipe, which the command line shows in one line."""
    try:
        yield
    except CustomCodeError:
        raise
    except (ValueError, TypeError, ImportError, OSError) as error:
        raise UserCodeError(f"{name} raised {type(error).__name__}: {error}") from error


def is_custom(name: str) -> bool:
    """Whether a name means code of the user's: other names have no colon, but for that of the Hub's prefix."""
    return ":" in name and not name.startswith(HUB)


def is_code_name(name: str) -> bool:
    """Whether a name has the form `FILE.py:NAME` or `package.module:NAME`."""
    target, _, attribute = name.rpartition(":")
    is_module = all(part.isidentifier() for part in target.split(".")) and target != OBJECT
    return (_is_file(target) or is_module) and all(part.isidentifier() for part in attribute.split("."))


def object_name(given: object) -> str:
    """The name under which an object that was passed to `train` is saved."""
    kind = given if inspect.isfunction(given) else type(given)
    return f"{OBJECT}:{kind.__qualname__}"


def object_source(given: object) -> SourceFile | None:
    """The file that defines the class of an object; None where there is none, as in a notebook."""
    try:
        path = inspect.getsourcefile(given if inspect.isfunction(given) else type(given))
    except (TypeError, OSError):
        return None
    return SourceFile(Path(path), Path(path).read_bytes()) if path and Path(path).is_file() else None


def find_source(name: str) -> SourceFile | None:
    """The file that a name such as `mine.py:MyLoss` means, without running it; None for a module that has no source file.

    To find package.module, Python imports the package, but not the module.
    """
    target, attribute = _split(name)
    if _is_file(target):
        path = Path(target)
        if not path.is_file():
            raise CustomCodeError(
                f"{name}: there is no file {path.absolute()}; a path is relative to the working directory, and "
                f"package.module:{attribute} names an installed module."
            )
        return SourceFile(path, path.read_bytes())
    try:
        spec = importlib.util.find_spec(target)
    except ModuleNotFoundError:
        spec = None
    if spec is None:
        raise CustomCodeError(
            f"{name}: Python finds no module {target!r}; install it or put its folder on PYTHONPATH, or name a file, "
            f"{target.replace('.', '/')}.py:{attribute}."
        )
    path = Path(spec.origin or "")
    return SourceFile(path, path.read_bytes()) if spec.has_location and path.suffix == ".py" else None


def load(name: str) -> Any:
    """The object that a name such as `mine.py:MyLoss` means. This runs the code of its module."""
    target, attribute = _split(name)
    find_source(name)  # refuses what is not there
    with running_user_code(name):
        value: Any = _load_file(Path(target)) if _is_file(target) else importlib.import_module(target)
    for part in attribute.split("."):
        if not hasattr(value, part):
            own = sorted(key for key, member in vars(value).items() if callable(member) and not key.startswith("_"))
            raise CustomCodeError(f"{name}: {target} has no {attribute}; it has {', '.join(own) or 'nothing to call'}.")
        value = getattr(value, part)
    return value


def call(name: str, arguments: Mapping[str, Any], provided: Mapping[str, Any], key: str) -> Any:
    """Load what is called `name` and call it with the arguments, and with those of `provided` that its signature names.

    `key` is the key of the recipe that holds the arguments, for errors.
    """
    factory = load(name)
    if not callable(factory):
        raise CustomCodeError(f"{name} is a {type(factory).__name__}; name a class, or a function that returns an object.")
    try:
        signature = inspect.signature(factory)
    except ValueError:  # some classes in C have none
        with running_user_code(name):
            return factory(**arguments)
    added = {argument: value for argument, value in provided.items() if argument in signature.parameters}
    both = {**added, **arguments}
    try:
        signature.bind(**both)
    except TypeError as error:
        raise CustomCodeError(f"{key} does not fit {name}{signature}: {error}.") from None
    with running_user_code(name):
        return factory(**both)


def _split(name: str) -> tuple[str, str]:
    target, _, attribute = name.rpartition(":")
    if target == OBJECT:
        raise CustomCodeError(
            f"{name} was given to train() as an object, which cannot be loaded by name; call train(config, folder, loss=...) "
            "with it again."
        )
    if not target or not attribute:
        raise CustomCodeError(f"{name!r} should be FILE.py:NAME or package.module:NAME, such as mine.py:MyLoss.")
    return target, attribute


def _is_file(target: str) -> bool:
    return target.endswith(".py")


def _load_file(path: Path) -> ModuleType:
    """The module in a file, which may import others from its folder. The same file is loaded once by a process."""
    path = path.resolve()
    source = path.read_bytes()
    digest = hashlib.sha256(str(path).encode() + source).hexdigest()[:12]
    module_name = f"suprank_custom_{path.stem}_{digest}"
    if module_name in sys.modules:
        return sys.modules[module_name]
    spec = importlib.util.spec_from_file_location(module_name, path)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module  # dataclasses and pickle look there
    sys.path.insert(0, str(path.parent))
    try:
        # Not `exec_module`: for a second, old bytecode would pass for new. Without the `__future__` imports of this file.
        exec(compile(source, path, "exec", dont_inherit=True), module.__dict__)
    except BaseException:
        del sys.modules[module_name]
        raise
    finally:
        sys.path.remove(str(path.parent))
    return module
