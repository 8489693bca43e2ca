"""Export a branch: all its files are written or none, and none while lint finds errors, unless forced."""

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
from suprank.hierarchy.export_tables import (
    ExportItem,
    LabeledManifest,
    groups_csv,
    label_tree,
    labeled_manifest,
    labels_csv,
    published_csvs,
    read_export_items,
)
from suprank.hierarchy.lint import Finding, lint_project, severity_counts
from suprank.hierarchy.project import Project, canonical_json, utc_now
from suprank.hierarchy.tree import Hierarchy, hierarchy_from_db

if TYPE_CHECKING:
    import sqlite3

    from suprank.data.manifest import Manifest
    from suprank.hierarchy.project import Step

FORMATS = ("tree-json", "hgldv2", "csv", "all")
PROVENANCE = "provenance.json"


class LintFailedError(Exception):
    """Lint found errors, so nothing was written."""

    def __init__(self, findings: list[Finding]) -> None:
        super().__init__(f"lint found {len(findings):,} errors")
        self.findings = findings


@dataclass(frozen=True)
class ExportResult:
    """The files with their SHA-256, the lint errors that were overridden, and the manifest with its new levels.

    `undecided` counts what nobody has decided yet, by kind.
    """

    branch: str
    files: dict[str, str]
    overridden: list[Finding] = field(default_factory=list)
    warnings: int = 0
    manifest: LabeledManifest | None = None
    undecided: dict[str, int] = field(default_factory=dict)


def export_branch(
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
) -> ExportResult:
    """Write a branch to a folder and, with `manifest_out`, a manifest with its groups as new levels.

    The same branch always gives the same bytes, except for the time in provenance.json. The export is recorded in the project,
    with the lint errors that `force` overrode. It replaces an earlier export, and no other files. In labels.csv and groups.csv
    an apostrophe is put before text that a spreadsheet would run as a formula, unless `raw_csv`.
    """
    if format not in FORMATS:
        raise ValueError(f"there is no format {format!r}; choose from {', '.join(FORMATS)}.")
    if manifest_out is None and (manifest is not None or level is not None or drop_unlabeled):
        raise ValueError("manifest, level and drop_unlabeled need manifest_out, the file to write the manifest to.")
    folder = Path(folder)
    steps = {name: _step_record(step) for name, step in project.steps().items()}
    # A transaction, so that annotators wait and the record agrees with the files.
    with project.transaction() as db:
        findings = lint_project(project, branch)
        errors = [finding for finding in findings if finding.severity == "error"]
        if errors and not force:
            raise LintFailedError(errors)
        tree, items = hierarchy_from_db(db, branch, project.recipe.levels), read_export_items(db)
        undecided = _count_undecided(tree)
        contents = _contents(db, project, tree, items, format, raw_csv)
        options: dict[str, Any] = {"format": format, "force": force, "raw_csv": raw_csv}
        labeled = None
        if manifest_out is not None:
            base, source, base_level = _read_manifest(project, db, manifest, level)
            labeled = labeled_manifest(base, base_level, tree, items, drop_unlabeled=drop_unlabeled)
            options |= {"manifest": source, "manifest_out": str(manifest_out), "level": base_level}
            options |= {"drop_unlabeled": drop_unlabeled}
        digests = {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}
        provenance = {
            "project": str(project.folder.resolve()),
            "branch": branch,
            "last_event": tree.seq,
            "recipe": project.recipe.model_dump(mode="json"),
            "steps": steps,
            "options": options,
            "lint": {"errors": severity_counts(findings)[0], "findings": [finding.to_dict() for finding in findings]},
            "undecided": undecided,
            "files": digests,
            "versions": {"suprank": __version__, "python": platform.python_version()},
            "written": utc_now(),
        }
        contents[PROVENANCE] = (json.dumps(provenance, indent=2, ensure_ascii=False) + "\n").encode()
        theirs = [name for name in contents if (folder / name).exists()]
        if theirs and not (folder / PROVENANCE).exists():
            raise FileExistsError(
                f"{folder} has {' and '.join(theirs)} and no {PROVENANCE}, so no export wrote them; name another folder."
            )
        overridden = canonical_json([error.to_dict() for error in errors])
        db.execute(
            "INSERT INTO export (branch, at, seq, files_json, options_json, overridden_json) "
            "SELECT id, ?, ?, ?, ?, ? FROM branch WHERE name = ?",
            (utc_now(), tree.seq, canonical_json(digests), canonical_json(options), overridden, branch),
        )
        _write(folder, contents, None if labeled is None else labeled.manifest, manifest_out)
    return ExportResult(branch, digests, errors, severity_counts(findings)[1], labeled, undecided)


def _count_undecided(tree: Hierarchy) -> dict[str, int]:
    """Count what nobody has decided yet, by kind; kinds without any are left out."""
    doubtful = sum(label.doubt is not None for label in tree.labels.values())
    suggested = sum(not group.named for group in tree.groups.values())
    return {kind: number for kind, number in (("doubtful label", doubtful), ("suggested name", suggested)) if number}


def _contents(
    db: sqlite3.Connection, project: Project, tree: Hierarchy, items: list[ExportItem], format: str, raw_csv: bool
) -> dict[str, bytes]:
    contents: dict[str, bytes] = {}
    if format in ("tree-json", "all"):
        finest = {item.name: item.label for item in items if item.label is not None} if items else None
        contents["tree.json"] = label_tree(tree, finest).to_json().encode()
    if format == "hgldv2" and not items:
        raise ValueError(f"{project.folder} has labels but no items, and format hgldv2 has a row per item; use csv.")
    if format in ("hgldv2", "all"):
        contents |= published_csvs(tree, items, project.recipe)
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


def _read_manifest(
    project: Project, db: sqlite3.Connection, given: Path | None, level: str | None
) -> tuple[Manifest, str, str]:
    """The manifest to add levels to, its path, and the level below the new ones; by default those that the project knows."""
    from suprank.data.manifest import Manifest

    known = dict(db.execute("SELECT key, value FROM meta WHERE key IN ('manifest', 'manifest_level')").fetchall())
    if given is None and "manifest" not in known:
        raise ValueError(f"{project.folder} knows no manifest; name one with manifest.")
    source = str(given or known["manifest"])
    manifest = Manifest.read(source)
    manifest.require_single_labels("the export of a hierarchy into a manifest")
    default = known.get("manifest_level")
    return manifest, source, level or (default if default in manifest.levels else next(iter(manifest.levels), ""))


def _write(folder: Path, contents: Mapping[str, bytes], manifest: Manifest | None, manifest_out: Path | None) -> None:
    """Write all files or none: first into a draft folder beside the target, from where they are moved."""
    is_new = not folder.exists()
    draft = folder.with_name(f".{folder.name}.draft")
    shutil.rmtree(draft, ignore_errors=True)
    try:
        draft.mkdir(parents=True)
    except OSError as error:
        raise OSError(f"{folder} cannot be written ({error.strerror}); name another folder with out.") from error
    try:
        for name, content in contents.items():
            with explain_full_disk(folder / name):
                (draft / name).write_bytes(content)
        if manifest is not None and manifest_out is not None:
            manifest.save(manifest_out)  # atomic, and the last write that can find the disk full
        folder.mkdir(exist_ok=True)
        for name in contents:
            (draft / name).replace(folder / name)
    except BaseException:
        if is_new:
            shutil.rmtree(folder, ignore_errors=True)
        raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _step_record(step: Step) -> dict[str, Any]:
    fields = ("settings", "inputs", "result", "version", "ended", "stale")
    return {name: getattr(step, name) for name in fields}
