"""What all acts go by: who refuses, what names are allowed, and what becomes of a group that is emptied."""

from __future__ import annotations

import unicodedata
from collections import Counter
from typing import TYPE_CHECKING, Protocol

from suprank.hierarchy.review.changes import Changes, GroupRow, Place, State
from suprank.hierarchy.text import key_of

if TYPE_CHECKING:
    from collections.abc import Iterable

LONGEST_NAME, LONGEST_TEXT = 200, 2000


class RefusedError(ValueError):
    """The act breaks a rule; nothing was done. `merge_with` is the group that has the wanted name already."""

    def __init__(self, said: str, merge_with: int | None = None) -> None:
        super().__init__(said)
        self.merge_with = merge_with


class ConflictError(ValueError):
    """The branch is no longer what the annotator saw; nothing was done. `groups` are those that differ."""

    def __init__(self, said: str, groups: tuple[int, ...] = ()) -> None:
        super().__init__(said)
        self.groups = groups


class Act(Protocol):
    """One click: what it changes, and the sentence that the log keeps of it."""

    def changes(self, state: State, depth: int) -> tuple[Changes, str]:
        """What changes on a branch with `depth` levels of groups, and what to say of it."""
        ...


def there(state: State, group: int) -> GroupRow:
    """The group of this id."""
    row = state.group(group)
    if row is None:
        raise ConflictError("A group is no longer there: it was merged, emptied or removed meanwhile.", (group,))
    return row


def placed(state: State, labels: Iterable[int]) -> dict[int, Place]:
    """Where these labels are: at least one, and all on the branch."""
    places = state.places(dict.fromkeys(labels))
    if not places:
        raise RefusedError("Choose at least one label.")
    if None in places.values():
        raise RefusedError("A label is not on this branch.")
    return places


def check_inside(state: State, places: dict[int, Place], group: int | None) -> None:
    """Refuse where labels were ticked in a group and have left it since; None is no group in particular."""
    if group is None:
        return
    row = there(state, group)
    if strange := [label for label, place in places.items() if place != group]:
        verb = "is" if len(strange) == 1 else "are"
        raise ConflictError(f"{counted(strange)} {verb} no longer in {row.name!r}; nothing was saved.", (group,))


def check_name(name: str) -> None:
    """Refuse what cannot be a name. Joiners and blanks of all kinds can be in one: labels of Wikidata have them."""
    if not is_line(name):
        raise RefusedError(f"A name has 1 to {LONGEST_NAME} characters, on one line.")


def is_line(text: str) -> bool:
    """Whether a text can be a name or a reason: not too long, and not blank, on one line without control characters."""
    control = {"Cc", "Cs", "Zl", "Zp"}
    return bool(text.strip()) and len(text) <= LONGEST_NAME and not any(unicodedata.category(one) in control for one in text)


def free_name(state: State, name: str, level: int, but: int | None = None) -> str:
    """The name as it was typed, blanks at its ends too, which lint finds; refused where a group of the level has it."""
    check_name(name)
    for one, row in state.groups().items():
        if one != but and row.level == level and key_of(row.name) == key_of(name):
            raise RefusedError(f"There is a group called {row.name!r} already; merge with it, or choose another name.", one)
    return name


def of_group(group: int, before: GroupRow, after: GroupRow | None) -> Changes:
    """One group changes; nothing does where it stays the same."""
    return Changes({} if before == after else {group: (before, after)})


def emptied(state: State, ways: dict[int, tuple[Place, Place]]) -> Changes:
    """The labels' ways, without those that lead nowhere, and the removal of groups that hold nothing then."""
    ways = {label: way for label, way in ways.items() if way[0] != way[1]}
    changes = Changes(labels=ways)
    leaving = Counter(before for before, _ in ways.values() if isinstance(before, int))
    for source, count in leaving.items():
        if count == len(state.labels_of(source)):
            changes.groups[source] = (there(state, source), None)
    return changes


def gone(changes: Changes) -> str:
    """What to say of the groups that are removed."""
    names = [before.name for before, after in changes.groups.values() if before is not None and after is None]
    return f"; {quoted(names)} is empty and removed" if len(names) == 1 else f"; removed {quoted(names)}" if names else ""


def counted(labels: Iterable[int]) -> str:
    """How many labels, in words."""
    count = len(list(labels))
    return f"{count:,} label{'' if count == 1 else 's'}"


def quoted(names: Iterable[str]) -> str:
    """The first names, and how many more there are."""
    found = [repr(name) for name in names]
    return ", ".join(found[:3]) + (f" and {len(found) - 3:,} more" if len(found) > 3 else "")
