"""The step `clean`: apply a recipe's rules to the types of all items, and write labels and removals in one transaction."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from suprank.files.atomic import write_atomically
from suprank.files.spreadsheets import csv_bytes
from suprank.hierarchy.cleaning_rules import (
    CandidateType,
    CleanResult,
    LabelDraft,
    Removal,
    TypedItem,
    apply_rules,
    text_removal_reason,
    too_few_items_reason,
)
from suprank.hierarchy.project import Project, digest_rows, record_step

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from suprank.hierarchy.recipe import CleanRecipe

GONE = "no longer in the source"


def clean_labels(project: Project, rules: CleanRecipe, *, progress: Callable[[int, int], None] | None = None) -> CleanResult:
    """Apply the rules to all items (or, in a project without items, to its labels), and record the step.

    Existing labels keep their ids. A label that no item has any more is deleted, or marked as removed if a clustering or a
    branch refers to it. If the same rules were applied to the same types before, nothing is written.
    """
    with project.snapshot() as db:
        plain = db.execute("SELECT NOT EXISTS (SELECT 1 FROM item)").fetchone()[0]
    return _clean_plain(project, rules) if plain else _clean_items(project, rules, progress or (lambda done, total: None))


def write_removals(path: Path, removals: list[Removal]) -> None:
    """Write every removal as CSV: split, id, types (separated by " | "), reason."""
    rows = ((removal.split, removal.id, " | ".join(removal.types), removal.reason) for removal in removals)
    write_atomically(path, csv_bytes(("split", "id", "types", "reason"), rows))


def _clean_items(project: Project, rules: CleanRecipe, progress: Callable[[int, int], None]) -> CleanResult:
    with project.transaction() as db:
        steps, items = project.steps(), _read_items(db)  # steps by another connection, while nobody else can write
        if "types" not in steps and not any(item.types for item in items):
            raise ValueError(
                f"no item of {project.folder} has a type yet; `suprank hierarchy types` looks types up or reads a table."
            )
        classes = db.execute("SELECT qid, description, above_json FROM type_class").fetchall()
        superclasses = {row["qid"]: json.loads(row["above_json"]) for row in classes}
        descriptions = {row["qid"]: row["description"] for row in classes}
        cleaned, labels, keys, reasons = apply_rules(items, superclasses, rules, progress)
        inputs = next((steps[name].result["digest"] for name in ("types", "new") if name in steps), "")
        digest = digest_rows(
            sorted(
                (key, label.text, label.weight, descriptions.get(label.qid, ""))
                for key, label in labels.items()
                if not label.reason
            )
        )
        result = {"items": cleaned.items, "labeled": cleaned.labeled, "labels": cleaned.labels, "reasons": cleaned.reasons}
        result["policies"] = {name: list(kept) for name, kept in cleaned.policies.items()}
        result["outcome"] = digest_rows((item, keys.get(item), reason) for item, reason in reasons.items())
        last = steps.get("clean")
        if last and (last.settings, last.inputs, last.result) == (_settings(rules), inputs, {**result, "digest": digest}):
            return replace(cleaned, changed=False)
        _write(db, labels, keys, reasons, descriptions)
        record_step(db, "clean", _settings(rules), inputs=inputs, result=result, digest=digest)
    return cleaned


def _clean_plain(project: Project, rules: CleanRecipe) -> CleanResult:
    """Clean a plain list of labels by the stop list of texts and the least weight."""
    few = too_few_items_reason(rules)
    with project.transaction() as db:
        steps = project.steps()
        rows = db.execute("SELECT id, key, text, weight, description FROM label ORDER BY id").fetchall()
        if not rows:
            raise ValueError(f"{project.folder} has neither items nor labels; make another from items, labels or a manifest.")
        reasons = {
            row["id"]: text_removal_reason(row["text"], rules) or (few if row["weight"] < rules.least_items else None)
            for row in rows
        }
        active = [row for row in rows if not reasons[row["id"]]]
        removed = Counter(reason for reason in reasons.values() if reason)
        cleaned = CleanResult(0, 0, len(active), dict(removed), {}, {}, [], [])
        cleaned.removals.extend(Removal("", row["text"], (), reason) for row in rows if (reason := reasons[row["id"]]))
        inputs = steps["new"].result["digest"] if "new" in steps else ""
        # If all labels stay, the digest stays that of the input, so that no later step becomes stale.
        active_digest = digest_rows(sorted((row["key"], row["text"], row["weight"], row["description"]) for row in active))
        digest = inputs if len(active) == len(rows) else active_digest
        last = steps.get("clean")
        if last and (last.settings, last.inputs, last.result["digest"]) == (_settings(rules), inputs, digest):
            return replace(cleaned, changed=False)
        db.executemany(
            "UPDATE label SET state = ?, reason = ? WHERE id = ?",
            (("removed" if reason else "active", reason, label) for label, reason in reasons.items()),
        )
        result = {"labels": cleaned.labels, "removed": dict(removed)}
        record_step(db, "clean", _settings(rules), inputs=inputs, result=result, digest=digest)
    return cleaned


def _read_items(db: sqlite3.Connection) -> list[TypedItem]:
    """All items in the order of their ids, with their types in order of rank."""
    types: dict[int, list[CandidateType]] = defaultdict(list)
    same: dict[tuple[str, str | None, int], CandidateType] = {}  # items share a few thousand types
    for item, text, qid, ended in db.execute("SELECT item, text, qid, ended FROM item_type ORDER BY item, position"):
        types[item].append(same.setdefault((text, qid, ended), CandidateType(text, qid, bool(ended))))
    rows = db.execute(
        "SELECT item.id, split, key, source, reason FROM item LEFT JOIN item_untyped ON item = item.id ORDER BY item.id"
    )
    return [
        TypedItem(item, split, key, page, types.get(item, []), None if item in types else untyped)
        for item, split, key, page, untyped in rows
    ]


def _write(
    db: sqlite3.Connection,
    labels: Mapping[str, LabelDraft],
    keys: Mapping[int, str],
    reasons: Mapping[int, str | None],
    descriptions: Mapping[str | None, str],
) -> None:
    ids = {row["key"]: row["id"] for row in db.execute("SELECT id, key FROM label")}
    used = {row[0] for row in db.execute("SELECT label FROM member UNION SELECT label FROM cluster_member")}
    db.execute("DELETE FROM item_label")
    db.execute("DELETE FROM label_spelling")
    gone = [(number,) for key, number in ids.items() if key not in labels]
    db.executemany("DELETE FROM label WHERE id = ?", (row for row in gone if row[0] not in used))
    db.executemany(
        f"UPDATE label SET state = 'removed', weight = 0, reason = '{GONE}' WHERE id = ?",
        (row for row in gone if row[0] in used),
    )
    following = max(ids.values(), default=0) + 1
    for key in labels:
        if key not in ids:
            ids[key], following = following, following + 1
    db.executemany(
        "INSERT INTO label (id, key, text, qid, description, weight, state, reason) VALUES (?, ?, ?, ?, ?, ?, ?, ?) "
        "ON CONFLICT (id) DO UPDATE SET text = excluded.text, qid = excluded.qid, description = excluded.description, "
        "weight = excluded.weight, state = excluded.state, reason = excluded.reason",
        (
            (
                ids[key],
                key,
                label.text,
                label.qid,
                descriptions.get(label.qid, ""),
                label.weight,
                "removed" if label.reason else "active",
                label.reason,
            )
            for key, label in labels.items()
        ),
    )
    db.executemany(
        "INSERT INTO label_spelling VALUES (?, ?, ?)",
        ((ids[key], text, count) for key, label in labels.items() for text, count in label.spellings.items()),
    )
    db.executemany(
        "INSERT INTO item_label VALUES (?, ?, ?)",
        ((item, ids[keys[item]] if item in keys else None, reason) for item, reason in reasons.items()),
    )


def _settings(rules: CleanRecipe) -> dict[str, Any]:
    return rules.model_dump(mode="json")
