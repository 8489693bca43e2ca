"""What worker processes do and do not tell."""

import signal
import subprocess
import sys

SCRIPT = """
import os, signal, sys
from suprank.data.workers import ignore_signals
ignore_signals(0)
for number in (signal.SIGINT, signal.SIGTERM):
    os.kill(os.getpid(), number)
for error in (ConnectionResetError, EOFError, BrokenPipeError, ValueError):
    try:
        raise error
    except Exception:
        sys.excepthook(*sys.exc_info())
    print("still here after", error.__name__)
"""


def test_a_worker_lives_on_after_signals_and_tells_of_errors_but_not_of_a_parent_that_is_gone():
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60)
    errors = ("ConnectionResetError", "EOFError", "BrokenPipeError", "ValueError")
    assert done.stdout == "".join(f"still here after {error}\n" for error in errors)
    assert [error for error in errors if error in done.stderr] == ["ValueError"]
    assert done.returncode not in (-signal.SIGINT, -signal.SIGTERM)
