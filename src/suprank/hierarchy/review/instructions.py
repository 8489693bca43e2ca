"""What annotators are asked to do, at the top of their start page; each project may have its own words."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from suprank.hierarchy.project import Project
    from suprank.hierarchy.recipe import Recipe

MAX_INSTRUCTIONS = 2_000
"""Characters that the start page has room for."""


def default_instructions(recipe: Recipe) -> str:
    """Two lines that fit any project: what a good tree is, and what to do with each group.

    Example:
        >>> from suprank.hierarchy.recipe import read_recipe
        >>> print(default_instructions(read_recipe("plain")).splitlines()[0])
        Sort the labels into groups: the labels of a group are of one kind, and its name fits all of them.
    """
    parent = f", choose its {recipe.levels[2]}" if recipe.depth > 1 else ""
    return (
        "Sort the labels into groups: the labels of a group are of one kind, and its name fits all of them.\n"
        "Open a group, split off, move or exclude the labels that do not belong, accept or correct its name"
        f"{parent}, and mark it done."
    )


def read_instructions(project: Project) -> str:
    """The project's own instructions, or the default ones."""
    return project.meta("instructions") or default_instructions(project.recipe)


def write_instructions(project: Project, text: str) -> None:
    """Save the project's own instructions, a paragraph per line; an empty text restores the default ones."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if len(text) > MAX_INSTRUCTIONS:
        raise ValueError(
            f"the instructions have {len(text):,} characters, and the start page has room for {MAX_INSTRUCTIONS:,}; "
            "shorten them, or link to a longer text."
        )
    with project.transaction() as db:
        db.execute("DELETE FROM meta WHERE key = 'instructions'")
        if lines:
            db.execute("INSERT INTO meta VALUES ('instructions', ?)", ("\n".join(lines),))
