"""Which of an item's types becomes its label, or why none does: the rules of a recipe, and a summary of their effect."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache, cached_property, partial
from typing import Any

from suprank.hierarchy.recipe import CleanRecipe
from suprank.hierarchy.sources import most_common_spelling
from suprank.hierarchy.text import label_key, pluralize, reason_text

NOT_LOOKED_UP = "no type was looked up yet"
SEVERAL = "several types"
ENDED = "the type has ended"

_MAX_EXAMPLES = 3


@dataclass(frozen=True)
class CandidateType:
    """A type that a source gives an item."""

    text: str
    qid: str | None = None
    ended: bool = False

    @cached_property  # read ten times per item, for hundreds of thousands of items and a few thousand types
    def key(self) -> str:
        """The QID, or else the normalized text. Types with the same key are one label."""
        return self.qid or label_key(self.text)


LabelOrReason = CandidateType | str
"""The type that becomes an item's label, or the reason why it has none."""

Chooser = Callable[[Sequence[CandidateType]], Sequence[CandidateType]]
"""Filters the types of an item that has two or more. If one remains, it is the label."""


@dataclass(frozen=True)
class TypedItem:
    """An item with its types, or the reason `untyped` why it has none."""

    id: int
    split: str
    key: str
    page: str
    types: list[CandidateType]
    untyped: str | None


@dataclass
class LabelDraft:
    """A label while its items are being counted."""

    text: str
    qid: str | None
    spellings: Counter[str]
    reason: str | None = None

    @property
    def weight(self) -> int:
        return self.spellings.total()


@dataclass(frozen=True)
class Removal:
    """An item without a label. In a project without items: a removed label, with a blank `split`."""

    split: str
    id: str
    types: tuple[str, ...]
    reason: str


@dataclass(frozen=True)
class CleanResult:
    """The effect of cleaning. `changed` is false if the same rules were applied to the same types before."""

    items: int
    labeled: int
    labels: int
    removed_labels: dict[str, int]
    """Reason → number of removed labels."""

    reasons: dict[str, int]
    """Reason → number of items without a label, most frequent first."""

    policies: dict[str, tuple[int, int]]
    """Rule for several types → the numbers of items and labels that it would keep."""

    contradictions: list[str]
    """Sentences about sources whose items ended up with different labels."""

    bare: list[str]
    """Labels that are a QID, because they have no name in the recipe's languages."""

    changed: bool = True
    policy: str = ""
    removals: list[Removal] = field(default_factory=list, repr=False)

    def to_dict(self) -> dict[str, Any]:
        """The result for JSON, without the list of removals."""
        values = asdict(self)
        del values["removals"]
        values["policies"] = {name: {"items": items, "labels": labels} for name, (items, labels) in self.policies.items()}
        return values

    def sentences(self) -> list[str]:
        """The result in words, one line each."""
        lines = []
        if self.items:
            share = f" ({self.labeled / self.items:.1%})"
            lines.append(f"{self.labeled:,} of {self.items:,} items have a label{share}; {pluralize(self.labels, 'label')}")
            lines += [f"  {pluralize(count, 'item')} left out: {reason_text(reason)}" for reason, count in self.reasons.items()]
        else:
            lines.append(pluralize(self.labels, "label"))
        lines += [f"  {pluralize(count, 'label')} removed: {reason}" for reason, count in self.removed_labels.items()]
        if self.policies:
            lines.append("items with several types, by rule:")
            for name, (items, labels) in self.policies.items():
                used = "  (used)" if name == self.policy else ""
                lines.append(f"  {name}: {pluralize(items, 'item')} and {pluralize(labels, 'label')} would be kept{used}")
        if self.bare:
            examples = ", ".join(self.bare[:_MAX_EXAMPLES]) + (", ..." if len(self.bare) > _MAX_EXAMPLES else "")
            count = pluralize(len(self.bare), "label")
            lines.append(f"{count} without a name in the recipe's languages, only a number: {examples}")
        lines += self.contradictions[:_MAX_EXAMPLES]
        if len(self.contradictions) > _MAX_EXAMPLES:
            lines.append(f"... and {len(self.contradictions) - _MAX_EXAMPLES:,} more sources with different labels")
        if not self.changed:
            lines.append("the same as before: nothing changed")
        return lines


def allowed_types(
    types: Sequence[CandidateType], find_reason: Callable[[CandidateType], str | None]
) -> list[CandidateType] | str:
    """The types that are not removed, each once, in order; if none remain, the reason why the first was removed."""
    allowed: dict[str, CandidateType] = {}
    first_reason = None
    for candidate in types:
        reason = find_reason(candidate)
        if reason is None:
            allowed.setdefault(candidate.key, candidate)
        else:
            first_reason = first_reason or reason
    return list(allowed.values()) or first_reason or NOT_LOOKED_UP


def removal_reason(candidate: CandidateType, rules: CleanRecipe) -> str | None:
    """Why a type cannot be a label (its QID, its text, or its end date), or None."""
    stopped = next((stop.reason for stop in rules.stop if stop.qid == candidate.qid), None)
    stopped = stopped or text_removal_reason(candidate.text, rules)
    return stopped or (ENDED if candidate.ended and rules.ended == "drop" else None)


def text_removal_reason(text: str, rules: CleanRecipe) -> str | None:
    """Why a text cannot be a label, whatever its case and blanks, or None."""
    key = label_key(text)
    for stop in rules.stop_text:
        if stop.begins is not None:
            # "Wikimedia " ends in a blank so that "Wikimedian" stays; the key has lost blanks at the ends.
            begins = re.escape(label_key(stop.begins)) + (r"(\s|$)" if stop.begins != stop.begins.rstrip() else "")
            if re.match(begins, key):
                return stop.reason
        elif stop.equals is not None and key == label_key(stop.equals):
            return stop.reason
    return None


def too_few_items_reason(rules: CleanRecipe) -> str:
    """The reason for removing a label with fewer items than the rules require."""
    return f"label of fewer than {rules.least_items} items"


def choosers(items: Iterable[Sequence[CandidateType]], superclasses: Mapping[str, Iterable[str]]) -> dict[str, Chooser]:
    """The rules for items with several types, by their names in recipes.

    `items` are the allowed types of all items, whose frequencies `most-frequent` uses. `superclasses` maps a QID to the classes
    that it is a subclass of (P279).
    """
    counts = Counter(candidate.key for types in items for candidate in types)
    known: dict[str, frozenset[str]] = {}

    def most_specific(types: Sequence[CandidateType]) -> Sequence[CandidateType]:
        above = {candidate.key: ancestors(candidate.key, superclasses, known) for candidate in types}
        return [
            candidate
            for candidate in types
            # In a cycle each is above the other, and both stay.
            if not any(candidate.key in above[other.key] and other.key not in above[candidate.key] for other in types)
        ]

    return {
        "single-only": lambda types: types,
        "first": lambda types: types[:1],
        "most-specific": most_specific,
        "most-frequent": lambda types: [max(types, key=lambda candidate: counts[candidate.key])],
    }


def ancestors(
    qid: str, superclasses: Mapping[str, Iterable[str]], known: dict[str, frozenset[str]] | None = None
) -> frozenset[str]:
    """All classes above a class, at any distance. In a cycle a class is above itself. `known` is a cache.

    Example:
        >>> sorted(ancestors("chapel", {"chapel": ["church"], "church": ["building"], "building": ["church"]}))
        ['building', 'church']
    """
    if known is not None and qid in known:
        return known[qid]
    above: set[str] = set()
    waiting = list(superclasses.get(qid, ()))
    while waiting:
        parent = waiting.pop()
        if parent not in above:
            above.add(parent)
            waiting.extend(superclasses.get(parent, ()))
    if known is not None:
        known[qid] = frozenset(above)
    return frozenset(above)


def label_or_reason(types: Sequence[CandidateType] | str, chooser: Chooser) -> LabelOrReason:
    """The label of an item with these allowed types, or the reason why it has none."""
    if isinstance(types, str):
        return types
    remaining = types if len(types) == 1 else chooser(types)
    return remaining[0] if len(remaining) == 1 else SEVERAL


def apply_rules(
    items: Sequence[TypedItem],
    superclasses: Mapping[str, Sequence[str]],
    rules: CleanRecipe,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> tuple[CleanResult, dict[str, LabelDraft], dict[int, str], dict[int, str | None]]:
    """The result; labels by their keys; item → the key of its label; item → the reason why it has none, or None."""
    reason_by_type = cache(partial(removal_reason, rules=rules))  # there are far fewer types than items
    allowed = [item.untyped or allowed_types(item.types, reason_by_type) for item in items]
    policies = choosers((types for types in allowed if not isinstance(types, str)), superclasses)
    outcomes: dict[int, LabelOrReason] = {}
    labels: dict[str, LabelDraft] = {}
    for number, (item, types) in enumerate(zip(items, allowed, strict=True), start=1):
        outcome = outcomes[item.id] = label_or_reason(types, policies[rules.several])
        if isinstance(outcome, CandidateType):
            labels.setdefault(outcome.key, LabelDraft(outcome.text, outcome.qid, Counter())).spellings[outcome.text] += 1
        if not number % 4096 or number == len(items):
            progress(number, len(items))
    for label in labels.values():
        label.text = most_common_spelling(label.spellings)
        label.reason = too_few_items_reason(rules) if label.weight < rules.least_items else None
    reasons = {item: one if isinstance(one, str) else labels[one.key].reason for item, one in outcomes.items()}
    keys = {item: one.key for item, one in outcomes.items() if isinstance(one, CandidateType) and not reasons[item]}
    result = CleanResult(
        items=len(items),
        labeled=len(keys),
        labels=sum(label.reason is None for label in labels.values()),
        removed_labels=dict(Counter(label.reason for label in labels.values() if label.reason)),
        reasons=dict(Counter(reason for reason in reasons.values() if reason).most_common()),
        policies={name: _count_kept(allowed, chooser, rules.least_items) for name, chooser in policies.items()},
        policy=rules.several,
        contradictions=_contradictions(items, keys, labels),
        bare=sorted(label.text for label in labels.values() if not label.reason and re.fullmatch(r"Q[1-9]\d*", label.text)),
        removals=[
            Removal(item.split, item.key, tuple(candidate.text for candidate in item.types), reason)
            for item in items
            if (reason := reasons[item.id])
        ],
    )
    return result, labels, keys, reasons


def _count_kept(allowed: Sequence[list[CandidateType] | str], chooser: Chooser, least: int) -> tuple[int, int]:
    """The numbers of items and labels that a rule keeps."""
    counts = Counter(label.key for types in allowed if isinstance(label := label_or_reason(types, chooser), CandidateType))
    enough = [count for count in counts.values() if count >= least]
    return sum(enough), len(enough)


def _contradictions(items: Sequence[TypedItem], keys: Mapping[int, str], labels: Mapping[str, LabelDraft]) -> list[str]:
    """Items that share a source but ended up with different labels, across splits or within one."""
    by_page: dict[str, list[TypedItem]] = defaultdict(list)
    for item in items:
        if item.page and item.id in keys:
            by_page[item.page].append(item)
    sentences = []
    for page, sharing in by_page.items():
        if len({keys[item.id] for item in sharing}) > 1:
            listed = " and ".join(f"{item.split} {item.key} ({labels[keys[item.id]].text})" for item in sharing)
            sentences.append(f"{page} is the source of items with different labels: {listed}")
    return sentences
