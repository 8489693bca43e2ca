"""A locked folder is refused to other processes until the first one ends, however it ends; folders are built once, or not."""

import multiprocessing
import os
import platform
import subprocess
import sys
import time

import pytest

from suprank.files.locking import LOCK, build_once, lock_folder
from suprank.files.outputs import foreign_file

HOLDER = """
import multiprocessing, os, subprocess, time
from pathlib import Path
from suprank.files.locking import lock_folder

def sleep_quietly():
    os.close(1)
    time.sleep(60)

with lock_folder(Path("f"), "", "") as descriptor:
    START
    print("locked", flush=True)
    time.sleep(60)
"""


def refusal(folder):
    with pytest.raises(BlockingIOError) as raised, lock_folder(folder, "training in", "wait for it"):
        pass
    return str(raised.value)


def test_the_refusal_names_the_holder_the_folder_and_the_way_out(tmp_path):
    with lock_folder(tmp_path / "new" / "f", "", ""):
        holder = f"process {os.getpid()} on {platform.node()}"
        assert refusal(tmp_path / "new" / "f") == f"{holder} is training in {tmp_path / 'new' / 'f'}; wait for it."
        (tmp_path / "new" / "f" / LOCK).write_bytes(b"")
        assert refusal(tmp_path / "new" / "f").startswith("another process is training in")
        with lock_folder(tmp_path / "new" / "f", "", "", name="another.lock"):
            pass
    with lock_folder(tmp_path / "new" / "f", "", ""):
        pass


@pytest.fixture
def killed(tmp_path):
    """Kills a process that holds the lock of f/ and has started a program by the expression given."""

    def kill(start):
        command = [sys.executable, "-c", HOLDER.replace("START", start)]
        holder = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, start_new_session=True)
        groups.append(holder)
        assert holder.stdout.readline() == b"locked\n"
        assert refusal(tmp_path / "f").startswith(f"process {holder.pid} on")
        holder.kill()
        holder.communicate()

    groups = []
    yield kill
    for holder in groups:
        os.killpg(holder.pid, 9)


def test_a_killed_holder_is_no_obstacle_though_its_forked_child_lives(tmp_path, killed):
    killed("multiprocessing.get_context('fork').Process(target=sleep_quietly, daemon=True).start()")  # as a loader's worker
    with lock_folder(tmp_path / "f", "", ""):
        pass


def test_a_program_that_was_given_the_descriptor_keeps_the_lock_of_a_killed_holder(tmp_path, killed):
    killed("subprocess.Popen(['sleep', '60'], pass_fds=[descriptor], stdout=subprocess.DEVNULL)")
    refusal(tmp_path / "f")


def test_a_lock_and_a_half_written_file_are_not_foreign(tmp_path):
    for name in (LOCK, ".embeddings.npy.123.tmp"):
        (tmp_path / name).touch()
    assert foreign_file(tmp_path, "run.json") is None
    (tmp_path / "thesis.tex").touch()
    assert foreign_file(tmp_path, "run.json") == "thesis.tex"
    (tmp_path / "run.json").touch()
    assert foreign_file(tmp_path, "run.json") is None


# Folders that are built once


def _write(folder):
    (folder / "a.txt").write_text("ma")
    time.sleep(0.3)
    (folder / "a.txt").write_text("made")
    (folder / f"{os.getpid()}").touch()


def _build_slowly(folder):
    build_once(folder, _write, "")


def test_a_folder_is_built_by_one_process_and_the_others_wait(tmp_path):
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_build_slowly, args=(tmp_path / "set" / "k",)) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0]
    assert (tmp_path / "set" / "k" / "a.txt").read_text() == "made"
    assert len(list((tmp_path / "set" / "k").iterdir())) == 2, "one of them wrote"
    assert build_once(tmp_path / "set" / "k", None, "") == tmp_path / "set" / "k"


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_interrupted_build_leaves_nothing_and_the_next_starts_again(tmp_path, error):
    def interrupted(folder):
        (folder / "b.txt").touch()
        raise error

    with pytest.raises(error):
        build_once(tmp_path / "k", interrupted, "")
    assert [path.name for path in tmp_path.iterdir()] == [".k.lock"]
    (tmp_path / ".k.unfinished").mkdir()  # of a process that was killed
    (tmp_path / ".k.unfinished" / "b.txt").touch()
    assert sorted(path.name for path in build_once(tmp_path / "k", _write, "").iterdir()) == [f"{os.getpid()}", "a.txt"]


def test_a_place_that_cannot_be_written_names_the_way_out(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file is not writable .*; set SUPRANK_CACHE"):
        build_once(tmp_path / "file" / "k", _write, "set SUPRANK_CACHE")
