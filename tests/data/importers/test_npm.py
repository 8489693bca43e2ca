"""Packages are fetched with the command npm, here a stand-in, and read without being installed."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest

from suprank.data.importers import npm
from suprank.data.importers.npm import NpmError, Package


def _npm(monkeypatch, folder: Path, script: str) -> None:
    """Put a command npm first on the path that runs this script, with its arguments in $@."""
    folder.mkdir()
    command = folder / "npm"
    command.write_text(f"#!/bin/sh\n{script}\n")
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


def _archive(path: Path, **files: str) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name, text in files.items():
            member = tarfile.TarInfo(f"package/{name}.json")
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text.encode()))
    return path


def test_fetch_asks_npm_for_the_pinned_versions(monkeypatch, tmp_path):
    _npm(monkeypatch, tmp_path / "bin", 'echo "$@" > asked; touch a-b-1.0.tgz c-2.0.tgz')
    npm.fetch([Package("@a/b", "1.0"), Package("c", "2.0")], tmp_path)
    asked = (tmp_path / "asked").read_text()
    assert asked.startswith("pack ")
    assert asked.endswith("@a/b@1.0 c@2.0\n")
    assert "--ignore-scripts" in asked


def test_a_failing_npm_is_quoted_in_its_one_useful_line(monkeypatch, tmp_path):
    said = "npm error code ENOTFOUND\nnpm error network request to registry failed\nnpm error at Socket (net.js:1)"
    _npm(monkeypatch, tmp_path / "bin", f"printf '{said}' >&2; exit 1")
    with pytest.raises(NpmError, match=r"could not fetch c \(network request to registry failed\); check the network"):
        npm.fetch([Package("c", "2.0")], tmp_path)


def test_a_package_that_did_not_come_is_named(monkeypatch, tmp_path):
    _npm(monkeypatch, tmp_path / "bin", "touch c-2.0.tgz")
    with pytest.raises(NpmError, match=r"could not fetch d \(exit status 0\)"):
        npm.fetch([Package("c", "2.0"), Package("d", "1.0")], tmp_path)


def test_no_npm_is_an_error_with_a_way_out(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert not npm.available()
    with pytest.raises(NpmError, match="no command npm here; install Node.js"):
        npm.fetch([Package("c", "2.0")], tmp_path)


def test_an_npm_that_hangs_is_given_up(monkeypatch, tmp_path):
    _npm(monkeypatch, tmp_path / "bin", "exec sleep 30")
    monkeypatch.setattr(npm, "_TIMEOUT", 0.2)
    with pytest.raises(NpmError, match="did not fetch c@2.0 in 0 s"):
        npm.fetch([Package("c", "2.0")], tmp_path)


def test_json_is_read_from_the_archive(tmp_path):
    archive = _archive(tmp_path / "c-2.0.tgz", icons='{"a": 1}', broken="{")
    assert npm.read_json(archive, "icons.json") == {"a": 1}
    with pytest.raises(NpmError, match="c-2.0.tgz has no missing.json"):
        npm.read_json(archive, "missing.json")
    with pytest.raises(NpmError, match=r"broken.json of c-2.0.tgz cannot be read .*fetch the package again"):
        npm.read_json(archive, "broken.json")


def test_a_truncated_archive_is_named(tmp_path):
    archive = _archive(tmp_path / "c-2.0.tgz", icons='{"a": 1}')
    archive.write_bytes(archive.read_bytes()[:60])
    with pytest.raises(NpmError, match="icons.json of c-2.0.tgz cannot be read"):
        npm.read_json(archive, "icons.json")
