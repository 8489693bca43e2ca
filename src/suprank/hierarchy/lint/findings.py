"""A finding of lint, as data, and a list of them for people."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import Any, Final, Literal

ERROR: Final = "error"
WARNING: Final = "warning"
_SHOWN = 10

TITLES = {
    "blanks": "blanks that nobody sees",
    "case": "one name in two spellings",
    "empty": "groups without labels",
    "no-parent": "groups without a parent",
    "wrong-level": "groups under a parent of another level",
    "two-parents": "one name under two parents",
    "two-places": "labels in two places",
    "unsettled": "labels that are not settled",
    "unplaced": "labels without a place",
    "undone": "groups that are not marked done",
    "unnamed": "names that are only suggestions",
    "plural-twin": "singular and plural of one name",
    "lone-plural": "plurals among singulars",
    "slash": "two names in one",
    "alike": "siblings with nearly the same name",
    "overlap": "siblings that overlap",
    "single": "groups of one label",
    "one-child": "parents of one child",
    "imbalance": "extreme imbalance",
    "largest": "one group holds much of all",
}
"""Codes in the order in which they are told, and what each is about."""


@dataclass(frozen=True)
class Finding:
    """What is wrong (`error`), or probably is (`warning`): a code to go by, the level, the names concerned, a sentence."""

    code: str
    severity: Literal["error", "warning"]
    level: str
    names: tuple[str, ...]
    message: str

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "names": list(self.names)}


def in_order(findings: Iterable[Finding]) -> list[Finding]:
    """Errors first, then by code, level and names: the same findings are always in the same order, each once."""
    codes = list(TITLES)
    return sorted(set(findings), key=lambda one: (one.severity, codes.index(one.code), one.level, one.names, one.message))


def counted(findings: Sequence[Finding]) -> tuple[int, int]:
    """How many errors and warnings there are."""
    errors = sum(one.severity == ERROR for one in findings)
    return errors, len(findings) - errors


def report(findings: Sequence[Finding], *, most: int = _SHOWN) -> list[str]:
    """Lines for people, grouped by what they are about; of each code at most `most` are told, and the rest counted."""
    errors, warnings = counted(findings)
    lines = [f"{errors:,} {'error' if errors == 1 else 'errors'}, {warnings:,} {'warning' if warnings == 1 else 'warnings'}"]
    for (severity, code), some in groupby(findings, key=lambda one: (one.severity, one.code)):
        group = list(some)
        lines.append(f"{severity}: {TITLES[code]} ({code}, {len(group):,})")
        lines += [f"  {one.message}" for one in group[:most]]
        if len(group) > most:
            lines.append(f"  ... and {len(group) - most:,} more")
    return lines
