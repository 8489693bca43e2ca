"""Shapes that are no good hierarchy: groups without a place, without labels, with one child; extreme sizes; open work."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterator

from suprank.hierarchy.lint.findings import ERROR, WARNING, Finding
from suprank.hierarchy.lint.words import head, singular, singular_name
from suprank.hierarchy.recipe import LintRecipe
from suprank.hierarchy.tree import FINAL, UNSETTLED, Hierarchy

_EXAMPLES = 3
_USUAL = 3  # labels of the median group, from which on a group of one is worth a look


def place_findings(tree: Hierarchy) -> Iterator[Finding]:
    """Groups that are empty, that stand under nothing, or under two parents; parents of one child; groups of one label."""
    parents: dict[tuple[int, str], set[str]] = defaultdict(set)
    for group in tree.groups.values():
        level = tree.levels[group.level]
        if not tree.sizes[group.id]:
            yield Finding("empty", ERROR, level, (group.name,), f"{level} {group.name!r} has no labels; delete it, or fill it")
        if group.parent is None:
            if group.level < tree.depth:
                above = tree.levels[group.level + 1]
                yield Finding("no-parent", ERROR, level, (group.name,), f"{level} {group.name!r} stands under no {above}")
        else:
            above_it = tree.groups[group.parent]
            parents[group.level, group.name].add(above_it.name)
            if above_it.level != group.level + 1:
                said = f"{level} {group.name!r} stands under {above_it.name!r}, a {tree.levels[above_it.level]}"
                yield Finding("wrong-level", ERROR, level, (group.name, above_it.name), said)
        if group.level > 1 and len(tree.children[group.id]) == 1:
            child = tree.children[group.id][0].name
            said = f"{level} {group.name!r} has one child, {child!r}; it says nothing that the child does not say"
            yield Finding("one-child", WARNING, level, (group.name, child), said)
    for (number, name), several in parents.items():
        if len(several) > 1:
            both = " and ".join(repr(one) for one in sorted(several))
            said = f"{tree.levels[number]} {name!r} stands under {both}; rename one, or merge them"
            yield Finding("two-parents", ERROR, tree.levels[number], (name, *sorted(several)), said)
    yield from _singles(tree)


def _singles(tree: Hierarchy) -> Iterator[Finding]:
    groups = [group for group in tree.of_level(1) if tree.sizes[group.id]]
    if groups and statistics.median(tree.sizes[group.id] for group in groups) >= _USUAL:
        for group in groups:
            if tree.sizes[group.id] == 1:
                label = tree.members[group.id][0].text
                said = f"{tree.levels[1]} {group.name!r} has one label, {label!r}"
                yield Finding("single", WARNING, tree.levels[1], (group.name,), said)


def size_findings(level: str, sizes: dict[str, int], unit: str, rules: LintRecipe) -> Iterator[Finding]:
    """Of the weights of a level by name: largest to smallest, and whether one holds much of all."""
    filled = sorted(((size, name) for name, size in sizes.items() if size), key=lambda pair: (-pair[0], pair[1]))
    if len(filled) < 2:
        return
    (most, largest), (least, smallest) = filled[0], filled[-1]
    if most / least > rules.imbalance:
        said = f"{level}: {largest!r} has {most:,} {unit} and {smallest!r} {least:,}, {most / least:.0f} : 1"
        yield Finding("imbalance", WARNING, level, (largest, smallest), said)
    # With few groups a large share is only natural: an even one must be half of the limit, or less.
    if rules.largest * len(filled) >= 2:
        total = sum(size for size, _ in filled)
        for size, name in filled:
            if size / total > rules.largest:
                said = f"{level} {name!r} holds {size / total:.0%} of all {unit}"
                yield Finding("largest", WARNING, level, (name,), said)


def stray_findings(tree: Hierarchy) -> Iterator[Finding]:
    """Labels of a group whose head word is the name of a sibling, and texts that are in two siblings."""
    level = tree.levels[1]
    for parent in {group.parent for group in tree.of_level(1)}:
        siblings = [group for group in tree.of_level(1) if group.parent == parent]
        called = {singular_name(group.name): group for group in siblings}
        texts: dict[str, set[str]] = defaultdict(set)
        for group in siblings:
            strays: dict[str, list[str]] = defaultdict(list)
            for label in tree.members[group.id]:
                texts[label.text].add(group.name)
                other = called.get((singular(head(label.text)),))
                if other is not None and other.id != group.id:
                    strays[other.name].append(label.text)
            for name, labels in strays.items():
                some = ", ".join(repr(text) for text in sorted(labels)[:_EXAMPLES]) + (
                    ", ..." if len(labels) > _EXAMPLES else ""
                )
                said = f"{level} {group.name!r} holds {len(labels):,} labels that say {name!r}, its sibling: {some}"
                yield Finding("overlap", WARNING, level, (group.name, name), said)
        for text, groups in texts.items():
            if len(groups) > 1:
                both = tuple(sorted(groups))
                said = f"{level} {' and '.join(map(repr, both))} both hold a label {text!r}"
                yield Finding("overlap", WARNING, level, both, said)


def work_findings(tree: Hierarchy) -> Iterator[Finding]:
    """Work that is left: groups not done, labels not settled or without a place."""
    for number in range(1, tree.depth + 1):
        level = tree.levels[number]
        undone = sorted(group.name for group in tree.of_level(number) if group.state != "done")
        if undone:
            said = f"{len(undone):,} of {len(tree.of_level(number)):,} {level} are not marked done: {_some(undone)}"
            yield Finding("undone", WARNING, level, tuple(undone), said)
        unnamed = sorted(group.name for group in tree.of_level(number) if not group.named)
        if unnamed:
            said = f"{len(unnamed):,} {level} have a suggested name that nobody has taken: {_some(unnamed)}"
            yield Finding("unnamed", WARNING, level, tuple(unnamed), said)
    counts = Counter[str]()
    for label in tree.labels.values():
        if label.group is None and label.reason is None:
            counts["unplaced"] += 1
        elif label.reason == UNSETTLED and tree.branch == FINAL:
            counts["unsettled"] += 1
    if counts["unsettled"]:
        texts = sorted(label.text for label in tree.labels.values() if label.reason == UNSETTLED)
        said = f"{len(texts):,} labels are not settled: {_some(texts)}; see `suprank hierarchy agree --adjudicate`"
        yield Finding("unsettled", ERROR, tree.levels[0], tuple(texts), said)
    if counts["unplaced"]:
        texts = sorted(label.text for label in tree.labels.values() if label.group is None and label.reason is None)
        said = f"{len(texts):,} labels came after the review began and have no place: {_some(texts)}"
        yield Finding("unplaced", WARNING, tree.levels[0], tuple(texts), said)


def _some(names: list[str]) -> str:
    return ", ".join(map(repr, names[:_EXAMPLES])) + (", ..." if len(names) > _EXAMPLES else "")
