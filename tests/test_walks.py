"""How data flows: the files that a call hands its data through are those that CONTRIBUTING.md lists, in that order."""

import re
import sys
from pathlib import Path

import pytest

import suprank
from suprank.adaptation import AdaptConfig
from suprank.data import Manifest
from suprank.evaluation import Report, RetrievalData
from suprank.training import train
from suprank.workflows.explorers import open_explorer
from tests.explorer.runs import collection, embeddings
from tests.training import runs as training_runs

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "suprank"
LISTED = {
    name: re.sub(r"\s+", " ", files).split(" → ")
    for name, files in re.findall(r"^`(\w+)`\n: (.+?)\n\n", (ROOT / "CONTRIBUTING.md").read_text(), flags=re.M | re.S)
    if " → " in files
}

CALLS = {
    "train": lambda: train(training_runs.recipe(training_runs.pictures(Path.cwd() / "t")), "run"),
    "evaluate": lambda: suprank.evaluate("e", progress=False),
    "report": lambda: suprank.report("e", out="r.html", queries=1, top=1),
    "explore": lambda: open_explorer(["e"]),
    "adapt": lambda: suprank.adapt("e", "head", AdaptConfig(steps=1)),
}


def walk(action):
    """The files with a function that is given or returns a manifest, retrieval data or a report, in order; and all files."""
    found, every = {}, set()

    def called(frame, event, value):
        file = frame.f_code.co_filename
        given = frame.f_locals.values() if event == "call" else (value,) if event == "return" else ()
        if event == "call" and frame.f_code.co_name != "<module>":
            every.add(file)
        if any(type(one) in (Manifest, RetrievalData, Report) for one in given):  # isinstance would ask C objects for more
            found.setdefault(file)

    sys.setprofile(called)
    try:
        action()
    finally:
        sys.setprofile(None)
    return [
        [Path(file).relative_to(SOURCE).as_posix() for file in one if Path(file).is_relative_to(SOURCE)]
        for one in (found, every)
    ]


@pytest.mark.parametrize("name", CALLS)
def test_the_data_go_through_the_files_that_are_listed(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    embeddings("e", collection(tmp_path, groups=4, classes=4))
    found, _ = walk(CALLS[name])
    assert found == LISTED.get(name), f"`{name}`\n: " + " → ".join(found)


def test_an_evaluation_has_frames_in_35_files_at_most_of_which_24_are_above_the_ground_floor(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    embeddings("e", collection(tmp_path, groups=4, classes=4))
    CALLS["evaluate"]()  # what is imported, and measured once for a processor, is no part of the walk
    _, every = walk(CALLS["evaluate"])
    assert len(every) <= 35, sorted(every)
    assert len([file for file in every if file.partition("/")[0] not in ("files", "system", "ranking")]) <= 24, sorted(every)
