"""Take the pictures of pages for the documentation anew: `make pictures` writes docs/pictures/{report,explore,review}-*.png.

    python docs/take_pictures.py [NAME ...]

The pages show the two runs of `suprank demo --data glyphs`, and a review of the names of these characters by two scripted
annotators. Both are made by the first call, in about five minutes, and kept in build/pictures; with them, a call takes half a
minute. The report is written again if a file of the package has changed since. A browser is needed: install one with
`playwright install chromium-headless-shell`, or name one in SUPRANK_CHROMIUM.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

    from suprank.hierarchy.review import Branch

ROOT = Path(__file__).parents[1]
WRITTEN = ROOT / "docs" / "pictures"
KEPT = ROOT / "build" / "pictures"
RUNS = [KEPT / name for name in ("happier", "smooth-ap")]  # the runs of the demo under shorter names
MOST_BYTES = 200_000
MARGIN = 120
"""Pixels that a window is higher than the picture of an element, above which a page may leave some room."""
UNSTICK = """for (const one of document.querySelectorAll("body *"))
    if (getComputedStyle(one).position === "sticky") one.style.position = "static";"""
SECONDS = 300
"""Longest wait for a server to start, and for what it measures in the background."""


@dataclass(frozen=True)
class Picture:
    """A page, and what to show of it.

    `page` is a key of `addresses`; in `path`, {query} is an image on which the two runs differ, and {dash} the group of dashes.
    With an `element`, a CSS selector, the picture is of this element, at most `height` high, and else of the window.
    """

    name: str
    page: str
    path: str = ""
    element: str | None = None
    width: int = 1200
    height: int = 800
    act: Callable[[Page], None] | None = None


def show_a_class(page: Page) -> None:
    """Move to a class of the first map with the keyboard, which shows its card."""
    page.locator("#map canvas, #map .points path[tabindex='0']").first.focus()
    page.keyboard.press("ArrowRight")


def open_worst_label(page: Page) -> None:
    """From the tree, open the label page of the label with the lowest AP."""
    href = page.locator("table.branches tbody a").first.get_attribute("href") or ""
    (node,) = re.findall(r"[?&]node=([^&]+)", href)
    page.goto(f"{page.url.split('/tree')[0]}/label?node={node}")


def open_example(page: Page) -> None:
    """Show the example of a good group, which is closed once three groups are done."""
    page.locator("details.job:not([open]) summary").click()


def move_dashed_arrows(page: Page) -> None:
    """Select the four arrows in the group of dashes, to move them to the arrows."""
    for row in page.locator(".labels tr", has_text="dashed arrow").all():
        row.locator("input[type=checkbox]").check()
    page.get_by_label("move to").fill("arrow")


PICTURES = (
    Picture("report-verdict", "report", element="#verdict", width=1000, height=700),
    Picture("report-failures", "report", element="#failures", width=1000, height=800),
    Picture("report-map", "report", element="#map .maps, #map .map", width=1000, height=800, act=show_a_class),
    Picture("report-galleries", "report", element="#better .gallery", height=510),
    Picture("explore-start", "explore", "/"),
    Picture("explore-two-runs", "explore", "/item/a/gallery/{query}"),
    Picture("explore-labels", "explore", "/tree?order=worst"),
    Picture("explore-label", "explore", "/tree?order=worst", act=open_worst_label),
    Picture("review-start", "review", "/", act=open_example),
    Picture("review-group", "review", "/group/{dash}", act=move_dashed_arrows),
    Picture("review-doubtful", "adjudication", "/doubtful"),
)


def suprank(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "suprank", *map(str, arguments)]


def run(*arguments: object) -> None:
    print("suprank", *arguments, flush=True)
    subprocess.run(suprank(*arguments), cwd=KEPT, check=True, stdout=subprocess.DEVNULL)


# What the pages show


def write_report() -> Path:
    """Train the runs unless they are there, and write their report unless it is newer than the package."""
    if not all((folder / "result.json").is_file() for folder in RUNS):
        run("demo", "--data", "glyphs", "--out", "runs")
        for folder in RUNS:
            (KEPT / "runs" / "glyphs-seed0-8epochs" / f"{folder.name},seed=0").rename(folder)
    page = KEPT / "report.html"
    ends = (".py", ".html", ".css", ".js")
    changed = max(file.stat().st_mtime for file in (ROOT / "src").rglob("*") if file.suffix in ends)
    if not page.is_file() or page.stat().st_mtime < changed:
        title = "HAPPIER against Smooth-AP on glyphs"
        run("report", RUNS[0], "--against", RUNS[1], "--title", title, "--out", page, "--quiet")
    return page


def differing_query() -> int:
    """The row of a query for which the mistakes of the first run are near misses, and those of the second are not."""
    import suprank
    from suprank.explorer.findings.mistakes import better_mistakes, count_first_items

    own, other = map(suprank.open_data, RUNS)
    items = count_first_items(own, other, own.match(other))
    return int(items.queries[better_mistakes(items).order[0]])


GROUPS = {
    "Canadian syllabics a": ("syllabic", "letters"),
    "Latin small letter a": ("small Latin letter", "letters"),
    "Latin capital letter A": ("capital Latin letter", "letters"),
    "Downwards arrow": ("arrow", "signs"),
    "Cent sign": ("currency sign", "signs"),
    "All equal to": ("equality", "signs"),
    "Colon": ("colon", "signs"),
    "Angle": ("angle", "signs"),
    "Em dash": ("dash", "signs"),
}
"""A label → the name and the parent that both annotators give to the group it is in."""
MOVED = {
    "Downwards dashed arrow": "Downwards arrow",
    "Leftwards dashed arrow": "Downwards arrow",
    "Rightwards dashed arrow": "Downwards arrow",
    "Upwards dashed arrow": "Downwards arrow",
    "Colon equals": "All equal to",
    "Equals colon": "All equal to",
}
"""A label that only the second annotator moves → a label of the group it is moved to."""


def make_review() -> int:
    """Make the project of the review unless it is there; the group of dashes on the branch of anna."""
    from suprank.hierarchy import Project
    from suprank.hierarchy.review import Exclude, Mark, Move, Rename, SetParent, open_branch

    finished = KEPT / "signs" / "finished"
    if not finished.is_file():
        shutil.rmtree(finished.parent, ignore_errors=True)
        run("data", "import", "glyphs", "--out", "glyphs.parquet")
        levels = ("--levels", "character,kind,script", "--top", "letters,signs")
        run("hierarchy", "new", "signs", "--manifest", "glyphs.parquet", "--level", "character", *levels)
        run("hierarchy", "cluster", "signs", "--quiet")
    project = Project(finished.parent)
    anna, ben = (open_branch(project, name) for name in ("anna", "ben"))
    if not finished.is_file():
        with project.snapshot() as db:
            number = {row["text"]: row["id"] for row in db.execute("SELECT id, text FROM label")}
            parents = dict(db.execute('SELECT name, id FROM "group" WHERE branch = ? AND level = 2', (anna.id,)).fetchall())
        for branch in (anna, ben):
            for label, (name, parent) in GROUPS.items():
                group = group_of(branch, label)
                branch.apply(Rename(group, name if branch is anna or name != "syllabic" else "Canadian syllabic"))
                branch.apply(SetParent((group,), parents[parent]))
                if name != "dash":
                    branch.apply(Mark((group,), "done"))
        for label, to in MOVED.items():
            ben.apply(Move((number[label],), group_of(ben, to)))
        ben.apply(Exclude((number["Copyright sign"],), "not a currency"))
        open_branch(project, "final", source="anna", against="ben")
        finished.touch()
    return group_of(anna, "Em dash")


def group_of(branch: Branch, label: str) -> int:
    """The group that a label is in."""
    sql = 'SELECT "group" FROM member JOIN label ON label.id = label WHERE branch = ? AND text = ?'
    with branch.project.snapshot() as db:
        return int(db.execute(sql, (branch.id, label)).fetchone()[0])


# The pages


@contextmanager
def served(*arguments: object) -> Iterator[str]:
    """Start a command that serves pages; yield the first address that it prints."""
    print("suprank", *arguments, flush=True)
    command = suprank(*arguments, "--port", 0, "--no-browser", "--quiet")
    with subprocess.Popen(command, cwd=KEPT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                if found := re.search(r"http://\S+", line):
                    yield found[0]
                    return
            raise SystemExit(f"suprank {arguments[0]} ended without an address.")
        finally:
            process.send_signal(signal.SIGINT)


@contextmanager
def addresses(pages: set[str]) -> Iterator[dict[str, str]]:
    """The address of each of these pages."""
    with ExitStack() as stack:
        found = {}
        if "report" in pages:
            found["report"] = write_report().as_uri()
        if "explore" in pages:
            found["explore"] = stack.enter_context(served("explore", *RUNS, "--device", "cpu")).rstrip("/")
        if "review" in pages:
            found["review"] = stack.enter_context(served("hierarchy", "review", "signs", "--annotator", "anna"))
        if "adjudication" in pages:
            found["adjudication"] = stack.enter_context(served("hierarchy", "review", "signs", "--annotator", "final"))
        yield found


@contextmanager
def launched() -> Iterator[Browser]:
    from playwright.sync_api import sync_playwright

    installed = Path(os.environ.get("SUPRANK_CHROMIUM", "/usr/bin/chromium-headless-shell"))
    with sync_playwright() as playwright:
        flags = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
        browser = playwright.chromium.launch(executable_path=installed if installed.is_file() else None, args=flags)
        yield browser
        browser.close()


def open_page(browser: Browser, picture: Picture, address: str, places: dict[str, int]) -> Page:
    """Open the page of a picture, log in with a link that has a token, and wait for what is measured in the background."""
    page = browser.new_page(viewport={"width": picture.width, "height": picture.height + (MARGIN if picture.element else 0)})
    if "/enter?token=" in address:
        page.goto(address)
        address = re.sub(r"/enter\?token=.*", "", address)
    page.goto(address + picture.path.format(**places))
    if picture.act is not None:
        picture.act(page)
    until = time.monotonic() + SECONDS
    while page.get_by_text("reload this page in a while").count():
        if time.monotonic() > until:
            raise SystemExit(f"{picture.name}: {page.url} is still measuring after {SECONDS} seconds.")
        time.sleep(1)
        page.reload()
    if page.get_by_role("heading", name=re.compile("Not found|Invalid request|Something went wrong")).count():
        raise SystemExit(f"{picture.name}: {page.url} is an error page.")
    return page


def take(page: Page, picture: Picture) -> bytes:
    """The picture in at most 256 colors."""
    from PIL import Image
    from playwright.sync_api import FloatRect

    clip = None
    if picture.element is not None:
        element = page.locator(picture.element).first
        if not element.count():
            raise SystemExit(f"{picture.name}: {page.url} has no element {picture.element}.")
        page.evaluate(UNSTICK)
        for _ in range(3):  # what comes into view is laid out only then, and moves what is below
            element.evaluate("(one) => one.scrollIntoView({behavior: 'instant'})")
            page.wait_for_timeout(100)
        box = element.bounding_box()
        assert box is not None
        height = min(box["height"] + 12, picture.height)
        clip = FloatRect(x=0, y=max(box["y"] - 12, 0), width=picture.width, height=height)
    page.wait_for_load_state("networkidle")
    page.wait_for_function("[...document.images].every((one) => one.complete || one.getBoundingClientRect().top > innerHeight)")
    shot = page.screenshot(clip=clip)
    file = BytesIO()
    Image.open(BytesIO(shot)).convert("RGB").quantize(256).save(file, "PNG", optimize=True)
    if len(file.getvalue()) > MOST_BYTES:
        raise SystemExit(f"{picture.name}: {len(file.getvalue()):,} bytes are more than {MOST_BYTES:,}; make it smaller.")
    return file.getvalue()


def main(names: list[str]) -> None:
    known = {picture.name: picture for picture in PICTURES}
    if unknown := [name for name in names if name not in known]:
        raise SystemExit(f"there is no picture {unknown[0]}; choose from {', '.join(known)}.")
    chosen = [known[name] for name in names or known]
    pages = {picture.page for picture in chosen}
    KEPT.mkdir(parents=True, exist_ok=True)
    if "explore" in pages:
        write_report()  # the explorer shows the same runs
    places = {}
    if any("{query}" in picture.path for picture in chosen):
        places["query"] = differing_query()
    if pages & {"review", "adjudication"}:
        places["dash"] = make_review()
    with addresses(pages) as found, launched() as browser:
        for picture in chosen:
            page = open_page(browser, picture, found[picture.page], places)
            file = WRITTEN / f"{picture.name}.png"
            file.write_bytes(take(page, picture))
            page.close()
            print(f"{file.relative_to(ROOT)} ({file.stat().st_size / 1000:.0f} kB)", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
