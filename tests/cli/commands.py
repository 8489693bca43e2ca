"""Commands of the real command line, each in a process of its own that a prepared one forks: a fraction of a second each.

As a script, it reads cases from standard input and prints how each of them ended.
"""

import gc
import importlib
import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).parents[2]
AT_ONCE = 3
MOST = 40.0
"""Seconds that a command may take before it counts as hanging."""


def ended(cases):
    """How commands ended, by name: `code`, `stderr`, `seconds` since the signal (or the start), `left` processes.

    A case has `arguments`, a `folder` to run in, and perhaps a `signal` that is sent `to` "command", "group" or "worker" a
    moment after there are two workers and a file named `ready`.
    """
    done = subprocess.run(
        [sys.executable, "-m", "tests.cli.commands"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}", "OMP_NUM_THREADS": "1", **QUIET},
        input=json.dumps(cases),
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


QUIET = {"CUDA_VISIBLE_DEVICES": "", "COLUMNS": "500", "NO_COLOR": "1", "TERM": "dumb"}


def members(group):
    """The processes of a group that are not ended, with their parents: {process: parent}."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            state, parent, of = (entry / "stat").read_text().rsplit(")", 1)[1].split()[:3]
            if int(of) == group and state != "Z":
                found[int(entry.name)] = int(parent)
    return found


def workers(command):
    return [process for process, parent in members(command).items() if parent == command]


def _ended(pid, case):
    begun = time.monotonic()
    if "signal" in case:
        ready = Path(case["folder"], case["ready"])
        while not (ready.exists() and len(workers(pid)) >= 2) and time.monotonic() < begun + MOST:
            time.sleep(0.02)
        time.sleep(0.3)
        begun = time.monotonic()
        with suppress(ProcessLookupError, IndexError):
            match case["to"]:
                case "command":
                    os.kill(pid, case["signal"])
                case "group":
                    os.killpg(pid, case["signal"])
                case "worker":
                    os.kill(workers(pid)[0], case["signal"])
    code = None
    while code is None and time.monotonic() < begun + MOST:
        waited, status = os.waitpid(pid, os.WNOHANG)
        code = os.waitstatus_to_exitcode(status) if waited else None
        time.sleep(0.02)
    seconds = time.monotonic() - begun
    until = time.monotonic() + 15  # where a command is killed, its workers see a while later that it is gone
    while members(pid).keys() - {pid} and time.monotonic() < until:
        time.sleep(0.05)
    left = sorted(members(pid))
    for process in left:
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    if code is None:
        os.waitpid(pid, 0)
    return {"code": code, "seconds": seconds, "left": left, "stderr": Path(case["folder"], "stderr").read_text()}


def _started(case):
    pid = os.fork()
    if pid:
        return pid
    os.setsid()
    os.chdir(case["folder"])
    for number, name in ((1, "stdout"), (2, "stderr")):
        os.dup2(os.open(name, os.O_CREAT | os.O_WRONLY | os.O_TRUNC), number)
    sys.argv = ["suprank", *case["arguments"]]
    importlib.import_module("suprank.cli.main").main()
    sys.exit()


if __name__ == "__main__":
    cases = json.load(sys.stdin)
    for module in ("suprank.cli.app", "suprank.explorer.web", "suprank.training.loop", "timm", "pyarrow.dataset"):
        importlib.import_module(module)
    sys.modules["torch.utils.data._utils.worker"].MP_STATUS_CHECK_INTERVAL = 0.5
    gc.freeze()  # or else each fork, at its end, would look through all that was imported: two seconds
    results, waiting = {}, list(cases)
    while waiting:
        some, waiting = waiting[:AT_ONCE], waiting[AT_ONCE:]
        running = [_started(cases[name]) for name in some]
        with ThreadPoolExecutor(AT_ONCE) as pool:  # whose threads are gone when the next are forked
            results |= zip(some, pool.map(_ended, running, [cases[name] for name in some]), strict=True)
    print(json.dumps(results))
