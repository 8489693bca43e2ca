"""A real Milvus server from the PyPI package `milvus`, which ships the server's binary, at one port of 127.0.0.1.

python tests/milvus_server.py FOLDER     prints the port once the server answers, and stops it at the end of stdin

Milvus listens on every network interface, on a dozen ports, whatever its settings say. So it runs in a network namespace of its
own, where nobody else can reach it; this process passes the connections on from a port of 127.0.0.1 outside. It ends with its
stdin, so also when the process that started it is killed, and the server ends with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import fcntl
import importlib.util
import lzma
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

_CLONE_NEWUSER, _CLONE_NEWNET, _PR_SET_PDEATHSIG = 0x10000000, 0x40000000, 1
_SIOCSIFFLAGS, _IFF_UP = 0x8914, 1
_SECONDS = 120  # to start
_FORBIDDEN = 77


def package() -> Path | None:
    """The folder of the package, None if it is not installed."""
    found = importlib.util.find_spec("milvus")
    return None if found is None or found.origin is None else Path(found.origin).parent


class MilvusServer:
    """A server with its data in a folder; several calls of `start` and `stop` use the same data."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)

    def start(self, **settings: str) -> int:
        """Start it, with settings of the package's config.yaml.template, and return its port on 127.0.0.1."""
        command = [sys.executable, __file__, str(self.folder), *(f"{key}={value}" for key, value in settings.items())]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self.stop()
            if self._process.returncode == _FORBIDDEN:
                raise PermissionError("this system allows no network namespaces, without which Milvus is open to the network")
            raise RuntimeError(f"the Milvus server did not start; {self.folder / 'server.log'} may say why.")
        self.port, self.pid = (int(word) for word in line.split())
        return self.port

    def stop(self) -> None:
        """Stop it, if it runs. It is killed, as by a crash or a power cut: what it has accepted must survive that."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.terminate()  # the end of stdin is not enough if a forked process holds its other end, too
        self._process.wait(timeout=120)
        self._process.stdin.close()  # not before: after the end of stdin, SIGTERM would end it before it has waited for Milvus
        self._process.stdout.close()

    def __enter__(self) -> MilvusServer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def main(folder: Path, settings: dict[str, str]) -> None:
    """Run the server until stdin ends, or a SIGTERM."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())  # or else Milvus would be left for somebody else to wait for
    outside = socket.create_server(("127.0.0.1", 0))  # in the namespace of the caller, where it stays
    if not _enter_own_network():
        raise SystemExit(_FORBIDDEN)
    server = _launch(folder, settings)
    try:
        _wait_until_healthy(server)
        print(outside.getsockname()[1], server.pid, flush=True)
        asyncio.run(_relay(outside, server))
    finally:
        server.kill()  # SIGTERM is not enough: version 2.3.5 was still there ten minutes later
        server.wait()


def _enter_own_network() -> bool:
    """Move this process into a new network namespace with nothing but a loopback interface, if the system allows it."""
    libc = ctypes.CDLL(None)
    if libc.unshare(_CLONE_NEWNET) and libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNET):
        return False
    with socket.socket() as any_socket:
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sh", b"lo", _IFF_UP))
    return True


def _launch(folder: Path, settings: dict[str, str]) -> subprocess.Popen[bytes]:
    origin = package()
    assert origin is not None, 'pip install "milvus==2.3.5"'
    binaries = folder / "bin"
    if not binaries.is_dir():
        binaries.mkdir(parents=True)
        for packed in (origin / "data" / "bin").glob("*.lzma"):
            file = binaries / packed.stem
            file.write_bytes(lzma.decompress(packed.read_bytes()))
            file.chmod(0o755)
    for name in ("configs", "logs", "data"):
        (folder / name).mkdir(exist_ok=True)
    given = {
        "etcd_log_path": folder / "logs" / "etcd.log",
        "etcd_data_dir": folder / "data" / "etcd.data",
        "local_storage_dir": folder / "data",
        "rocksmq_data_dir": folder / "data" / "rocksmq",
        "system_log_path": folder / "logs",
        **settings,
    }

    def value(match: re.Match[str]) -> str:
        """Of a placeholder such as `{{ proxy_port(int): 19530 }}`; the default ports are free in a namespace of one's own."""
        name, _, default = match[1].partition(":")
        return str(given.get(name.split("(")[0].strip(), default.strip()))

    template = (origin / "data" / "config.yaml.template").read_text()
    filled = re.sub(r"\{\{(.*?)\}\}", value, template)
    # After a kill, a new server waits for the sessions of the old one to expire: 3 s will do instead of 30.
    (folder / "configs" / "milvus.yaml").write_text(re.sub(r"(?m)^    ttl: 30 ", "    ttl: 3 ", filled))
    (folder / "configs" / "glog.conf").write_bytes((origin / "data" / "glog.conf").read_bytes())
    own = {"DEPLOY_MODE": "STANDALONE", "LD_LIBRARY_PATH": str(binaries), "MILVUS_RUN_DIR": str(folder / "run")}
    libc = ctypes.CDLL(None)
    with (folder / "server.log").open("ab") as log:
        return subprocess.Popen(
            [binaries / "milvus", "run", "standalone"],
            cwd=folder,
            env={**os.environ, **own},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            preexec_fn=lambda: libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL),
        )


def _wait_until_healthy(server: subprocess.Popen[bytes]) -> None:
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    deadline = time.monotonic() + _SECONDS
    while server.poll() is None and time.monotonic() < deadline:
        with contextlib.suppress(OSError), direct.open("http://127.0.0.1:9091/healthz", timeout=5) as answer:
            if answer.read() == b"OK":
                return
        time.sleep(0.1)
    raise SystemExit(f"Milvus does not answer (exit code {server.poll()})")


async def _relay(outside: socket.socket, server: subprocess.Popen[bytes]) -> None:
    """Pass connections on until stdin or the server ends."""

    async def pump(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while block := await source.read(2**16):
                target.write(block)
                await target.drain()
        target.close()

    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", 19530)
        except OSError:
            writer.close()
            return
        with contextlib.suppress(asyncio.CancelledError):  # at the end
            await asyncio.gather(pump(reader, inner_writer), pump(inner_reader, writer))

    async def server_end() -> None:
        while server.poll() is None:
            await asyncio.sleep(0.2)

    await asyncio.start_server(connect, sock=outside)
    loop, asked = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(sys.stdin.fileno(), asked.set)
    ends = [loop.create_task(asked.wait()), loop.create_task(server_end())]
    await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), dict(word.split("=", 1) for word in sys.argv[2:]))
