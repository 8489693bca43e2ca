"""Files that are there whole or not at all, on disks that are full too."""

import os
import pickle
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from suprank.files import atomic
from suprank.files.atomic import DiskFullError, atomic_writer, explain_full_disk, is_stream, write_atomically
from tests.disks import disk_of


def test_a_full_disk_is_an_error_that_names_the_file_and_leaves_the_old_one(tmp_path):
    file = tmp_path / "report.json"
    write_atomically(file, b"old")
    with disk_of(1000), pytest.raises(DiskFullError) as error:
        write_atomically(file, b"new" * 1000)
    said = f"{file} cannot be written (the disk is full: File too large). Make room on it, or write to another disk."
    assert str(error.value) == said
    assert str(pickle.loads(pickle.dumps(error.value))) == said, "from a process to another"
    assert file.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [file]


def test_other_errors_stay_what_they_are(tmp_path):
    with pytest.raises(FileNotFoundError), atomic_writer(tmp_path / "none" / "file"):
        pass
    with pytest.raises(PermissionError, match="mine"), explain_full_disk("a"):
        raise PermissionError("mine")


def test_on_windows_a_file_is_replaced_once_its_reader_has_closed_it(tmp_path, monkeypatch):
    refusals = [PermissionError("in use")] * 3
    replace = Path.replace

    def refuse_first(self, target):
        if refusals:
            raise refusals.pop()
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", refuse_first)
    with pytest.raises(PermissionError, match="in use"):  # on Unix, where nobody keeps a file from being replaced
        write_atomically(tmp_path / "a", b"new")
    monkeypatch.setattr(atomic, "_ATTEMPTS", 3)
    monkeypatch.setattr(atomic, "_SECONDS_BETWEEN", 0)
    write_atomically(tmp_path / "a", b"new")
    assert [(file.name, file.read_bytes()) for file in tmp_path.iterdir()] == [("a", b"new")]
    refusals += [PermissionError("in use")] * 3
    with pytest.raises(PermissionError, match="in use"):
        write_atomically(tmp_path / "a", b"newer")


def test_a_link_stays_and_the_file_it_leads_to_is_replaced(tmp_path):
    real, link = tmp_path / "real.json", tmp_path / "link.json"
    real.write_bytes(b"old")
    link.symlink_to(real)
    write_atomically(link, b"new")
    assert link.is_symlink()
    assert real.read_bytes() == b"new"


def test_standard_output_that_leads_to_a_file_is_written_to_under_its_own_name(tmp_path):
    write = "write_atomically(Path('/proc/self/fd/1'), b'new')"
    code = f"from pathlib import Path; from suprank.files.atomic import write_atomically; {write}"
    with (tmp_path / "out").open("wb") as out:
        subprocess.run([sys.executable, "-c", code], stdout=out, check=True)
    assert (tmp_path / "out").read_bytes() == b"new"
    assert is_stream(Path("/dev/stdout"))
    assert not is_stream(Path("/dev/shm/file"))
    assert not is_stream(tmp_path / "out")


def test_a_device_is_written_to_and_not_replaced(tmp_path):
    device = tmp_path / "pipe"
    os.mkfifo(device)
    read = []
    reader = threading.Thread(target=lambda: read.append(device.read_bytes()))
    reader.start()
    write_atomically(device, b"content")
    reader.join(10)
    assert read == [b"content"]
    assert stat.S_ISFIFO(device.stat().st_mode)
