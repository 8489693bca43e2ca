"""What the commands share: errors in one line, messages of the library, progress bars, and checks of their arguments."""

from __future__ import annotations

import io
import logging
import re
import sys
import warnings
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import typer

from suprank.files.atomic import DISK_FULL, DiskFullError
from suprank.files.outputs import check_folder, check_writable
from suprank.files.spreadsheets import CONTROL

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from rich.console import Console
    from rich.progress import TaskID
    from rich.table import Table


__all__ = ["check_folder", "check_writable"]  # of suprank.files, so that commands find all checks here


@contextmanager
def plain_errors(smaller: str) -> Iterator[None]:
    """Print an error of the library in one line and exit with code 2, instead of showing a traceback.

    `smaller` says what to change if memory runs out, such as "a smaller --batch-size". A missing package is left to `main`,
    which knows the extra that brings it.
    """
    try:
        yield
    except (BrokenPipeError, ModuleNotFoundError):  # a closed pipe: typer ends quietly
        raise
    except typer.BadParameter as error:  # which may quote a file
        error.message = escaped(error.message)
        raise
    except OSError as error:
        if error.errno in DISK_FULL and not isinstance(error, DiskFullError):
            error = DiskFullError(error.filename or "what was to be written", error)
        raise typer.BadParameter(_message(error)) from error
    except (ValueError, TypeError, ImportError) as error:
        raise typer.BadParameter(_message(error)) from error
    except (MemoryError, RuntimeError) as error:
        # OutOfMemoryError is recognized by name, because importing torch takes a second; on a CPU it is a RuntimeError.
        on_cpu = "can't allocate memory" in str(error)
        if not isinstance(error, MemoryError) and type(error).__name__ != "OutOfMemoryError" and not on_cpu:
            raise
        first_line = next(iter(_message(error).splitlines()), "").removeprefix("MemoryError") or "out of memory"
        raise typer.BadParameter(f"{first_line} Give {smaller}.") from error


@contextmanager
def plain_messages() -> Iterator[None]:
    """Print warnings and log records of the library on stderr, each once and in one line, without a line of source."""
    printed: set[str] = set()

    def show(text: str) -> None:
        if text not in printed:
            printed.add(text)
            echo(text, err=True)

    def show_warning(message: Warning | str, *_: object, **__: object) -> None:
        show(f"warning: {message}")

    with warnings.catch_warnings(), _log_handler("suprank.workflows", show), _log_handler("suprank.evaluation", show):
        warnings.showwarning = show_warning
        yield


@contextmanager
def _log_handler(name: str, show: Callable[[str], None]) -> Iterator[None]:
    """Pass the records of a logger to `show`, those of level WARNING and above as "warning: ..."."""

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            show(f"{'warning: ' * (record.levelno >= logging.WARNING)}{record.getMessage()}")

    logger, handler = logging.getLogger(name), Handler()
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


def _message(error: Exception) -> str:
    """The text of an error; for one from a worker process, what follows its traceback."""
    lines = "\n".join((str(error), *getattr(error, "__notes__", ()))).splitlines()
    if lines and re.match(r"Caught .* in .* worker process", lines[0]):
        last = max(place for place, line in enumerate(lines) if line.startswith("  "))
        lines = [re.sub(r"^[\w.]+: ", "", lines[last + 1]), *lines[last + 2 :]]
    return escaped("\n".join(lines).strip())


def escaped(text: str) -> str:
    """Escape what would move the cursor, change colors or hide text, so that text from files may go to a terminal.

    Escapes are those of JSON, so that lines of JSON stay valid.

    Example:
        >>> print(escaped("a" + chr(27) + "[31mb" + chr(0x202E) + "c"))
        a\\u001b[31mb\\u202ec
    """
    return CONTROL.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def echo(message: object = "", *, nl: bool = True, err: bool = False) -> None:
    """Print a line, on stderr with `err`. Everything that commands print goes through here, or through `escaped`."""
    typer.echo(escaped(str(message)), nl=nl, err=err)


def escape_unprintable() -> None:
    """Print what the encoding of stdout lacks as \\uXXXX, as Python does on stderr, instead of raising a UnicodeEncodeError.

    Windows uses cp1252, which has no τ, for pipes and files.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def escape_warnings() -> None:
    """Escape warnings and log records, which quote files too, on their way to stderr."""
    original = warnings.formatwarning
    warnings.formatwarning = lambda *args, **kwargs: escaped(original(*args, **kwargs))
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(_Escaping())


class _Escaping(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return escaped(super().format(record))


def device(name: str | None) -> str | None:
    """Return `name` if this machine has that device, else raise."""
    if name is None:
        return None
    import torch

    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise typer.BadParameter(f"{name!r} is not a device; use cpu, cuda or cuda:N.", param_hint="--device") from error
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        gpus = f"this machine has {torch.cuda.device_count()} CUDA GPUs"
        raise typer.BadParameter(f"{name!r} cannot be used: {gpus}; use cpu, cuda or cuda:N.", param_hint="--device")
    return name


def plain_table(columns: Sequence[str], right_from: int | None = None) -> Table:
    """A table whose first column is never wrapped, because its entries are there to be copied.

    Columns from `right_from` on are numbers, aligned to the right.
    """
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for place, column in enumerate(columns):
        right = right_from is not None and place >= right_from
        table.add_column(column, no_wrap=place == 0, overflow="fold", justify="right" if right else "left")
    return table


def full_width(console: Console, table: Table) -> int:
    """How wide a table is if no cell is folded."""
    return console.measure(table, options=console.options.update(width=10_000)).maximum


@contextmanager
def progress(what: str, quiet: bool) -> Iterator[Callable[[int, int], None]]:
    """Show a progress bar on stderr. Yields the function (done, total) that moves it; with `quiet` it does nothing."""
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
        if not tasks:  # started by the first call, so that refused arguments leave no empty bar behind
            bar.start()
            tasks.append(bar.add_task(what, total=total))
        bar.update(tasks[0], completed=done, total=total)

    try:
        yield advance
    finally:
        if tasks:
            bar.stop()


class ProgressBars(ExitStack):
    """One progress bar after the other, called as (what, done, total); a bar ends when the next one begins."""

    def __init__(self, quiet: bool) -> None:
        super().__init__()
        self.quiet, self._what = quiet, ""
        self._advance: Callable[[int, int], None] = lambda done, total: None

    def __call__(self, what: str, done: int, total: int) -> None:
        if what != self._what:
            self.close()
            self._what = what
            self._advance = self.enter_context(progress(what, self.quiet))
        self._advance(done, total)
