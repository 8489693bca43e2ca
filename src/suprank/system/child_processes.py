"""Starting Python so that no module of the current folder is imported: a `typer.py` beside somebody's photos would be run.

What we start by a command has the option `-P`. What multiprocessing, Lightning or submitit start takes no option, and gets the
environment variable PYTHONSAFEPATH instead, which it removes, because code of the user's own may start Python too.
"""

from __future__ import annotations

import os
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from suprank.system.custom_code import handed_consents

if TYPE_CHECKING:
    from collections.abc import Iterator

VARIABLE = "PYTHONSAFEPATH"
VARIABLE_VALUE = "suprank"  # any text has the effect; this one tells it from the user's own
_lock = threading.Lock()


@contextmanager
def safe_environment() -> Iterator[None]:
    """What is started meanwhile has no current folder on its path, and our consents. Then the environment is as it was."""
    with _lock:
        changes = handed_consents() | ({} if os.environ.get(VARIABLE) else {VARIABLE: VARIABLE_VALUE})
        before = {name: os.environ[name] for name in changes if name in os.environ}
        os.environ.update(changes)
        try:
            yield
        finally:
            for name in changes:
                os.environ.pop(name, None)
            os.environ.update(before)


def restore_environment() -> None:
    """In a process that was started so, before code of the user's own runs: remove the variable, unless it is the user's."""
    if os.environ.get(VARIABLE) == VARIABLE_VALUE:
        del os.environ[VARIABLE]
