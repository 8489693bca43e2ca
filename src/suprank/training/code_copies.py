"""The sources of the user's own code, their copies in a run folder, and the check that they are unchanged when it is resumed.

code/loss/mine.py            the copy, for the reader; it is never loaded
code/backbone/network.py     the same for a backbone
code/SHA256SUMS              their hashes, as `sha256sum` writes them
"""

from __future__ import annotations

import tomllib
from contextlib import contextmanager
from typing import TYPE_CHECKING

from suprank.files.atomic import own_file, write_atomically
from suprank.system.custom_code import (
    CustomCodeError,
    UntrustedCodeError,
    find_source,
    is_custom,
    object_source,
    require_consent,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from suprank.system.custom_code import SourceFile
    from suprank.training.config import TrainConfig

FOLDER, SUMS = "code", "SHA256SUMS"


def find_sources(config: TrainConfig, run: Path, loss: object | None = None) -> dict[str, SourceFile]:
    """The source files of the user's code, by what they are for; the user must have consented to run all of it.

    `run` may keep copies, and `loss` is the object that takes the place of the recipe's.
    """
    sources: dict[str, SourceFile | None] = {"loss": object_source(loss)}
    untrusted = []
    named = [("loss", config.loss.name, config.loss._named_in), ("backbone", config.model.backbone, config.model._named_in)]
    for role, name, named_in in named if loss is None else named[1:]:
        try:
            with point_to_copy(run, role):
                sources[role] = require_consent(name, role, named_in)
        except UntrustedCodeError as error:
            untrusted.append(str(error))
    if untrusted:
        raise UntrustedCodeError(" ".join(untrusted))
    return {role: source for role, source in sources.items() if source is not None}


def save_sources(run: Path, sources: Mapping[str, SourceFile]) -> None:
    """Write a copy of each file to `code/ROLE/` in the folder of the run, and all hashes to `code/SHA256SUMS`."""
    if not sources:
        return
    sums = ""
    for role, source in sources.items():
        (run / FOLDER / role).mkdir(parents=True, exist_ok=True)
        write_atomically(own_file(run / FOLDER / role / source.path.name), source.content)
        sums += f"{source.sha256}  {role}/{source.path.name}\n"
    write_atomically(own_file(run / FOLDER / SUMS), sums.encode())


def check_sources(run: Path, sources: Mapping[str, SourceFile]) -> None:
    """Refuse a file that differs from the one that the run began with."""
    for role, (sha256, copy) in _saved(run).items():
        if role in sources and sources[role].sha256 != sha256:
            raise CustomCodeError(
                f"{sources[role].path} has changed since the run in {run} began, so that it cannot be resumed with it. Restore "
                f"the file, of which the run keeps a copy ({copy}), or start a new run in another folder."
            )


def check_finished_run(run: Path) -> None:
    """Refuse a finished run whose code has changed since, so that a table does not mix runs of two versions."""
    saved = _saved(run)
    if not saved:
        return
    recipe = tomllib.loads((run / "recipe.toml").read_text(encoding="utf-8"))
    names = {"loss": recipe["loss"]["name"], "backbone": recipe.get("model", {}).get("backbone", "")}
    for role, (sha256, copy) in saved.items():
        source = find_source(names[role]) if is_custom(names[role]) else None
        if source is not None and source.sha256 != sha256:
            raise CustomCodeError(
                f"{source.path} has changed since the run in {run}, which is finished, and a table would mix both versions. "
                f"Restore the file, of which the run keeps a copy ({copy}), or use another folder."
            )


@contextmanager
def point_to_copy(run: Path, role: str) -> Iterator[None]:
    """If the code is not found, add to the error where the run keeps a copy."""
    try:
        yield
    except CustomCodeError as error:
        saved = _saved(run).get(role)
        if saved is None:
            raise
        raise type(error)(f"{error} The run in {run} keeps a copy: {saved[1]}.") from None


def _saved(run: Path) -> dict[str, tuple[str, Path]]:
    """The hash and the copy of each role."""
    file = own_file(run / FOLDER / SUMS)
    lines = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
    pairs = (line.split("  ", 1) for line in lines)
    return {path.partition("/")[0]: (sha256, run / FOLDER / path) for sha256, path in pairs}
