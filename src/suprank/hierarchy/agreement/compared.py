"""Two branches of a project compared: figures with the names of groups ignored, and with them aligned."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from suprank.hierarchy.agreement.alignment import aligned_groups
from suprank.hierarchy.agreement.disagreements import KINDS, Disagreement, disagreements
from suprank.hierarchy.agreement.measures import (
    Figure,
    adjusted_mutual_information,
    adjusted_rand,
    cohen_kappa,
    pairs_together,
    percent_agreement,
)
from suprank.hierarchy.text import key_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from suprank.hierarchy.project import Project
    from suprank.hierarchy.tree import Hierarchy, Label


@dataclass(frozen=True)
class Categories:
    """How far two branches sort `labels` labels into the same categories; every label counts 1, or as many as it has items."""

    labels: int
    percent: Figure
    kappa: Figure
    kappa_by_items: Figure


@dataclass(frozen=True)
class Together:
    """Pairs that stand together in the first branch, against those in the second."""

    precision: Figure
    recall: Figure
    f1: Figure


@dataclass(frozen=True)
class Groups:
    """A group of the first branch and its partner in the second; one of the two is None where it has no partner."""

    first: str | None
    second: str | None
    common: int
    only_first: int
    only_second: int
    apart: int
    """Items of labels that only one of the two holds."""


@dataclass(frozen=True)
class Agreement:
    """Two branches compared.

    Figures are over the labels that both have put into a group, `placed` of `labels`; only `included` is over all that both
    know, whether in a group or excluded, and `parents` over those that both have under a group of that level.
    `done` of the placed ones are in groups that both have marked done: until these are all, the review is not finished.
    """

    first: str
    second: str
    labels: int
    placed: int
    done: int
    excluded: int
    """By both."""

    excluded_by_first: int
    excluded_by_second: int
    """By this one alone."""

    unknown: int
    """To one of the two at least: these labels came after it last looked."""

    rand: Figure
    information: Figure
    pairs: Together
    pairs_by_items: Together
    aligned: Categories
    by_name: Categories
    included: Categories
    parents: dict[str, Categories]
    groups: tuple[Groups, ...]
    disagreements: dict[str, int]

    def as_plain(self) -> dict[str, Any]:
        """For JSON: a figure that is undefined is null, with the reason beside it."""
        return asdict(self)


class Comparison:
    """Two hierarchies of the same labels, the partners among their groups, and all that follows."""

    def __init__(self, first: Hierarchy, second: Hierarchy) -> None:
        self.first, self.second = first, second

    @cached_property
    def partners(self) -> dict[int, int]:
        """Group of the first → that of the second."""
        return aligned_groups(self.first, self.second)

    @cached_property
    def disagreements(self) -> list[Disagreement]:
        """Where the two differ, labels first, the heaviest first."""
        return disagreements(self.first, self.second, self.partners)

    def agreement(self) -> Agreement:
        """The figures."""
        both = [(one, self.second.labels[one.id]) for one in self.first.labels.values() if one.id in self.second.labels]
        known = [pair for pair in both if all(one.group is not None or one.reason is not None for one in pair)]
        placed = [pair for pair in known if all(one.group is not None for one in pair)]
        out = Counter((one.reason is not None, other.reason is not None) for one, other in known)
        a, b = ([one.group for one in side if one.group is not None] for side in _sides(placed))
        kinds = Counter(one.kind for one in self.disagreements)
        return Agreement(
            first=self.first.branch,
            second=self.second.branch,
            labels=len(both),
            placed=len(placed),
            done=sum(self._done(*pair) for pair in placed),
            excluded=out[True, True],
            excluded_by_first=out[True, False],
            excluded_by_second=out[False, True],
            unknown=len(both) - len(known),
            rand=adjusted_rand(a, b),
            information=adjusted_mutual_information(a, b),
            pairs=_together(a, b, None),
            pairs_by_items=_together(a, b, _weights(placed)),
            aligned=_categories(placed, a, self._as_first(b)),
            by_name=_categories(placed, _names(self.first, a), _names(self.second, b)),
            included=_categories(known, *([one.group is not None for one in side] for side in _sides(known))),
            parents={self.first.levels[level]: self._parents(placed, level) for level in range(2, self.first.depth + 1)},
            groups=self._groups(),
            disagreements={kind: kinds[kind] for kind in KINDS},
        )

    def _done(self, one: Label, other: Label) -> bool:
        assert one.group is not None and other.group is not None
        return self.first.groups[one.group].state == self.second.groups[other.group].state == "done"

    def _as_first(self, groups: Sequence[int]) -> list[int]:
        """Groups of the second as their partners in the first; those without one as negative numbers."""
        back = {two: one for one, two in self.partners.items()}
        return [back.get(group, -group) for group in groups]

    def _parents(self, placed: list[tuple[Label, Label]], level: int) -> Categories:
        above = [(pair, _above(self.first, pair[0], level), _above(self.second, pair[1], level)) for pair in placed]
        there = [(pair, one, other) for pair, one, other in above if one and other]
        return _categories([row[0] for row in there], [row[1] for row in there], [row[2] for row in there])

    def _groups(self) -> tuple[Groups, ...]:
        """Those that differ most first: by items, then by labels."""
        pairs: list[tuple[int | None, int | None]] = [
            (group.id, self.partners.get(group.id)) for group in self.first.of_level(1)
        ]
        taken = {two for _, two in pairs}
        pairs += [(None, group.id) for group in self.second.of_level(1) if group.id not in taken]
        rows = [self._row(one, two) for one, two in pairs]
        return tuple(sorted(rows, key=lambda row: (-row.apart, -row.only_first - row.only_second)))

    def _row(self, one: int | None, two: int | None) -> Groups:
        left = {label.id: label.weight for label in ([] if one is None else self.first.members[one])}
        right = {label.id: label.weight for label in ([] if two is None else self.second.members[two])}
        apart = left.keys() ^ right.keys()
        return Groups(
            None if one is None else self.first.groups[one].name,
            None if two is None else self.second.groups[two].name,
            common=len(left.keys() & right.keys()),
            only_first=len(left.keys() - right.keys()),
            only_second=len(right.keys() - left.keys()),
            apart=sum({**left, **right}[label] for label in apart),
        )


def compared(project: Project, first: str, second: str) -> Comparison:
    """Two branches as they are now, read at one moment."""
    from suprank.hierarchy.tree import hierarchy_in

    if first == second:
        raise ValueError(f"{first!r} is compared with itself; name two branches.")
    with project.reading() as db:
        return Comparison(*(hierarchy_in(db, name, project.recipe.levels) for name in (first, second)))


def _categories(pairs: list[tuple[Label, Label]], first: Sequence[Any], second: Sequence[Any]) -> Categories:
    weights = _weights(pairs)
    kappas = cohen_kappa(first, second), cohen_kappa(first, second, weights)
    return Categories(len(pairs), percent_agreement(first, second), *kappas)


def _together(first: Sequence[Any], second: Sequence[Any], weights: list[int] | None) -> Together:
    pairs = pairs_together(first, second, weights)
    return Together(pairs.precision, pairs.recall, pairs.f1)


def _weights(pairs: list[tuple[Label, Label]]) -> list[int]:
    return [one.weight for one, _ in pairs]


def _sides(pairs: list[tuple[Label, Label]]) -> tuple[list[Label], list[Label]]:
    return [one for one, _ in pairs], [other for _, other in pairs]


def _names(hierarchy: Hierarchy, groups: Sequence[int]) -> list[str]:
    return [key_of(hierarchy.groups[group].name) for group in groups]


def _above(hierarchy: Hierarchy, label: Label, level: int) -> str:
    """The key of the group of this level that a label is under; "" where there is none."""
    path = hierarchy.path(label)
    return key_of(path[level - 1].name) if len(path) >= level else ""
