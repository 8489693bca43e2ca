"""Cleaning a project: types are read, rules applied, labels and the outcome of every item written in one transaction."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from suprank.hierarchy.cleaning.outcomes import Found, Kept, cleaned_of, too_few
from suprank.hierarchy.cleaning.report import Cleaned, Removal
from suprank.hierarchy.cleaning.rules import Type, text_removal
from suprank.hierarchy.project import Project, digest_of, record_step

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Mapping

    from suprank.hierarchy.recipe import CleanRecipe

GONE = "no longer in the source"


def clean(project: Project, rules: CleanRecipe, *, progress: Callable[[int, int], None] | None = None) -> Cleaned:
    """Apply the rules to all items (or, in a project without items, to its labels), and record the step.

    Labels that were there keep their ids. A label that no item has any more is forgotten, or, where a clustering or a branch
    refers to it, kept as removed. Run again with the same rules on the same types, nothing is written.
    """
    with project.reading() as db:
        plain = db.execute("SELECT NOT EXISTS (SELECT 1 FROM item)").fetchone()[0]
    return _clean_labels(project, rules) if plain else _clean_items(project, rules, progress or (lambda done, total: None))


def _clean_items(project: Project, rules: CleanRecipe, progress: Callable[[int, int], None]) -> Cleaned:
    with project.writing() as db:
        steps, items = project.steps(), _items(db)  # steps by another connection, while nobody else can write
        if "scrape" not in steps and not any(one.types for one in items):
            raise ValueError(f"no item of {project.folder} has a type yet; look them up with `suprank hierarchy scrape`.")
        rows = db.execute("SELECT qid, value FROM statement WHERE property = 'P279' AND best AND value IS NOT NULL").fetchall()
        above: dict[str, list[str]] = defaultdict(list)
        for qid, value in rows:
            above[qid].append(value)
        cleaned, labels, keys, reasons = cleaned_of(items, above, rules, progress)
        before = next((steps[name].result["digest"] for name in ("scrape", "new") if name in steps), "")
        described = dict(
            db.execute("SELECT qid, description FROM entity WHERE kind = 'type' AND description IS NOT NULL").fetchall()
        )
        digest = digest_of(
            sorted((key, one.text, one.weight, described.get(one.qid, "")) for key, one in labels.items() if not one.reason)
        )
        result = {"items": cleaned.items, "labeled": cleaned.labeled, "labels": cleaned.labels, "reasons": cleaned.reasons}
        result["policies"] = {name: list(kept) for name, kept in cleaned.policies.items()}
        result["outcome"] = digest_of((item, keys.get(item), reason) for item, reason in reasons.items())
        last = steps.get("clean")
        if last and (last.settings, last.inputs, last.result) == (_settings(rules), before, {**result, "digest": digest}):
            return replace(cleaned, changed=False)
        _write(db, labels, keys, reasons, described)
        record_step(db, "clean", _settings(rules), inputs=before, result=result, digest=digest)
    return cleaned


def _clean_labels(project: Project, rules: CleanRecipe) -> Cleaned:
    """A plain list of labels: what the stop list of texts and the least weight leave of it."""
    few = too_few(rules)
    with project.writing() as db:
        steps = project.steps()
        rows = db.execute("SELECT id, key, text, weight, description FROM label ORDER BY id").fetchall()
        if not rows:
            raise ValueError(
                f"{project.folder} has neither items nor labels; make another with --items, --labels or --manifest."
            )
        states = {
            row["id"]: text_removal(row["text"], rules) or (few if row["weight"] < rules.least_items else None) for row in rows
        }
        active = [row for row in rows if not states[row["id"]]]
        removed = Counter(reason for reason in states.values() if reason)
        cleaned = Cleaned(0, 0, len(active), dict(removed), {}, {}, [], [])
        cleaned.removals.extend(Removal("", row["text"], (), reason) for row in rows if (reason := states[row["id"]]))
        before = steps["new"].result["digest"] if "new" in steps else ""
        # Where all labels stay, what came before is what comes after, and no later step is stale.
        kept = digest_of(sorted((row["key"], row["text"], row["weight"], row["description"]) for row in active))
        digest = before if len(active) == len(rows) else kept
        last = steps.get("clean")
        if last and (last.settings, last.inputs, last.result["digest"]) == (_settings(rules), before, digest):
            return replace(cleaned, changed=False)
        db.executemany(
            "UPDATE label SET state = ?, reason = ? WHERE id = ?",
            (("removed" if reason else "active", reason, label) for label, reason in states.items()),
        )
        result = {"labels": cleaned.labels, "removed": dict(removed)}
        record_step(db, "clean", _settings(rules), inputs=before, result=result, digest=digest)
    return cleaned


def _items(db: sqlite3.Connection) -> list[Found]:
    """All items in the order of their ids, with their types in order of rank."""
    types: dict[int, list[Type]] = defaultdict(list)
    same: dict[tuple[str, str | None, int], Type] = {}  # a few thousand types, not one an item
    for item, text, qid, ended in db.execute("SELECT item, text, qid, ended FROM item_type ORDER BY item, position"):
        types[item].append(same.setdefault((text, qid, ended), Type(text, qid, bool(ended))))
    rows = db.execute(
        "SELECT item.id, split, key, coalesce(title, source), item_untyped.reason FROM item "
        "LEFT JOIN item_page ON item_page.item = item.id LEFT JOIN item_untyped ON item_untyped.item = item.id ORDER BY item.id"
    )
    return [Found(row[0], row[1], row[2], row[3], types.get(row[0], []), None if row[0] in types else row[4]) for row in rows]


def _write(
    db: sqlite3.Connection,
    labels: Mapping[str, Kept],
    keys: Mapping[int, str],
    reasons: Mapping[int, str | None],
    described: Mapping[str | None, str],
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
                one.text,
                one.qid,
                described.get(one.qid, ""),
                one.weight,
                "removed" if one.reason else "active",
                one.reason,
            )
            for key, one in labels.items()
        ),
    )
    db.executemany(
        "INSERT INTO label_spelling VALUES (?, ?, ?)",
        ((ids[key], text, count) for key, one in labels.items() for text, count in one.spellings.items()),
    )
    db.executemany(
        "INSERT INTO item_label VALUES (?, ?, ?)",
        ((item, ids[keys[item]] if item in keys else None, reason) for item, reason in reasons.items()),
    )


def _settings(rules: CleanRecipe) -> dict[str, Any]:
    return rules.model_dump(mode="json")
