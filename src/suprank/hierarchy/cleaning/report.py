"""What cleaning did: counts by outcome, what other rules would keep, and the list of all removals."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from suprank.files.atomic import write_atomically
from suprank.hierarchy.reasons import in_words
from suprank.hierarchy.strict import csv_bytes
from suprank.hierarchy.text import amount

_NAMED = 3


@dataclass(frozen=True)
class Removal:
    """An item without a label (or, in a project without items, a label that was removed: `split` is then blank)."""

    split: str
    id: str
    types: tuple[str, ...]
    reason: str


@dataclass(frozen=True)
class Cleaned:
    """What came of cleaning. `changed` is False where the same settings met the same types before."""

    items: int
    labeled: int
    labels: int
    removed_labels: dict[str, int]
    """Reason → labels."""

    reasons: dict[str, int]
    """Reason → items without a label, most frequent first."""

    policies: dict[str, tuple[int, int]]
    """Rule for several types → (items, labels) it would keep."""

    contradictions: list[str]
    """Sources whose items ended with different labels, in sentences."""

    bare: list[str]
    """Labels that are a QID, because they have no name in the recipe's languages."""

    changed: bool = True
    policy: str = ""
    removals: list[Removal] = field(default_factory=list, repr=False)

    def to_dict(self) -> dict[str, Any]:
        """For JSON, without the list of removals."""
        found = asdict(self)
        del found["removals"]
        found["policies"] = {name: {"items": kept[0], "labels": kept[1]} for name, kept in self.policies.items()}
        return found

    def sentences(self) -> list[str]:
        """What was done, a line each."""
        lines = []
        if self.items:
            share = f" ({self.labeled / self.items:.1%})"
            lines.append(f"{self.labeled:,} of {self.items:,} items have a label{share}; {amount(self.labels, 'label')}")
            lines += [f"  {amount(count, 'item')} left out: {in_words(reason)}" for reason, count in self.reasons.items()]
        else:
            lines.append(amount(self.labels, "label"))
        lines += [f"  {amount(count, 'label')} removed: {reason}" for reason, count in self.removed_labels.items()]
        if self.policies:
            lines.append("items of several types, by rule:")
            for name, (items, labels) in self.policies.items():
                used = "  (used)" if name == self.policy else ""
                lines.append(f"  {name}: {amount(items, 'item')} and {amount(labels, 'label')} would be kept{used}")
        if self.bare:
            named = ", ".join(self.bare[:_NAMED]) + (", ..." if len(self.bare) > _NAMED else "")
            lines.append(f"{amount(len(self.bare), 'label')} without a name in the recipe's languages, only a number: {named}")
        lines += self.contradictions[:_NAMED]
        if len(self.contradictions) > _NAMED:
            lines.append(f"... and {len(self.contradictions) - _NAMED:,} more sources with different labels")
        if not self.changed:
            lines.append("the same as before: nothing changed")
        return lines


def write_list(path: Path, removals: list[Removal]) -> None:
    """Every removal as CSV: split, id, types (separated by " | "), reason."""
    rows = ((one.split, one.id, " | ".join(one.types), one.reason) for one in removals)
    write_atomically(path, csv_bytes(("split", "id", "types", "reason"), rows))
