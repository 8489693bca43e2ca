"""Code of the user's own, named `mine.py:MyLoss` or `package.module:MyLoss`: how it is found and loaded.

`load` and `call` run that code. To name it on the command line or in Python is consent. What a file names, such as a recipe, a
run or a saved model, first needs the user's consent: see `require_consent`, which decides for all of them. A consent is for the
source, the name and the role, so that changed code needs another. It is remembered among the user's settings, as direnv does,
never beside what it is about, which may be anybody's, and handed to processes that are started.
"""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import os
import symtable
import sys
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import reduce
from importlib.machinery import PathFinder
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from suprank.files.atomic import write_atomically
from suprank.system.platforms import config_folder

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from os import PathLike
    from types import ModuleType

HUB = "hf-hub:"
"""Prefix of a backbone on the Hugging Face Hub, as timm writes it. What follows is no code."""

OBJECT = "python"
"""What stands before the colon in the name of a loss that was given to `train` as an object, and so cannot be loaded."""

MODULE_PREFIX = "suprank_custom_"
"""Prefix of the names of the modules that `load` makes of files."""

CONSENTS = "SUPRANK_CONSENTS"  # the variable of a process that was handed some: its node may lack the folder of settings

_consents: set[str] = set()  # given or used in this process
_trusts_files = ContextVar("_trusts_files", default=False)


class CustomCodeError(ValueError):
    """Code that a recipe or a model names and that cannot be found or used, or that has changed since the run began."""


class UntrustedCodeError(CustomCodeError):
    """A file names code that is not part of suprank, and the user has not consented to run it."""


class UserCodeError(RuntimeError):
    """The user's code raised an error, which is the cause of this one; the command line shows it with its traceback."""


class SourceFile(NamedTuple):
    """A file of Python code, and the content of the `__init__` files of its packages, which run before it."""

    path: Path
    content: bytes
    packages: tuple[bytes, ...] = ()

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.content).hexdigest()

    @property
    def digest(self) -> str:
        """What a consent is for: the SHA-256 of the file, or if there are packages, of the hashes of them all."""
        hashes = [hashlib.sha256(one).digest() for one in (*self.packages, self.content)]
        return hashlib.sha256(b"".join(hashes)).hexdigest() if self.packages else self.sha256


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
    """The file that a name such as `mine.py:MyLoss` means, which must define it; None for a module that has no source file.

    Nothing is imported, not even the package of package.module.
    """
    target, attribute = _split(name)
    if _is_file(target):
        path = Path(target)
        if not path.is_file():
            raise CustomCodeError(
                f"{name}: there is no file {path.absolute()}; a path is relative to the working directory, and "
                f"package.module:{attribute} names an installed module."
            )
        source = SourceFile(path, path.read_bytes())
    else:
        files = _find_module(target)
        if not files:
            raise CustomCodeError(
                f"{name}: Python finds no module {target!r}; install it or put its folder on PYTHONPATH, also if that is the "
                f"current folder, or name a file, {target.replace('.', '/')}.py:{attribute}."
            )
        if None in files:
            return None
        *packages, content = (file.read_bytes() for file in files if file is not None)
        source = SourceFile(files[-1] or Path(), content, tuple(packages))
    _check_defined(name, source)
    return source


@contextmanager
def trusting(trust_code: bool) -> Iterator[None]:
    """Within it, the user consents to the code that files name, if `trust_code`."""
    before = _trusts_files.set(trust_code or _trusts_files.get())
    try:
        yield
    finally:
        _trusts_files.reset(before)


def require_consent(name: str, role: str, named_in: str | PathLike[str] | None) -> SourceFile | None:
    """The source of the code that `name` means; None if it has no file, or if the name means no code.

    `role` is "loss" or "backbone", and `named_in` the file or folder that names it, or None if the user did. Raises an
    `UntrustedCodeError` without the user's consent. That to code without a source file is not remembered.
    """
    if not is_custom(name):
        return None
    source, folder = find_source(name), config_folder()
    key = hashlib.sha256(repr((role, name, source and source.digest)).encode()).hexdigest()
    file = None if source is None or folder is None else folder / "trusted-code" / key
    what = f"{source.path.absolute()} (SHA-256 {source.digest[:12]})" if source else "a module without a source file"
    with suppress(OSError):  # a folder that cannot be used remembers nothing
        if named_in is None or _trusts_files.get():
            _consents.add(key)
            if file is not None and not file.is_file():
                file.parent.mkdir(parents=True, exist_ok=True)
                write_atomically(file, f"{role} {name}\n{what}\n".encode(errors="replace"))
        elif file is not None and file.is_file():
            _consents.add(key)
    if key not in handed_consents().get(CONSENTS, "").split():
        raise UntrustedCodeError(
            f"{named_in} needs code that is not part of suprank: its {role} is {name}, and loading it runs {what}. Read it, "
            "and if you trust it, say so with trust_code=True."
        )
    return source


def handed_consents() -> dict[str, str]:
    """The environment variable with which a process that is started has the consents of this one."""
    keys = _consents.union(os.environ.get(CONSENTS, "").split())
    return {CONSENTS: " ".join(sorted(keys))} if keys else {}


def load(name: str) -> Any:
    """The object that a name such as `mine.py:MyLoss` means. This runs the code of its module."""
    target, attribute = _split(name)
    find_source(name)  # refuses what is not there, or not defined there
    with running_user_code(name):
        value: Any = _load_file(Path(target)) if _is_file(target) else importlib.import_module(target)
    return reduce(getattr, attribute.split("."), value)


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


def _find_module(target: str) -> list[Path | None]:
    """The source files of a module's packages, and its own, None for one without; empty if Python does not find it.

    Nothing is imported. Modules that are frozen in Python have sources too.
    """
    files: list[Path | None] = []
    names, places = target.split("."), None
    for end, name in enumerate(names, 1):
        try:
            spec = importlib.util.find_spec(name) if end == 1 else PathFinder.find_spec(".".join(names[:end]), places)
        except (ValueError, KeyError):  # __main__; a namespace within a package
            spec = None
        if spec is None:
            return []
        path = Path(str(spec.origin if spec.has_location else getattr(spec.loader_state, "filename", "")))
        if spec.origin is not None or end == len(names):  # else a namespace
            files.append(path if path.suffix == ".py" and path.is_file() else None)
        places = spec.submodule_search_locations or []
    return files


def _check_defined(name: str, source: SourceFile) -> None:
    """Refuse a name that the file does not define: the hash of a file says nothing about what it imports."""
    target, attribute = _split(name)
    try:
        tables = [symtable.symtable(source.content, str(source.path), "exec")]  # type: ignore[arg-type]  # bytes will do
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise CustomCodeError(f"{name}: {source.path} is not Python: {error}.") from None
    for part in attribute.split("."):
        symbols = {symbol.get_name(): symbol for table in tables for symbol in table.get_symbols()}
        if part in symbols and symbols[part].is_imported():
            raise CustomCodeError(f"{name}: {target} imports {part}; name the file or the module that defines it.")
        if part not in symbols or not symbols[part].is_assigned():
            own = sorted(key for key, one in symbols.items() if one.is_namespace() and not key.startswith("_"))
            raise CustomCodeError(f"{name}: {target} has no {attribute}; it has {', '.join(own) or 'nothing to call'}.")
        children = [child for table in tables for child in table.get_children()]
        tables = [child for child in children if child.get_name() == part and child.get_type() == "class"]


def _load_file(path: Path) -> ModuleType:
    """The module in a file, which may import others from its folder. The same file is loaded once by a process."""
    path = path.resolve()
    source = path.read_bytes()
    digest = hashlib.sha256(str(path).encode() + source).hexdigest()[:12]
    module_name = f"{MODULE_PREFIX}{path.stem}_{digest}"
    if module_name in sys.modules:
        return sys.modules[module_name]
    spec = importlib.util.spec_from_file_location(module_name, path)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module  # dataclasses and pickle look there
    folder = [] if str(path.parent) in sys.path else [str(path.parent)]
    sys.path += folder  # at the end: a numpy.py beside the file is not numpy
    try:
        # Not `exec_module`: for a second, old bytecode would pass for new. Without the `__future__` imports of this file.
        exec(compile(source, path, "exec", dont_inherit=True), module.__dict__)
    except BaseException:
        del sys.modules[module_name]
        raise
    finally:
        for one in folder:
            sys.path.remove(one)
    return module
