"""Pages of the documentation with tables that scripts write, between <!-- begin NAME --> and <!-- end NAME -->."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path


def table_names(page: Path) -> list[str]:
    """The names of the tables that the page has a place for."""
    return re.findall(r"<!-- begin ([^>]+) -->", page.read_text(encoding="utf-8"))


def update(page: Path, tables: Mapping[str, str], *, check: bool = False) -> None:
    """Write these tables into the page; with `check` change nothing, and exit with an error if it has other ones.

    Tables of other scripts stay as they are. A table that the page has no place for is an error.
    """
    before = after = page.read_text(encoding="utf-8")
    for name, table in tables.items():
        begin, end = f"<!-- begin {name} -->\n", f"<!-- end {name} -->"
        if after.count(begin) != 1 or after.count(end) != 1:
            raise ValueError(f"{page} must have a place for the table {name!r}: {begin.strip()} and {end}, once.")
        start, _, rest = after.partition(begin)
        after = f"{start}{begin}{table}{end}{rest.partition(end)[2]}"
    if not check:
        page.write_text(after, encoding="utf-8")
    elif after != before:
        sys.exit(f"{page} is not what the results files say; {Path(sys.argv[0]).name} writes it anew without --check.")
