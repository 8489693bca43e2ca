"""benchmarks/fuzz.py: damaged and forged files are read rightly or refused in a sentence, here 100 mutants and the attacks."""

import csv
import importlib
import json
from pathlib import Path

import pages
import pytest

pytest.importorskip("resource", reason="needs os.fork and limits of memory, which Windows has not")

SCRIPTS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def script():
    limit = csv.field_size_limit()
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(SCRIPTS)
        fuzz = importlib.import_module("fuzz")  # which raises the limit
        fuzz.warm()
        yield fuzz
    csv.field_size_limit(limit)


def findings(found):
    return [(one.kind, one.what, *one.outcome) for one in found if one.outcome.verdict not in ("clean", "correct")]


def test_unchanged_files_are_read(script, tmp_path):
    for name in ("table, CSV", "run, TREC, inside .gz", "ground truth, pickle", "head, safetensors"):
        kind = script.kinds()[name]
        assert script.judge(kind, script.mutant(name, 0, 0), tmp_path) == script.Outcome("correct")


def test_100_mutants_are_read_or_refused(script):
    numbers = script.spread(100, list(script.kinds()))
    found = list(script.fuzz({name: range(1, len(these) + 1) for name, these in numbers.items()}, seed=0))
    assert len(found) == 100
    assert findings(found) == []


def test_attacks_are_read_or_refused(script):
    found = list(script.attack(list(script.kinds()), large=False))
    assert len(found) > 80
    assert findings(found) == []


def throw(error):
    raise error


@pytest.mark.parametrize(
    ("read", "verdict"),
    [
        (lambda path: 1, "correct"),
        (lambda path: int(f"no number in {path}"), "clean"),
        (lambda path: int("none"), "no name"),
        (lambda path: throw(ValueError(f"{path}\nand more")), "several lines"),
        (lambda path: {}[str(path)], "traceback"),
        (lambda path: bytearray(2**40), "memory"),
        (lambda path: __import__("os").abort(), "crash"),
        (lambda path: [None for _ in iter(int, 1)], "time-out"),
    ],
)
def test_each_way_to_fail_is_told_apart(script, tmp_path, monkeypatch, read, verdict):
    monkeypatch.setattr(script, "SECONDS", 1)
    monkeypatch.setattr(script, "MEMORY", 2**35)  # which no second fills
    assert script.judge(script.Kind("a.txt", b"", read), b"content", tmp_path).verdict == verdict


def test_a_wrong_reading_and_one_that_must_be_refused_are_findings(script, tmp_path):
    def check(found, path):
        assert found == path.read_bytes(), "other bytes"

    assert script.judge(script.Kind("a", b"", lambda path: b"other", check), b"bytes", tmp_path).verdict == "wrong"
    assert script.judge(script.Kind("a", b"", Path.read_bytes), b"bytes", tmp_path, refused=True).verdict == "accepted"


def test_a_seed_gives_the_same_mutants_again(script):
    assert script.mutant("table, CSV", 5, 3) == script.mutant("table, CSV", 5, 3)
    assert len({script.mutant("table, CSV", number, 3) for number in range(20)}) > 15


def test_the_published_run_has_no_findings(script):
    content = json.loads(script.RESULTS.read_bytes())
    total = content["rows"][-1]
    assert total["inputs"] >= 6000
    assert total["inputs"] == total["clean"] + total["correct"]
    assert content["findings"] == []
    assert {row["kind"] for row in content["rows"][:-1]} >= set(script.kinds()), "a reader may have gone since"
    pages.update(script.PAGE, {"fuzz": script.markdown(content["rows"])}, check=True)
