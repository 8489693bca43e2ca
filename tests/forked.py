"""Commands of the real command line, forked by one process that has imported what takes long: a fraction of a second each.

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

ROOT = Path(__file__).parents[1]
MODULES = (
    *("suprank.cli.app", "suprank.explorer.web", "suprank.hierarchy.review.web", "suprank.models", "suprank.training.loop"),
    *("timm", "pyarrow.dataset", "uvicorn"),
)


class Forked:
    """A prepared process. `start` runs a command in a child of it: an object like that of `subprocess.Popen`."""

    def __init__(self, folder):
        self._folder, self._number = folder, 0
        environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}", "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "tests.forked"]
        self._process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def ask(self, **request):
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def start(self, *arguments, cwd, call="suprank.cli.main:main", variables=None):
        """Call a function with these arguments of its command line, in this folder and with these further variables."""
        self._number += 1
        stdout, stderr = (self._folder / f"{self._number}.{name}" for name in ("out", "err"))
        stdout.touch()
        stderr.touch()
        files = {"cwd": str(cwd), "stdout": str(stdout), "stderr": str(stderr)}
        pid = self.ask(arguments=[*map(str, arguments)], call=call, variables=variables or {}, **files)
        return Child(self, pid, stdout, stderr)

    def close(self):
        self._process.kill()
        self._process.communicate()


class Child:
    """One command, in a session of its own."""

    def __init__(self, parent, pid, stdout, stderr):
        self._parent, self.pid, self._stdout, self._stderr = parent, pid, stdout, stderr
        self.returncode = None

    def first_lines(self, count, timeout=60):
        """What it prints first: the addresses of its pages."""
        until = time.monotonic() + timeout
        while time.monotonic() < until:
            if (text := self._stdout.read_text()).count("\n") >= count:
                return text.splitlines()[:count]
            time.sleep(0.02)
        raise TimeoutError(self._stderr.read_text())

    def interrupt(self, timeout=20):
        """Ctrl-C: the exit code, and what it printed on stderr."""
        self.send_signal(signal.SIGINT)
        code, _, errors = self.end(timeout)
        return code, errors

    def end(self, timeout):
        """The exit code, once it has ended, and what it printed on stdout and on stderr."""
        self.returncode = self._parent.ask(wait=self.pid, timeout=timeout)
        assert self.returncode is not None, "it does not end"
        return self.returncode, self._stdout.read_text(), self._stderr.read_text()

    def kill_all(self):
        """Kill it and the processes that it started."""
        os.killpg(self.pid, signal.SIGKILL)
        self._parent.ask(wait=self.pid, timeout=10)

    def send_signal(self, number):
        os.kill(self.pid, number)

    def kill(self):
        if self.returncode is None:
            self.send_signal(signal.SIGKILL)
            self._parent.ask(wait=self.pid, timeout=10)


def _run(request):
    """In a child: the command line, or another function."""
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(request["cwd"])
    os.environ.update(request["variables"])
    for number, name in ((1, "stdout"), (2, "stderr")):
        os.dup2(os.open(request[name], os.O_CREAT | os.O_WRONLY | os.O_TRUNC), number)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.argv = ["suprank", *request["arguments"]]
    module, name = request["call"].split(":")
    sys.modules["__main__"] = importlib.import_module(module)  # Lightning starts further processes of it
    getattr(sys.modules["__main__"], name)()
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
    for module in MODULES:
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
