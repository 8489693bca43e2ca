"""The outcome of every item, and the labels that come of them: computed whole before anything is written."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial

from suprank.hierarchy.cleaning.report import Cleaned, Removal
from suprank.hierarchy.cleaning.rules import Chooser, Type, allowed, choosers, outcome, removal
from suprank.hierarchy.recipe import CleanRecipe
from suprank.hierarchy.sources import heaviest


@dataclass(frozen=True)
class Found:
    """An item as it was read: its types, or why there are none."""

    id: int
    split: str
    key: str
    page: str
    types: list[Type]
    untyped: str | None


@dataclass
class Kept:
    """A label in the making."""

    text: str
    qid: str | None
    spellings: Counter[str]
    reason: str | None = None

    @property
    def weight(self) -> int:
        return self.spellings.total()


def cleaned_of(
    items: Sequence[Found],
    above: Mapping[str, Sequence[str]],
    rules: CleanRecipe,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> tuple[Cleaned, dict[str, Kept], dict[int, str], dict[int, str | None]]:
    """What was done; labels by their keys; item → the key of its label; item → the reason why it has none, or None."""
    removed = cache(partial(removal, rules=rules))  # a few thousand types, of hundreds of thousands of items
    left = [one.untyped or allowed(one.types, removed) for one in items]
    by_rule = choosers((types for types in left if not isinstance(types, str)), above)
    outcomes: dict[int, str | Type] = {}
    labels: dict[str, Kept] = {}
    for number, (item, types) in enumerate(zip(items, left, strict=True), start=1):
        result = outcomes[item.id] = outcome(types, by_rule[rules.several])
        if isinstance(result, Type):
            labels.setdefault(result.key, Kept(result.text, result.qid, Counter())).spellings[result.text] += 1
        if not number % 4096 or number == len(items):
            progress(number, len(items))
    for label in labels.values():
        label.text = heaviest(label.spellings)
        label.reason = too_few(rules) if label.weight < rules.least_items else None
    reasons = {item: result if isinstance(result, str) else labels[result.key].reason for item, result in outcomes.items()}
    keys = {item: result.key for item, result in outcomes.items() if isinstance(result, Type) and not reasons[item]}
    cleaned = Cleaned(
        items=len(items),
        labeled=len(keys),
        labels=sum(label.reason is None for label in labels.values()),
        removed_labels=dict(Counter(label.reason for label in labels.values() if label.reason)),
        reasons=dict(Counter(reason for reason in reasons.values() if reason).most_common()),
        policies={name: _kept(left, chooser, rules.least_items) for name, chooser in by_rule.items()},
        policy=rules.several,
        contradictions=_contradictions(items, keys, labels),
        bare=sorted(label.text for label in labels.values() if not label.reason and re.fullmatch(r"Q[1-9]\d*", label.text)),
        removals=[
            Removal(item.split, item.key, tuple(one.text for one in item.types), reason)
            for item in items
            if (reason := reasons[item.id])
        ],
    )
    return cleaned, labels, keys, reasons


def _kept(left: Sequence[list[Type] | str], chooser: Chooser, least: int) -> tuple[int, int]:
    """How many items and labels a rule keeps."""
    counts = Counter(one.key for types in left if isinstance(one := outcome(types, chooser), Type))
    enough = [count for count in counts.values() if count >= least]
    return sum(enough), len(enough)


def too_few(rules: CleanRecipe) -> str:
    """The reason of labels below the least number of items."""
    return f"label of fewer than {rules.least_items} items"


def _contradictions(items: Sequence[Found], keys: Mapping[int, str], labels: Mapping[str, Kept]) -> list[str]:
    """Items of one source that ended with different labels, across splits or in one."""
    pages: dict[str, list[Found]] = defaultdict(list)
    for item in items:
        if item.page and item.id in keys:
            pages[item.page].append(item)
    found = []
    for page, some in pages.items():
        if len({keys[item.id] for item in some}) > 1:
            said = " and ".join(f"{item.split} {item.key} ({labels[keys[item.id]].text})" for item in some)
            found.append(f"{page} is the source of items with different labels: {said}")
    return found
