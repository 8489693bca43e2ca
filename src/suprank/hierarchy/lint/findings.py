"""A finding of lint, and the report of a list of findings."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import Any, Final, Literal

from suprank.hierarchy.text import pluralize

ERROR: Final = "error"
WARNING: Final = "warning"
_MAX_SHOWN = 10

TITLES = {
    "blanks": "invisible blanks",
    "case": "one name in two spellings",
    "empty": "groups without labels",
    "no-parent": "groups without a parent",
    "wrong-level": "groups under a parent of another level",
    "two-parents": "one name under two parents",
    "doubtful": "labels on which two annotators differ",
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
    "largest": "groups that hold much of all",
}
"""Code → title, in the order of the report."""


@dataclass(frozen=True)
class Finding:
    """A mistake (`error`) or a likely one (`warning`), with its code, its level, the names concerned and a sentence."""

    code: str
    severity: Literal["error", "warning"]
    level: str
    names: tuple[str, ...]
    message: str

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "names": list(self.names)}


def sorted_findings(findings: Iterable[Finding]) -> list[Finding]:
    """The distinct findings: errors first, then by code, level, names and message."""
    codes = list(TITLES)

    def order(finding: Finding) -> tuple[Any, ...]:
        return finding.severity, codes.index(finding.code), finding.level, finding.names, finding.message

    return sorted(set(findings), key=order)


def severity_counts(findings: Sequence[Finding]) -> tuple[int, int]:
    """The numbers of errors and of warnings."""
    errors = sum(finding.severity == ERROR for finding in findings)
    return errors, len(findings) - errors


def format_findings(findings: Sequence[Finding], *, limit: int = _MAX_SHOWN) -> list[str]:
    """The lines of a report, grouped by code; each code shows at most `limit` findings and the number of the others."""
    errors, warnings = severity_counts(findings)
    lines = [f"{pluralize(errors, 'error')}, {pluralize(warnings, 'warning')}"]
    for (severity, code), some in groupby(findings, key=lambda finding: (finding.severity, finding.code)):
        group = list(some)
        lines.append(f"{severity}: {TITLES[code]} ({code}, {len(group):,})")
        lines += [f"  {finding.message}" for finding in group[:limit]]
        if len(group) > limit:
            lines.append(f"  ... and {len(group) - limit:,} more")
    return lines
