"""Data that is published as npm packages: fetched with npm, read from the archives, never installed or run."""

from __future__ import annotations

import json
import shutil
import subprocess
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

_PATIENCE = 600.0  # seconds for all packages together


class Package(NamedTuple):
    """A package of the npm registry at one version; versions never change once published."""

    name: str
    version: str

    @property
    def file(self) -> str:
        """What `npm pack` calls the archive.

        Example:
            >>> Package("@iconify-json/noto", "1.2.9").file
            'iconify-json-noto-1.2.9.tgz'
        """
        return f"{self.name.removeprefix('@').replace('/', '-')}-{self.version}.tgz"


class NpmError(OSError):
    """npm is missing, or could not fetch a package."""


def available() -> bool:
    """Whether the command npm is there; says nothing of the network."""
    return shutil.which("npm") is not None


def fetch(packages: Sequence[Package], folder: Path) -> None:
    """Put the archive of each package into the folder, under `package.file`; npm checks what it fetched by its hash."""
    npm = shutil.which("npm")
    if npm is None:
        raise NpmError("the drawings come as npm packages, and there is no command npm here; install Node.js, which has it.")
    wanted = [f"{package.name}@{package.version}" for package in packages]
    options = ["--loglevel=error", "--ignore-scripts", "--fetch-retries=1", f"--pack-destination={folder}"]
    command = [npm, "pack", *options, *wanted]
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=_PATIENCE, check=False)
    except subprocess.TimeoutExpired as error:
        raise NpmError(f"npm did not fetch {', '.join(wanted)} in {_PATIENCE:.0f} s; try again on a faster network.") from error
    missing = [package.name for package in packages if not (folder / package.file).is_file()]
    if done.returncode or missing:
        reason = _reason(done.stderr) or f"exit status {done.returncode}"
        raise NpmError(f"npm could not fetch {', '.join(missing or wanted)} ({reason}); check the network and npm's registry.")


def _reason(errors: str) -> str:
    """The first line of npm's errors that is for people: the others are codes, a stack, and where the log is."""
    lines = [line.removeprefix("npm ").removeprefix("error ").removeprefix("ERR! ").strip() for line in errors.splitlines()]
    return next((line for line in lines if line and not line.startswith(("code ", "syscall ", "errno ", "at "))), "")


def read_json(archive: Path, file: str) -> Any:
    """The contents of one JSON file of a package's archive, at its top."""
    try:
        with tarfile.open(archive, "r:gz") as members:
            found = members.extractfile(f"package/{file}")
            if found is not None:
                return json.load(found)
    except KeyError:
        pass
    except (OSError, tarfile.TarError, EOFError, json.JSONDecodeError) as error:
        raise NpmError(f"{file} of {archive.name} cannot be read ({error}); fetch the package again.") from error
    raise NpmError(f"{archive.name} has no {file}; the package is not what it was at this version.")
