"""Data published as npm packages: downloaded with npm and read from the archives, never installed or run."""

from __future__ import annotations

import json
import shutil
import subprocess
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

_TIMEOUT = 600.0  # seconds for all packages together


class Package(NamedTuple):
    """A package of the npm registry at one version; published versions never change."""

    name: str
    version: str

    @property
    def file(self) -> str:
        """The name that `npm pack` gives the archive.

        Example:
            >>> Package("@iconify-json/noto", "1.2.9").file
            'iconify-json-noto-1.2.9.tgz'
        """
        return f"{self.name.removeprefix('@').replace('/', '-')}-{self.version}.tgz"


class NpmError(OSError):
    """npm is missing or could not download a package."""


def available() -> bool:
    """Whether the command npm exists; the network is not tested."""
    return shutil.which("npm") is not None


def fetch(packages: Sequence[Package], folder: Path) -> None:
    """Download the archive of each package into the folder, as `package.file`; npm verifies its hash."""
    npm = shutil.which("npm")
    if npm is None:
        raise NpmError("the drawings are npm packages, and there is no command npm here; install Node.js, which includes it.")
    wanted = [f"{package.name}@{package.version}" for package in packages]
    options = ["--loglevel=error", "--ignore-scripts", "--fetch-retries=1", f"--pack-destination={folder}"]
    command = [npm, "pack", *options, *wanted]
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, encoding="utf-8", errors="replace", timeout=_TIMEOUT, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise NpmError(f"npm did not fetch {', '.join(wanted)} in {_TIMEOUT:.0f} s; try again on a faster network.") from error
    missing = [package.name for package in packages if not (folder / package.file).is_file()]
    if done.returncode or missing:
        reason = _reason(done.stderr) or f"exit status {done.returncode}"
        raise NpmError(f"npm could not fetch {', '.join(missing or wanted)} ({reason}); check the network and npm's registry.")


def _reason(errors: str) -> str:
    """The first readable line of npm's errors; the others are codes, a stack, and the path of the log."""
    lines = [line.removeprefix("npm ").removeprefix("error ").removeprefix("ERR! ").strip() for line in errors.splitlines()]
    return next((line for line in lines if line and not line.startswith(("code ", "syscall ", "errno ", "at "))), "")


def read_json(archive: Path, file: str) -> Any:
    """The content of a JSON file at the top of a package's archive."""
    try:
        with tarfile.open(archive, "r:gz") as members:
            member = members.extractfile(f"package/{file}")
            if member is not None:
                return json.load(member)
    except KeyError:
        pass
    except (OSError, tarfile.TarError, EOFError, json.JSONDecodeError) as error:
        raise NpmError(f"{file} of {archive.name} cannot be read ({error}); fetch the package again.") from error
    raise NpmError(f"{archive.name} has no {file}; the package has changed.")
