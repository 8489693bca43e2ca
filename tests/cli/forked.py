"""Servers of the real command line, forked by one process that has imported what takes long: a fraction of a second each.

As a script, it reads commands from standard input, a line of JSON each, and answers each with a line.
"""

import gc
import importlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]


class Forked:
    """A prepared process. `start` runs a command in a child of it: an object like that of `subprocess.Popen`."""

    def __init__(self, folder):
        self._folder, self._number = folder, 0
        environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}", "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "tests.cli.forked"]
        self._process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def ask(self, **request):
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def start(self, *arguments, cwd):
        self._number += 1
        stdout, stderr = (self._folder / f"{self._number}.{name}" for name in ("out", "err"))
        stdout.touch()
        stderr.touch()
        pid = self.ask(arguments=[*map(str, arguments)], cwd=str(cwd), stdout=str(stdout), stderr=str(stderr))
        return Child(self, pid, stdout, stderr)

    def close(self):
        self._process.kill()
        self._process.communicate()


class Child:
    """One command."""

    def __init__(self, parent, pid, stdout, stderr):
        self._parent, self._pid, self._stdout, self._stderr = parent, pid, stdout, stderr
        self.returncode = None

    def first_line(self, timeout=60):
        """What it prints first: the address of its page."""
        until = time.monotonic() + timeout
        while time.monotonic() < until:
            if "\n" in (text := self._stdout.read_text()):
                return text.splitlines()[0]
            time.sleep(0.02)
        raise TimeoutError(self._stderr.read_text())

    def interrupt(self, timeout=20):
        """Ctrl-C: the exit code, and what it printed on stderr."""
        self.send_signal(signal.SIGINT)
        self.returncode = self._parent.ask(wait=self._pid, timeout=timeout)
        assert self.returncode is not None, "it does not end"
        return self.returncode, self._stderr.read_text()

    def send_signal(self, number):
        os.kill(self._pid, number)

    def kill(self):
        if self.returncode is None:
            self.send_signal(signal.SIGKILL)
            self._parent.ask(wait=self._pid, timeout=10)


def _run(request):
    """In a child: the command line."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(request["cwd"])
    for number, name in ((1, "stdout"), (2, "stderr")):
        os.dup2(os.open(request[name], os.O_CREAT | os.O_WRONLY | os.O_TRUNC), number)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.argv = ["suprank", *request["arguments"]]
    importlib.import_module("suprank.cli.main").main()
    sys.exit()


def _wait(pid, timeout):
    until = time.monotonic() + timeout
    while time.monotonic() < until:
        waited, status = os.waitpid(pid, os.WNOHANG)
        if waited:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    return None


def _serve():
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for module in ("suprank.cli.app", "suprank.explorer.web", "suprank.hierarchy.review.web", "suprank.models", "uvicorn"):
        importlib.import_module(module)
    gc.freeze()  # or else each fork, at its end, would look through all that was imported: two seconds
    for line in iter(sys.stdin.readline, ""):
        request = json.loads(line)
        if "wait" in request:
            answer = _wait(request["wait"], request["timeout"])
        elif not (answer := os.fork()):
            _run(request)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    _serve()
