"""What worker processes do and do not tell."""

import signal
import subprocess
import sys

import pytest

SCRIPT = """
import os, signal, sys
from suprank.data.workers import ignore_signals
ignore_signals(0)
for number in (signal.SIGINT, signal.SIGTERM):
    os.kill(os.getpid(), number)
try:
    raise {error}
except Exception:
    sys.excepthook(*sys.exc_info())
print("still here")
"""


@pytest.mark.parametrize(
    ("error", "told"), [("ConnectionResetError", False), ("EOFError", False), ("BrokenPipeError", False), ("ValueError", True)]
)
def test_a_worker_lives_on_after_signals_and_tells_of_errors_but_not_of_a_parent_that_is_gone(error, told):
    done = subprocess.run([sys.executable, "-c", SCRIPT.format(error=error)], capture_output=True, text=True, timeout=60)
    assert done.stdout == "still here\n"
    assert (error in done.stderr) is told
    assert done.returncode not in (-signal.SIGINT, -signal.SIGTERM)
