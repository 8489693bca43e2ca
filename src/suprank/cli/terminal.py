"""What the verbs share: errors in one line, a progress bar, and checks of devices and of files to write."""

from __future__ import annotations

import inspect
import logging
import os
import re
import tempfile
import warnings
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from suprank.files.atomic import FULL, DiskFullError, is_stream

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.progress import TaskID


@contextmanager
def plain_errors(smaller: str) -> Iterator[None]:
    """What the library refuses, said in one line with exit code 2 rather than in a traceback.

    `smaller` is what to give where memory runs out, such as "a smaller --batch-size". A package that is not installed is for
    `main`, which knows the extra that brings it.
    """
    try:
        yield
    except (BrokenPipeError, ModuleNotFoundError):  # whoever read what we print has gone: typer ends quietly
        raise
    except typer.BadParameter as error:  # which may quote a file
        error.message = escaped(error.message)
        raise
    except OSError as error:
        if error.errno in FULL and not isinstance(error, DiskFullError):
            error = DiskFullError(error.filename or "what was to be written", error)
        raise typer.BadParameter(_said(error)) from error
    except (ValueError, TypeError, ImportError) as error:
        raise typer.BadParameter(_said(error)) from error
    except (MemoryError, RuntimeError) as error:
        # torch's OutOfMemoryError goes by its name, because torch takes a second to import; on a CPU it is a RuntimeError.
        on_cpu = "can't allocate memory" in str(error)
        if not isinstance(error, MemoryError) and type(error).__name__ != "OutOfMemoryError" and not on_cpu:
            raise
        said = next(iter(_said(error).splitlines()), "").removeprefix("MemoryError") or "out of memory"
        raise typer.BadParameter(f"{said} Give {smaller}.") from error


@contextmanager
def plain_warnings(in_words: Callable[[Warning], str] = str) -> Iterator[None]:
    """Print the library's warnings on stderr, each once and in one line, without the line of source that raised it.

    `in_words` gives the text, for warnings whose own names options of Python.
    """
    printed: set[str] = set()

    def show(message: Warning | str, *_: object, **__: object) -> None:
        text = in_words(message) if isinstance(message, Warning) else message
        if text not in printed:
            printed.add(text)
            echo(f"warning: {text}", err=True)

    with warnings.catch_warnings():
        warnings.showwarning = show
        yield


def _said(error: Exception) -> str:
    """What an error says, in words of the command line; of one from a worker process, what stands under its traceback."""
    lines = "\n".join((str(error), *getattr(error, "__notes__", ()))).splitlines()
    if lines and re.match(r"Caught .* in .* worker process", lines[0]):
        last = max(place for place, line in enumerate(lines) if line.startswith("  "))
        lines = [re.sub(r"^[\w.]+: ", "", lines[last + 1]), *lines[last + 2 :]]
    return escaped("\n".join(lines).strip().replace("on_broken='skip'", "--skip-broken"))


_CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # C0 but for tabs and line ends, DEL, C1
    "\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"  # what turns text around, ends lines, or is no character
)


def escaped(text: str) -> str:
    """Text from files as it may go to a terminal: what would move the cursor, change colors or hide text is spelt out.

    As JSON spells it, so that lines of JSON stay what they are.

    Example:
        >>> print(escaped("a" + chr(27) + "[31mb" + chr(0x202E) + "c"))
        a\\u001b[31mb\\u202ec
    """
    return _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def echo(message: object = "", *, nl: bool = True, err: bool = False) -> None:
    """Print a line, on stderr with `err`. What the verbs say goes through here, or through `escaped`."""
    typer.echo(escaped(str(message)), nl=nl, err=err)


def escape_warnings() -> None:
    """Have warnings and log records, which quote files too, escaped on their way to stderr."""
    shown = warnings.formatwarning
    warnings.formatwarning = lambda *given, **also: escaped(shown(*given, **also))
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(_Escaping())


class _Escaping(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return escaped(super().format(record))


def flowing(text: str) -> str:
    """Help with the lines of each paragraph joined, as typer does for the first alone; a paragraph after \\b stays as it is."""
    paragraphs = inspect.cleandoc(text).split("\n\n")
    return "\n\n".join(one if one.startswith("\b") else one.replace("\n", " ") for one in paragraphs)


def device(name: str | None) -> str | None:
    """The device by its name, if this machine has it."""
    import torch

    if name is None:
        return None
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise typer.BadParameter(f"{name!r} is not a device; use cpu, cuda or cuda:N.", param_hint="--device") from error
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        there = f"there are {torch.cuda.device_count()} CUDA GPUs here"
        raise typer.BadParameter(f"{name!r} cannot be used: {there}; use cpu, cuda or cuda:N.", param_hint="--device")
    return name


def check_writable(file: Path) -> None:
    """Refuse, before hours of work, a file that cannot be written. Its folder is made; a file that is there stays as it is."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OSError(f"{file} cannot be written: the folder cannot be made ({error.strerror}); name another.") from error
    if file.is_dir():
        raise IsADirectoryError(f"{file} is a folder; name a file in it.")
    if file.exists() and not os.access(file, os.W_OK):
        raise PermissionError(f"{file} cannot be written: it is read-only; name another file.")
    if not is_stream(file):
        _check_takes_files(Path(os.path.realpath(file)).parent, file)


def check_folder(folder: Path) -> None:
    """Refuse, before hours of work, a folder that cannot be written to, or not be made. It is left to be made."""
    if folder.is_file():
        raise NotADirectoryError(f"{folder} is a file; name a folder.")
    if folder.is_dir():
        _check_takes_files(folder, folder)
    else:
        check_writable(folder)


def _check_takes_files(folder: Path, named: Path) -> None:
    """Write a file into the folder and remove it: permissions alone do not tell, of root or of a disk that is read-only."""
    try:
        with tempfile.TemporaryFile(dir=folder, prefix=".suprank-") as file:
            file.write(b"0")
    except OSError as error:
        if error.errno in FULL:
            raise DiskFullError(named, error) from error
        raise OSError(f"{named} cannot be written ({error.strerror}); name another place.") from error


@contextmanager
def progress(what: str, quiet: bool) -> Iterator[Callable[[int, int], None]]:
    """A bar on stderr, moved by the function it gives, which takes (done, total); where none is wanted it does nothing."""
    if quiet:
        yield lambda done, total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(elapsed_when_finished=True),
    )
    bar = Progress(*columns, console=Console(stderr=True))
    tasks: list[TaskID] = []

    def advance(done: int, total: int) -> None:
        if not tasks:  # begun by the first call: what is refused at the door leaves no bar behind, nor an empty line
            bar.start()
            tasks.append(bar.add_task(what, total=total))
        bar.update(tasks[0], completed=done)

    try:
        yield advance
    finally:
        if tasks:
            bar.stop()
