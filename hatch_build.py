"""Metadata that the build computes: project URLs, and the README with absolute links, because PyPI has no files to link to.

Both follow from one setting, `repository` under [tool.hatch.metadata.hooks.custom] in pyproject.toml. While it is "", there are
no URLs, links stay relative, and `make release-check` refuses to publish.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

RELATIVE = r"\((?!https?://|mailto:|#)([^)\s]+)\)"


def absolute_links(text: str, repository: str, tag: str) -> str:
    """Make Markdown links to files of the repository absolute, as they are at a tag; pictures link to the raw file."""
    text = re.sub(rf"(!\[[^\]]*\]){RELATIVE}", rf"\1({repository}/raw/{tag}/\2)", text)
    return re.sub(rf"\]{RELATIVE}", rf"]({repository}/blob/{tag}/\1)", text)


def project_urls(repository: str, documentation: str, tag: str) -> dict[str, str]:
    """The links that PyPI shows beside the description."""
    if not repository:
        return {}
    return {
        "Documentation": documentation or f"{repository}/blob/{tag}/docs/index.md",
        "Source": repository,
        "Changelog": f"{repository}/blob/{tag}/CHANGELOG.md",
        "Issues": f"{repository}/issues",
    }


class ProjectLinks(MetadataHookInterface):
    """Set `readme` and `urls`."""

    def update(self, metadata: dict[str, Any]) -> None:
        repository = self.config["repository"].rstrip("/")
        source = Path(self.root, "src", "suprank", "__init__.py").read_text(encoding="utf-8")
        tag = "v" + re.findall(r'^__version__ = "(.+)"$', source, flags=re.MULTILINE)[0]
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        text = absolute_links(text, repository, tag) if repository else text
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
        metadata["urls"] = project_urls(repository, self.config["documentation"].rstrip("/"), tag)
