"""Writing an export: all its files, or none; refused while lint finds errors, unless told otherwise."""

from __future__ import annotations

import hashlib
import json
import platform
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from suprank import __version__
from suprank.files.atomic import explain_full_disk
from suprank.hierarchy.adjudication import Adjudication, read_origin
from suprank.hierarchy.exporting.columns import Labeled, labeled_manifest
from suprank.hierarchy.exporting.tables import Item, groups_csv, items_in, labels_csv, published
from suprank.hierarchy.exporting.trees import label_tree
from suprank.hierarchy.lint import Finding, counted, lint_project
from suprank.hierarchy.project import Project, as_json, now
from suprank.hierarchy.tree import FINAL, Hierarchy, hierarchy_in

if TYPE_CHECKING:
    import sqlite3

    from suprank.data.manifest import Manifest

FORMATS = ("tree-json", "hgldv2", "csv", "all")
PROVENANCE = "provenance.json"


class LintErrors(Exception):  # noqa: N818 - errors are what it holds
    """Lint found errors, and nothing was written."""

    def __init__(self, findings: list[Finding]) -> None:
        super().__init__(f"lint found {len(findings):,} errors")
        self.findings = findings


@dataclass(frozen=True)
class Exported:
    """The files with their SHA-256, the lint errors that were passed over, and what became of the manifest.

    `unsettled` counts what nobody has decided yet: see `_unsettled`.
    """

    branch: str
    files: dict[str, str]
    overridden: list[Finding] = field(default_factory=list)
    warnings: int = 0
    labeled: Labeled | None = None
    unsettled: dict[str, int] = field(default_factory=dict)


def export(
    project: Project,
    folder: str | Path,
    branch: str,
    *,
    format: str = "all",
    force: bool = False,
    manifest: Path | None = None,
    manifest_out: Path | None = None,
    level: str | None = None,
    drop_unlabeled: bool = False,
    raw_csv: bool = False,
) -> Exported:
    """Write a branch to a folder, and with `manifest_out` a manifest with its groups as new levels.

    Files of the same branch are the same bytes whenever they are written, provenance.json with its time excepted. What is
    written is recorded in the project, with the lint errors that `force` passed over. In labels.csv and groups.csv text
    that a spreadsheet would run as a formula has an apostrophe before it, unless `raw_csv`.
    """
    if format not in FORMATS:
        raise ValueError(f"there is no format {format!r}; choose from {', '.join(FORMATS)}.")
    if manifest_out is None and (manifest is not None or level is not None or drop_unlabeled):
        raise ValueError("--manifest, --level and --drop-unlabeled: say with --manifest-out where the manifest goes.")
    folder = Path(folder)
    steps = {name: _step(step) for name, step in project.steps().items()}
    # Whoever reviews meanwhile waits a moment: what is recorded is what is in the files.
    with project.writing() as db:
        findings = lint_project(project, branch)
        errors = [one for one in findings if one.severity == "error"]
        if errors and not force:
            raise LintErrors(errors)
        tree, items = hierarchy_in(db, branch, project.recipe.levels), items_in(db)
        unsettled = _unsettled(project, db, tree)
        contents = _contents(db, project, tree, items, format, raw_csv)
        options: dict[str, Any] = {"format": format, "force": force, "raw_csv": raw_csv}
        labeled = None
        if manifest_out is not None:
            read, source, above = _manifest(project, db, manifest, level)
            labeled = labeled_manifest(read, above, tree, items, drop_unlabeled=drop_unlabeled)
            written = {"manifest": source, "manifest_out": str(manifest_out), "level": above}
            options |= {**written, "drop_unlabeled": drop_unlabeled}
        digests = {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}
        provenance = {
            "project": str(project.folder.resolve()),
            "branch": branch,
            "last_event": tree.seq,
            "recipe": project.recipe.model_dump(mode="json"),
            "steps": steps,
            "options": options,
            "lint": {"errors": counted(findings)[0], "findings": [one.to_dict() for one in findings]},
            "unsettled": unsettled,
            "files": digests,
            "versions": {"suprank": __version__, "python": platform.python_version()},
            "written": now(),
        }
        contents[PROVENANCE] = (json.dumps(provenance, indent=2, ensure_ascii=False) + "\n").encode()
        overridden = as_json([one.to_dict() for one in errors])
        db.execute(
            "INSERT INTO export (branch, at, seq, files_json, options_json, overridden_json) "
            "SELECT id, ?, ?, ?, ?, ? FROM branch WHERE name = ?",
            (now(), tree.seq, as_json(digests), as_json(options), overridden, branch),
        )
        _write(folder, contents, None if labeled is None else labeled.manifest, manifest_out)
    return Exported(branch, digests, errors, counted(findings)[1], labeled, unsettled)


def _unsettled(project: Project, db: sqlite3.Connection, tree: Hierarchy) -> dict[str, int]:
    """How many things of the branch nobody has decided on: disagreements of the two annotators about labels, names and parents,
    on the final branch, and names that are suggestions. Kinds without any are left out."""
    counts = {"label": 0, "name": 0, "parent": 0}
    if tree.branch == FINAL and read_origin(db) is not None:
        status = Adjudication(project).status()
        counts = {kind: sum(not case.resolved for case in cases) for kind, cases in status.cases.items()}
    counts["suggested name"] = sum(not group.named for group in tree.groups.values())
    return {kind: number for kind, number in counts.items() if number}


def _contents(
    db: sqlite3.Connection, project: Project, tree: Hierarchy, items: list[Item], format: str, raw_csv: bool
) -> dict[str, bytes]:
    contents: dict[str, bytes] = {}
    if format in ("tree-json", "all"):
        finest = {item.name: item.label for item in items if item.label is not None} if items else None
        contents["tree.json"] = label_tree(tree, finest).to_json().encode()
    if format == "hgldv2" and not items:
        raise ValueError(f"{project.folder} is of labels without items, and format hgldv2 has a row an item; take csv.")
    if format in ("hgldv2", "all"):
        contents |= published(tree, items, project.recipe)
    if format in ("csv", "all"):
        contents |= {"labels.csv": labels_csv(tree, raw=raw_csv), "groups.csv": groups_csv(tree, raw=raw_csv)}
    events = db.execute(
        "SELECT seq, at, who, act, said, changes_json, undoes FROM event "
        "WHERE branch = (SELECT id FROM branch WHERE name = ?) ORDER BY seq",
        (tree.branch,),
    )
    lines = []
    for event in map(dict, events):
        event["changes"] = json.loads(event.pop("changes_json"))
        lines.append(json.dumps(event, ensure_ascii=False) + "\n")
    return contents | {"log.jsonl": "".join(lines).encode()}


def _manifest(project: Project, db: sqlite3.Connection, given: Path | None, level: str | None) -> tuple[Manifest, str, str]:
    """The manifest to add levels to, where it is, and the level they go above: what is given, else what the project knows."""
    from suprank.data.manifest import Manifest

    kept = dict(db.execute("SELECT key, value FROM meta WHERE key IN ('manifest', 'manifest_level')").fetchall())
    if given is None and "manifest" not in kept:
        raise ValueError(f"{project.folder} knows no manifest; name one with --manifest.")
    source = str(given or kept["manifest"])
    read = Manifest.read(source)
    named = kept.get("manifest_level")
    return read, source, level or (named if named in read.levels else next(iter(read.levels), ""))


def _write(folder: Path, contents: Mapping[str, bytes], manifest: Manifest | None, manifest_out: Path | None) -> None:
    """All files, or none of them: they are written beside the folder first, and then take their places."""
    made = not folder.exists()
    draft = folder.with_name(f".{folder.name}.draft")
    shutil.rmtree(draft, ignore_errors=True)
    try:
        draft.mkdir(parents=True)
    except OSError as error:
        raise OSError(f"{folder} cannot be written ({error.strerror}); name another folder with --out.") from error
    try:
        for name, content in contents.items():
            with explain_full_disk(folder / name):
                (draft / name).write_bytes(content)
        if manifest is not None and manifest_out is not None:
            manifest.save(manifest_out)  # whole or not at all, and the last that may find the disk full
        folder.mkdir(exist_ok=True)
        for name in contents:
            (draft / name).replace(folder / name)
    except BaseException:
        if made:
            shutil.rmtree(folder, ignore_errors=True)
        raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _step(step: Any) -> dict[str, Any]:
    kept = ("settings", "inputs", "result", "version", "ended", "stale")
    return {name: getattr(step, name) for name in kept}
