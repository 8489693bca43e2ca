"""A run writes to the working folder, and beside it only where docs/install.md says."""

import re
from pathlib import Path

import pytest

from tests.cli.collection import photographs

INSTALL = (Path(__file__).parents[2] / "docs" / "install.md").read_text(encoding="utf-8")

# Logs every path that Python opens for writing, makes or renames, in this process and its forks, and then runs the commands.
SCRIPT = """
import os, sys, tempfile
log = os.open(sys.argv[1], os.O_CREAT | os.O_APPEND | os.O_WRONLY)

def written(event, arguments):
    if event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
        path = arguments[0]
    elif event in ("os.mkdir", "os.rename", "os.link", "os.symlink", "sqlite3.connect"):
        path = arguments[0] if event in ("os.mkdir", "sqlite3.connect") else arguments[1]
    else:
        return
    if isinstance(path, (str, bytes)):
        os.write(log, os.path.abspath(os.fsencode(path)) + b"\\n")

sys.addaudithook(written)
tempfile.tempdir = None  # read TMPDIR again
from suprank.cli.main import main
SMALL = ["images.size=32", "model.backbone=test_resnet", "model.pretrained=false", "data.workers=0", "engine.accelerator=cpu"]
for words in (
    ["data", "import", "folder", "photos", "--holdout-classes", "0.5", "--out", "m.parquet"],
    ["train", "photos/roadmap", "data.manifest=m.parquet", "run.epochs=1", *SMALL, "--out", "run"],
    ["evaluate", "run", "-q"],
    ["report", "run", "--out", "page.html", "--queries", "1", "-q"],
):
    sys.argv = ["suprank", *words]
    try:
        main()
    except SystemExit as end:
        if end.code:
            raise
"""


def documented():
    """The paths of the table in docs/install.md."""
    section = INSTALL.partition("## Files outside the working folder")[2]
    return re.findall(r"^\| `([^`]+)`", section, flags=re.MULTILINE)


@pytest.mark.slow
def test_a_run_writes_only_to_its_folder_and_where_the_documentation_says(forked, tmp_path):
    home, temporary, work = (tmp_path / name for name in ("home", "temporary", "work"))
    for folder in (home, temporary, work):
        folder.mkdir()
    photographs(work / "photos", groups=2, classes=4, images=4, side=32)
    variables = {"HOME": str(home), "TMPDIR": str(temporary), "XDG_CACHE_HOME": "", "SUPRANK_CACHE": ""}
    forked.script(SCRIPT, tmp_path / "log", cwd=work, variables=variables).succeed(timeout=120)
    paths = {Path(line) for line in (tmp_path / "log").read_text().splitlines()}
    paths |= set(home.rglob("*"))  # also by libraries that are not written in Python
    assert work / "run" / "recipe.toml" in paths
    places = [Path(place.replace("~", str(home)).replace("$TMPDIR", str(temporary))) for place in documented()]
    places += [Path("/dev"), work]
    unknown = {
        path
        for path in paths - {home}
        if path.parent.name != "__pycache__"
        and not any(path.is_relative_to(place) or place.is_relative_to(path) for place in places)
    }
    assert unknown == set()
