"""Names of repositories on the Hugging Face Hub: `org/name`, and `hf-hub:org/name@revision` as timm writes them."""

from __future__ import annotations

import re
from typing import NamedTuple

from suprank.system.custom_code import HUB

_COMMIT = re.compile(r"[0-9a-f]{40}")


class HubName(NamedTuple):
    """A repository on the Hub, and a revision of it: a branch, a tag, a commit, or None for the default branch."""

    repo_id: str
    revision: str | None = None

    @classmethod
    def parse(cls, name: str) -> HubName:
        """Split `hf-hub:org/name@revision`, with or without its prefix and its revision.

        Example:
            >>> HubName.parse("hf-hub:timm/resnet50.a1_in1k@main")
            HubName(repo_id='timm/resnet50.a1_in1k', revision='main')
        """
        repo_id, at, revision = name.removeprefix(HUB).partition("@")
        check_repo_id(repo_id)
        if at and not revision:
            raise ValueError(f"{name!r} has nothing after the @; name a branch, a tag or a commit there, or leave out the @.")
        return cls(repo_id, revision or None)

    @property
    def pinned(self) -> bool:
        """Whether the revision is a commit, which never changes."""
        return self.revision is not None and _COMMIT.fullmatch(self.revision) is not None

    def __str__(self) -> str:
        return self.repo_id if self.revision is None else f"{self.repo_id}@{self.revision}"


def check_repo_id(repo_id: str) -> None:
    """Raise a ValueError if this cannot be the name of a repository with its owner."""
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

    try:
        validate_repo_id(repo_id)
        known = "/" in repo_id
    except HFValidationError:
        known = False
    if not known:
        raise ValueError(
            f"{repo_id!r} is not the name of a repository on the Hub: it must be org/name, of letters, digits and single '-', "
            "'_' and '.' between them."
        )
