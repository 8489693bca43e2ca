"""Attacks by files, run in a child process that may take little more memory and time."""

import os
import random
import resource
import signal
from pathlib import Path


def attack(action, *, megabytes=300, seconds=20):
    """What an action raises, as "ValueError: the message", in a fork of this process; "" if nothing.

    The child may take so much more memory than this process has; it is killed after so many seconds.
    """
    listening, telling = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (taken + megabytes * 2**20,) * 2)
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(seconds)
            try:
                action()
            except BaseException as error:
                os.write(telling, f"{type(error).__name__}: {error}".encode(errors="replace"))
        finally:
            os._exit(0)
    os.close(telling)
    with os.fdopen(listening, "rb") as said:
        text = said.read().decode()
    _, status = os.waitpid(pid, 0)
    assert not status, f"the process ended by signal {os.WTERMSIG(status)}"
    return text


def damage(content, seed):
    """The content with up to three bytes, numbers or stretches of it changed, most of them near its end, where headers are."""
    draw, damaged = random.Random(seed), bytearray(content)
    for _ in range(draw.choice((1, 1, 2, 3))):
        at = draw.choice((draw.randrange(len(damaged)), max(0, len(damaged) - 1 - int(draw.expovariate(0.005)))))
        number = draw.choice((0, 2**31 - 1, 2**31, 2**40, 2**63 - 1, 2**64 - 1)).to_bytes(8, "little")
        new = draw.choice((bytes([draw.choice(b"\0\x7f\x80\xff(),[]{}'<9 ")]), number, damaged[at : at + 20] * 2, b""))
        damaged[at : at + draw.choice((len(new), 1, 16))] = new
    return bytes(damaged)
