"""What the page serves: a project, some of its branches, and pictures of its manifest."""

from __future__ import annotations

import secrets
from contextlib import suppress
from typing import TYPE_CHECKING

from suprank.hierarchy.project import BusyError, FullError, Project
from suprank.hierarchy.review.branch import Branch
from suprank.hierarchy.review.web.pages import Pages
from suprank.hierarchy.review.web.samples import Samples
from suprank.hierarchy.review.web.vectors import Vectors

if TYPE_CHECKING:
    from collections.abc import Iterable


class Review:
    """Everything that requests share."""

    def __init__(self, project: Project, names: Iterable[str]) -> None:
        self.project = project
        self.branches = {name: Branch(project, name) for name in names}
        self.version = secrets.token_hex(4)  # in addresses of style and script: a browser keeps those of an older suprank
        self.pages = Pages(self)
        self.samples, self.without_pictures = _samples(project)
        self.vectors = Vectors(project)
        self._hasty = Project(project.folder, busy_seconds=0.0)

    def remember(self, branch: Branch, group: int) -> None:
        """Where the annotator is, for the next time; not worth waiting for, where somebody is writing."""
        with self._hasty.reading() as db:
            if db.execute("SELECT last_group FROM branch WHERE id = ?", (branch.id,)).fetchone()[0] == group:
                return
        with suppress(BusyError, FullError), self._hasty.writing() as db:
            db.execute("UPDATE branch SET last_group = ? WHERE id = ?", (group, branch.id))


def _samples(project: Project) -> tuple[Samples | None, str]:
    """Sample pictures, or why there are none: a review goes on without them."""
    try:
        return Samples.of(project), ""
    except (OSError, ValueError) as error:
        return None, str(error)
