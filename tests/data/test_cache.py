"""Generated sets are in the cache completely or not at all."""

from __future__ import annotations

import multiprocessing
import os
import time
from pathlib import Path

import pytest

from suprank.data.cache import build_once, cache_folder, cache_key


def _write(folder: Path) -> None:
    (folder / "a.txt").write_text("made")


def _write_slowly(folder: Path) -> None:
    (folder / "a.txt").write_text("ma")
    time.sleep(0.3)
    (folder / "a.txt").write_text("made")


def _kept_slowly(cache: str) -> None:
    build_once("set", "k", _write_slowly, cache=cache)


def test_the_folder_is_the_one_given_else_the_environments_else_the_users(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))  # the HOME of Windows
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv("SUPRANK_CACHE", "~/set")
    assert cache_folder(tmp_path / "given") == tmp_path / "given"
    assert cache_folder() == tmp_path / "set"
    monkeypatch.setenv("SUPRANK_CACHE", "")
    assert cache_folder() == tmp_path / "xdg" / "suprank"
    for unset in ("", "relative"):  # the specification says that relative paths are invalid
        monkeypatch.setenv("XDG_CACHE_HOME", unset)
        assert cache_folder() == tmp_path / ".cache" / "suprank"


def test_keys_tell_parts_from_their_concatenation():
    assert cache_key("ab", "c") != cache_key("a", "bc")
    assert len(cache_key("ab")) == 16


def test_a_set_is_built_once(tmp_path):
    built = []
    for _ in range(2):
        folder = build_once("set", "k", lambda folder: (built.append(folder), _write(folder)), cache=tmp_path)
    assert folder == tmp_path / "set" / "k"
    assert (folder / "a.txt").read_text() == "made"
    assert len(built) == 1


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_interrupted_build_leaves_nothing_and_the_next_starts_again(tmp_path, error):
    def interrupted(folder: Path) -> None:
        _write(folder)
        raise error

    with pytest.raises(error):
        build_once("set", "k", interrupted, cache=tmp_path)
    assert list((tmp_path / "set").iterdir()) == []
    assert (build_once("set", "k", _write, cache=tmp_path) / "a.txt").is_file()


def test_processes_that_build_at_once_all_succeed(tmp_path):
    processes = [multiprocessing.get_context("spawn").Process(target=_kept_slowly, args=(str(tmp_path),)) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0]
    assert [path.name for path in (tmp_path / "set").iterdir()] == ["k"]
    assert (tmp_path / "set" / "k" / "a.txt").read_text() == "made"


def test_the_second_to_finish_takes_the_firsts(tmp_path):
    def overtaken(folder: Path) -> None:
        _write(folder)
        build_once("set", "k", lambda faster: (faster / "b.txt").write_text("first"), cache=tmp_path)

    folder = build_once("set", "k", overtaken, cache=tmp_path)
    assert [path.name for path in folder.iterdir()] == ["b.txt"]


def test_what_a_killed_build_left_is_removed_a_day_later(tmp_path):
    (tmp_path / "set" / ".k-old").mkdir(parents=True)
    (tmp_path / "set" / ".k-new").mkdir()
    os.utime(tmp_path / "set" / ".k-old", (0, 0))
    build_once("set", "k", _write, cache=tmp_path)
    assert sorted(path.name for path in (tmp_path / "set").iterdir()) == [".k-new", "k"]


def test_a_cache_that_cannot_be_written_names_the_way_out(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file/set, the cache of set, is not writable .* set SUPRANK_CACHE"):
        build_once("set", "k", _write, cache=tmp_path / "file")
