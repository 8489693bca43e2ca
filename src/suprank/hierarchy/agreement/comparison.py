"""Compare two branches of a project: how far they agree, with group names ignored and with groups matched."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from suprank.hierarchy.agreement.disagreements import KINDS, Disagreement, disagreements, match_groups
from suprank.hierarchy.agreement.measures import (
    Statistic,
    adjusted_mutual_information,
    adjusted_rand,
    cohen_kappa,
    count_pairs,
    percent_agreement,
)
from suprank.hierarchy.text import label_key
from suprank.hierarchy.tree import hierarchy_from_db

if TYPE_CHECKING:
    from collections.abc import Sequence

    from suprank.hierarchy.project import Project
    from suprank.hierarchy.tree import Hierarchy, Label


@dataclass(frozen=True)
class CategoryAgreement:
    """How far two branches sort `labels` labels into the same categories, counted by label and weighted by items."""

    labels: int
    percent: Statistic
    kappa: Statistic
    kappa_by_items: Statistic


@dataclass(frozen=True)
class PairAgreement:
    """Pairs of labels in the same group of the first branch, compared with the pairs of the second."""

    precision: Statistic
    recall: Statistic
    f1: Statistic


@dataclass(frozen=True)
class MatchedGroups:
    """A group of the first branch and its partner in the second; one of the two names is None for a group without partner."""

    first: str | None
    second: str | None
    common: int
    only_first: int
    only_second: int
    apart: int
    """Number of items of labels that only one of the two groups has."""


@dataclass(frozen=True)
class Agreement:
    """The agreement of two branches.

    Statistics cover the labels that both branches have put into a group: `placed` of `labels`. Two differ: `included` covers
    all labels known to both, whether in a group or excluded, and `parents` those that both have under a group of that level.
    `done` of the placed labels are in groups that both annotators marked done: until all are, the review is not finished.
    """

    first: str
    second: str
    labels: int
    placed: int
    done: int
    excluded: int
    """Labels excluded by both."""

    excluded_by_first: int
    excluded_by_second: int
    """Labels excluded by this branch only."""

    unknown: int
    """Labels that at least one branch does not know: they were added after its annotator last opened it."""

    rand: Statistic
    information: Statistic
    pairs: PairAgreement
    pairs_by_items: PairAgreement
    aligned: CategoryAgreement
    by_name: CategoryAgreement
    included: CategoryAgreement
    parents: dict[str, CategoryAgreement]
    groups: tuple[MatchedGroups, ...]
    disagreements: dict[str, int]

    def to_dict(self) -> dict[str, Any]:
        """The agreement as JSON values; an undefined statistic is null, with the reason beside it."""
        return asdict(self)


class Comparison:
    """Two hierarchies over the same labels: their matched groups, disagreements and agreement."""

    def __init__(self, first: Hierarchy, second: Hierarchy) -> None:
        self.first, self.second = first, second

    @cached_property
    def partners(self) -> dict[int, int]:
        """Group id in the first branch → id of its partner in the second."""
        return match_groups(self.first, self.second)

    @cached_property
    def disagreements(self) -> list[Disagreement]:
        """Where the two differ: labels first, and the most items first."""
        return disagreements(self.first, self.second, self.partners)

    def agreement(self) -> Agreement:
        """All statistics of the comparison."""
        both = [(one, self.second.labels[one.id]) for one in self.first.labels.values() if one.id in self.second.labels]
        known = [pair for pair in both if all(one.group is not None or one.reason is not None for one in pair)]
        placed = [pair for pair in known if all(one.group is not None for one in pair)]
        excluded = Counter((one.reason is not None, other.reason is not None) for one, other in known)
        a, b = ([one.group for one in side if one.group is not None] for side in _unzip(placed))
        kinds = Counter(one.kind for one in self.disagreements)
        return Agreement(
            first=self.first.branch,
            second=self.second.branch,
            labels=len(both),
            placed=len(placed),
            done=sum(self._both_done(*pair) for pair in placed),
            excluded=excluded[True, True],
            excluded_by_first=excluded[True, False],
            excluded_by_second=excluded[False, True],
            unknown=len(both) - len(known),
            rand=adjusted_rand(a, b),
            information=adjusted_mutual_information(a, b),
            pairs=_pair_agreement(a, b, None),
            pairs_by_items=_pair_agreement(a, b, _weights(placed)),
            aligned=_category_agreement(placed, a, self._as_first(b)),
            by_name=_category_agreement(placed, _names(self.first, a), _names(self.second, b)),
            included=_category_agreement(known, *([one.group is not None for one in side] for side in _unzip(known))),
            parents={self.first.levels[level]: self._parents(placed, level) for level in range(2, self.first.depth + 1)},
            groups=self._matched_groups(),
            disagreements={kind: kinds[kind] for kind in KINDS},
        )

    def _both_done(self, one: Label, other: Label) -> bool:
        assert one.group is not None and other.group is not None
        return self.first.groups[one.group].state == self.second.groups[other.group].state == "done"

    def _as_first(self, groups: Sequence[int]) -> list[int]:
        """Replace groups of the second branch by their partners in the first; groups without one become negative numbers."""
        inverse = {two: one for one, two in self.partners.items()}
        return [inverse.get(group, -group) for group in groups]

    def _parents(self, placed: list[tuple[Label, Label]], level: int) -> CategoryAgreement:
        ancestors = [(pair, _ancestor(self.first, pair[0], level), _ancestor(self.second, pair[1], level)) for pair in placed]
        in_both = [(pair, one, other) for pair, one, other in ancestors if one and other]
        return _category_agreement([row[0] for row in in_both], [row[1] for row in in_both], [row[2] for row in in_both])

    def _matched_groups(self) -> tuple[MatchedGroups, ...]:
        """All groups of level 1, those that differ most first: by items, then by labels."""
        pairs: list[tuple[int | None, int | None]] = [
            (group.id, self.partners.get(group.id)) for group in self.first.groups_at(1)
        ]
        taken = {two for _, two in pairs}
        pairs += [(None, group.id) for group in self.second.groups_at(1) if group.id not in taken]
        rows = [self._match(one, two) for one, two in pairs]
        return tuple(sorted(rows, key=lambda row: (-row.apart, -row.only_first - row.only_second)))

    def _match(self, one: int | None, two: int | None) -> MatchedGroups:
        left = {label.id: label.weight for label in ([] if one is None else self.first.members[one])}
        right = {label.id: label.weight for label in ([] if two is None else self.second.members[two])}
        different = left.keys() ^ right.keys()
        return MatchedGroups(
            None if one is None else self.first.groups[one].name,
            None if two is None else self.second.groups[two].name,
            common=len(left.keys() & right.keys()),
            only_first=len(left.keys() - right.keys()),
            only_second=len(right.keys() - left.keys()),
            apart=sum({**left, **right}[label] for label in different),
        )


def compare_branches(project: Project, first: str, second: str) -> Comparison:
    """Compare two branches as they are now, read in one transaction."""
    if first == second:
        raise ValueError(f"{first!r} is compared with itself; name two different branches.")
    with project.snapshot() as db:
        return Comparison(*(hierarchy_from_db(db, name, project.recipe.levels) for name in (first, second)))


def _category_agreement(pairs: list[tuple[Label, Label]], first: Sequence[Any], second: Sequence[Any]) -> CategoryAgreement:
    weights = _weights(pairs)
    kappas = cohen_kappa(first, second), cohen_kappa(first, second, weights)
    return CategoryAgreement(len(pairs), percent_agreement(first, second), *kappas)


def _pair_agreement(first: Sequence[Any], second: Sequence[Any], weights: list[int] | None) -> PairAgreement:
    pairs = count_pairs(first, second, weights)
    return PairAgreement(pairs.precision, pairs.recall, pairs.f1)


def _weights(pairs: list[tuple[Label, Label]]) -> list[int]:
    return [one.weight for one, _ in pairs]


def _unzip(pairs: list[tuple[Label, Label]]) -> tuple[list[Label], list[Label]]:
    return [one for one, _ in pairs], [other for _, other in pairs]


def _names(hierarchy: Hierarchy, groups: Sequence[int]) -> list[str]:
    return [label_key(hierarchy.groups[group].name) for group in groups]


def _ancestor(hierarchy: Hierarchy, label: Label, level: int) -> str:
    """The name key of the label's ancestor at this level, or "" where it has none."""
    path = hierarchy.path(label)
    return label_key(path[level - 1].name) if len(path) >= level else ""
