"""The servers end with exit code 0 whenever Ctrl-C comes, and have no traceback for people who go away."""

import re
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from urllib.request import HTTPCookieProcessor, build_opener

import numpy as np
import pytest

from suprank.data import Manifest
from tests.cli.collection import done, photographs
from tests.hierarchy.review.small_project import small_project
from tests.models.tiny import embedder

FAST = ("--size", 32, "--resize", 0, "--workers", 0, "--device", "cpu")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with embeddings in e/, their model, embeddings that take a while to evaluate, and a project for annotators."""
    place = tmp_path_factory.mktemp("served")
    photographs(place / "photos")
    done("data", "import", "folder", place / "photos", "split=test", "--out", place / "m.parquet")
    embedder(dim=8).save(place / "model")
    done("embed", place / "model", place / "m.parquet", "--out", place / "e", *FAST)
    rows = [f"{row}.png" for row in range(4000)]
    columns = {"path": rows, "split": ["test"] * len(rows), "label_class": [f"c{row % 600}" for row in range(len(rows))]}
    Manifest.from_columns(columns, root=place).save(place / "many.parquet")
    np.save(place / "many.npy", np.random.default_rng(0).normal(size=(len(rows), 64)).astype(np.float32))
    small_project(place / "project")
    return place


@contextmanager
def serving(forked, folder, *arguments):
    """The command in a process of its own, once it has printed its address: (address, process)."""
    process = forked.start(*arguments, "--port", "0", "--quiet", "--no-browser", cwd=folder)
    try:
        yield re.search(r"http://\S+", process.first_lines(1)[0])[0], process
    finally:
        process.kill()


def interrupted(process):
    """Exit code and standard error after Ctrl-C, without what a project without pictures says at the start."""
    code, output = process.interrupt()
    return code, re.sub("there are no sample pictures: .*\n", "", output)


COMMANDS = {
    "explore": ("explore", "many.npy", "--labels", "many.parquet"),
    "hierarchy review": ("hierarchy", "review", "project", "--annotator", "anna"),
}


def fetched(address):
    with build_opener(HTTPCookieProcessor()).open(
        address, timeout=30
    ) as answer:  # a link to review leads to a page by a cookie
        return answer.read()


def half_an_upload(address):
    """A socket that has sent half of the image it announced."""
    host, port = re.search(r"//([\d.]+):(\d+)", address).groups()
    sending = socket.create_connection((host, int(port)))
    head = "Content-Type: multipart/form-data; boundary=x\r\nContent-Length: 5000\r\n\r\n--x\r\nContent-Disposition: form-data;"
    sending.sendall(
        f'POST /upload HTTP/1.1\r\nHost: {host}\r\n{head} name="image"; filename="a.png"\r\n\r\n'.encode() + b"0" * 1000
    )
    return sending


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "moment"),
    [
        *(("explore", moment) for moment in ("before the first page", "after the first page", "while pages are sent")),
        ("hierarchy review", "while pages are sent"),
    ],
)
def test_a_server_ends_with_0_whenever_it_is_interrupted(forked, folder, command, moment):
    with serving(forked, folder, *COMMANDS[command]) as (address, process):
        if moment != "before the first page":
            assert b"<html" in fetched(address)
        if moment == "while pages are sent":
            clients = [subprocess.Popen([sys.executable, "-c", ASKING, address]) for _ in range(2)]
            time.sleep(0.3)
        try:
            assert interrupted(process) == (0, "")
        finally:
            for client in clients if moment == "while pages are sent" else ():
                client.kill()
                client.wait()


ASKING = """
import sys, urllib.request
opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
try:
    while True:
        opener.open(sys.argv[1], timeout=30).read()
except OSError:
    pass
"""


@pytest.mark.slow
def test_an_upload_that_is_cut_off_leaves_the_server_up_and_without_a_traceback(forked, folder):
    with serving(forked, folder, "explore", "e", "--model", "model", "--device", "cpu") as (address, process):
        for _ in range(3):
            half_an_upload(address).close()
        assert b"<html" in fetched(address)
        with half_an_upload(address):  # and one that never goes on
            fetched(address)
            assert interrupted(process) == (0, "")
