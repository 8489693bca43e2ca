"""Commands of the real command line, forked by one process that has imported what takes long: a fraction of a second each.

As a script, it listens on a socket. Each worker of pytest is answered by a fork of its own, which reads requests, a line of
JSON each, and answers each with a line.
"""

import base64
import gc
import importlib
import json
import os
import pickle
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
MODULES = (
    *("suprank.cli.app", "suprank.explorer.web", "suprank.hierarchy.review.web", "suprank.models", "suprank.training.loop"),
    *("timm", "pyarrow.dataset", "uvicorn"),
)


class Server:
    """The prepared process, at an address for all workers of pytest."""

    def __init__(self):
        self._folder = tempfile.TemporaryDirectory(prefix="forked-")
        self.address = f"{self._folder.name}/socket"
        environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}", "OMP_NUM_THREADS": "1"}
        with socket.socket(socket.AF_UNIX) as listening:  # from now on, so that who connects before it is prepared waits
            listening.bind(self.address)
            listening.listen()
            number = listening.fileno()
            command = [sys.executable, "-m", "tests.forked", str(number)]
            self._process = subprocess.Popen(command, cwd=ROOT, env=environment, pass_fds=[number])

    def close(self):
        self._process.kill()
        self._process.wait()
        self._folder.cleanup()


class Forked:
    """The prepared process, for one worker. `start` runs a command in a child of it: an object like `subprocess.Popen`."""

    def __init__(self, address, folder):
        self._folder, self._number = folder, 0
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(address)
        self._lines = self._socket.makefile("rw")

    def ask(self, **request):
        self._lines.write(json.dumps(request) + "\n")
        self._lines.flush()
        return json.loads(self._lines.readline())

    def start(self, *arguments, cwd, call="suprank.cli.main:main", variables=None):
        """Call a function with these arguments of its command line, in this folder and with these further variables."""
        self._number += 1
        stdout, stderr = (self._folder / f"{self._number}.{name}" for name in ("out", "err"))
        stdout.touch()
        stderr.touch()
        files = {"cwd": str(cwd), "stdout": str(stdout), "stderr": str(stderr)}
        pid = self.ask(arguments=[*map(str, arguments)], call=call, variables=variables or {}, **files)
        return Child(self, pid, stdout, stderr)

    def script(self, code, *arguments, cwd=ROOT, **named):
        """Run a script, as `python -c` does."""
        return self.start(code, *arguments, cwd=cwd, call="tests.forked:run_script", **named)

    def function(self, function, variables=None):
        """Call a function that can be pickled, perhaps a `functools.partial`, in the folder that this process is in."""
        pickled = base64.b64encode(pickle.dumps(function)).decode()
        return self.start(pickled, cwd=Path.cwd(), call="tests.forked:run_pickled", variables=variables)

    def close(self):
        self._lines.close()
        self._socket.close()


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

    def interrupt(self, timeout=60):
        """Ctrl-C: the exit code, and what it printed on stderr."""
        self.send_signal(signal.SIGINT)
        code, _, errors = self.end(timeout)
        return code, errors

    def end(self, timeout):
        """The exit code, once it has ended, and what it printed on stdout and on stderr."""
        self.returncode = self._parent.ask(wait=self.pid, timeout=timeout)
        assert self.returncode is not None, "it does not end"
        return self.returncode, self._stdout.read_text(), self._stderr.read_text()

    def succeed(self, timeout):
        """Wait for its end without an error; if it does not end, kill it and its processes: one may wait for the others."""
        try:
            code, *output = self.end(timeout)
        except AssertionError:
            self.kill_all()
            raise
        assert code == 0, output

    def join(self, timeout=60):
        """Wait for its end, at most so many seconds: the exit code, or None."""
        if self.returncode is None:
            self.returncode = self._parent.ask(wait=self.pid, timeout=timeout)
        return self.returncode

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
    while True:
        waited, status = os.waitpid(pid, os.WNOHANG)
        if waited:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() >= until:
            return None
        time.sleep(0.005)


def run_script():
    """In a child: the script that is its first argument."""
    code = sys.argv.pop(1)
    exec(code, {"__name__": "__main__"})


def run_pickled():
    """In a child: the function that is its argument."""
    pickle.loads(base64.b64decode(sys.argv[1]))()


def _answer(lines):
    for line in lines:
        request = json.loads(line)
        if "wait" in request:
            answer = _wait(request["wait"], request["timeout"])
        elif not (answer := os.fork()):
            _run(request)
        lines.write(json.dumps(answer) + "\n")
        lines.flush()


def _serve(listening):
    parent = os.getppid()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for module in MODULES:
        importlib.import_module(module)
    gc.freeze()  # or else each fork, at its end, would look through all that was imported: two seconds
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    listening.settimeout(5)
    while os.getppid() == parent:  # or else pytest was killed
        try:
            connection, _ = listening.accept()
        except TimeoutError:
            continue
        if not os.fork():
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            _answer(connection.makefile("rw"))
            os._exit(0)
        connection.close()


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])))
