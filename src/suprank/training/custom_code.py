"""Your own code in a recipe, `mine.py:MyLoss` or `package.module:MyLoss`: how it is found, loaded, and kept with a run.

It is loaded when training (or `suprank train --dry-run`) builds what it names, and at no other time: reading a recipe or the
folder of a run, to evaluate or report it, runs no code of yours.

A run keeps a copy of the source file with its hash:

    code/loss/mine.py        the copy, for the reader; it is never loaded
    code/SHA256SUMS          its hash, as `sha256sum` writes it
"""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from suprank.files.atomic import write_atomically

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from types import ModuleType

FOLDER, SUMS = "code", "SHA256SUMS"
OBJECT = "python"
"""What stands before the colon in the name of a loss that was given to `train` as an object, and so cannot be loaded."""


class CustomCodeError(ValueError):
    """Code that a recipe names and that cannot be found or used, or that has changed since the run began."""


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
    """Whether a name means code of the user's: names of the package have no colon."""
    return ":" in name


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


def save_sources(run: Path, sources: Mapping[str, SourceFile]) -> None:
    """Write a copy of each file to `code/ROLE/` in the folder of the run, and all hashes to `code/SHA256SUMS`."""
    if not sources:
        return
    sums = ""
    for role, source in sources.items():
        (run / FOLDER / role).mkdir(parents=True, exist_ok=True)
        write_atomically(run / FOLDER / role / source.path.name, source.content)
        sums += f"{source.sha256}  {role}/{source.path.name}\n"
    write_atomically(run / FOLDER / SUMS, sums.encode())


def check_sources(run: Path, sources: Mapping[str, SourceFile]) -> None:
    """Refuse a file that differs from the one that the run began with."""
    for role, (sha256, copy) in _saved(run).items():
        if role in sources and sources[role].sha256 != sha256:
            raise CustomCodeError(
                f"{sources[role].path} has changed since the run in {run} began, so that it cannot be resumed with it. Restore "
                f"the file, of which the run keeps a copy ({copy}), or start a new run in another folder (--out)."
            )


@contextmanager
def point_to_copy(run: Path, role: str) -> Iterator[None]:
    """If the code is not found, add to the error where the run keeps a copy."""
    try:
        yield
    except CustomCodeError as error:
        saved = _saved(run).get(role)
        if saved is None:
            raise
        raise CustomCodeError(f"{error} The run in {run} keeps a copy: {saved[1]}.") from None


def _saved(run: Path) -> dict[str, tuple[str, Path]]:
    """The hash and the copy of each role."""
    file = run / FOLDER / SUMS
    lines = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
    pairs = (line.split("  ", 1) for line in lines)
    return {path.partition("/")[0]: (sha256, run / FOLDER / path) for sha256, path in pairs}


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
    digest = hashlib.sha256(str(path).encode() + path.read_bytes()).hexdigest()[:12]
    module_name = f"suprank_custom_{path.stem}_{digest}"
    if module_name in sys.modules:
        return sys.modules[module_name]
    spec = importlib.util.spec_from_file_location(module_name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module  # dataclasses and pickle look there
    sys.path.insert(0, str(path.parent))
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[module_name]
        raise
    finally:
        sys.path.remove(str(path.parent))
    return module
