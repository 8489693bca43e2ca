"""What files hold does not steer the terminal, nor a spreadsheet; and no message gives away what a file holds."""

import csv
import io
import json
import pickle
import warnings

import numpy as np
import pytest
import torch

from suprank.cli import terminal
from suprank.data import Manifest
from suprank.evaluation import evaluate
from suprank.experiments.grid import Combination
from suprank.experiments.results import runs_csv
from suprank.files.spreadsheets import csv_bytes, original_text, safe_cell
from tests.cli.collection import done, invoke, photographs, refused
from tests.hierarchy.branches import plain, write_branch

EVIL = "\x1b]0;title\x07\x1b[31mred\u202e[bold]\x9b2J"
ESCAPED = r"\u001b]0;title\u0007\u001b[31mred\u202e[bold]\u009b2J"
ALLOWED = {"\n", "\t"}


def steering(text):
    """Characters that steer a terminal."""
    return {char for char in text if not char.isprintable() and not char.isspace()} - ALLOWED


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """photos/ and m.parquet, in which a label, a level and a path are evil."""
    monkeypatch.chdir(tmp_path)
    photographs(tmp_path / "photos", groups=1, classes=2, images=2)
    paths = [f"group0/class0{one}/{image}.png" for one in range(2) for image in range(2)]
    columns = {"path": [*paths, f"{EVIL}.png"], "split": ["test"] * 5, f"label_{EVIL}": [EVIL, EVIL, "b", "b", "b"]}
    Manifest.from_columns(columns, root=tmp_path / "photos").save("m.parquet")
    with open("table.csv", "w", newline="", encoding="utf-8") as file:  # noqa: PTH123
        csv.writer(file).writerows([["path", "split", f"label_{EVIL}"], [paths[0], "test", EVIL], [paths[1], "test", EVIL]])
    return tmp_path


def test_control_characters_are_spelt_out_as_json_does():
    assert terminal.escaped(EVIL) == ESCAPED
    assert json.loads(f'"{terminal.escaped(chr(0x9B))}"') == "\x9b"
    assert terminal.escaped("Żółw\tב\n鳥 é") == "Żółw\tב\n鳥 é"


@pytest.mark.parametrize(
    "arguments",
    [
        ("data", "show", "m.parquet", "--split", "test"),
        ("data", "show", "m.parquet", "--level", "none"),
        ("data", "check", "m.parquet", "-q"),
        ("data", "import", "csv", "photos", "table=table.csv", "--out", "n.parquet"),
        ("data", "import", "csv", "photos", "table=table.csv", "--level", "none", "--out", "n.parquet"),
        ("evaluate", "e.npy", "--labels", "labels.csv", "-q"),
        ("evaluate", "e.npy", "--labels", "labels.csv", "--level", "none"),
        ("evaluate", "e.npy", "--labels", "labels.csv"),
        ("embed", "none", "m.parquet", "--split", EVIL, "--out", "f"),
        ("hierarchy", "new", "p", "--labels", "labels.txt"),
    ],
)
def test_no_verb_passes_on_what_steers_a_terminal(arguments):
    np.save("e.npy", np.eye(4, dtype=np.float32))
    with open("labels.csv", "w", newline="", encoding="utf-8") as file:  # noqa: PTH123
        csv.writer(file).writerows([[f"label_{EVIL}"], ["a"], ["a"], ["b"], ["b"]])
    with open("labels.txt", "w", encoding="utf-8") as file:  # noqa: PTH123
        file.write(f"{EVIL}\nb\n")
    result = invoke(*arguments)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert steering(result.output) == set(), result.output


def test_labels_with_markup_are_printed_as_they_are():
    assert ESCAPED in done("data", "show", "m.parquet").stdout


def test_warnings_are_escaped(monkeypatch, capsys):
    monkeypatch.setattr(warnings, "formatwarning", warnings.formatwarning)
    before = terminal.logging.lastResort.formatter
    terminal.escape_warnings()
    terminal.logging.lastResort.setFormatter(before)
    assert steering(warnings.formatwarning(f"see {EVIL}", UserWarning, "file", 1, None)) == set()


# Spreadsheets

FORMULAS = ["=cmd|' /C calc'!A0", "+1+1", "-2+3", "@SUM(A1)", "\t=1", "'=1", "＝1"]


@pytest.mark.parametrize("text", FORMULAS)
def test_text_that_a_spreadsheet_would_run_has_an_apostrophe(text):
    assert safe_cell(text) == f"'{text}"


@pytest.mark.parametrize("value", ["-0.5", "+3", "-1e-05", "-inf", "5%", "jay", "", "a=b", "'quoted'", -0.5, 3, None])
def test_numbers_and_other_text_stay(value):
    assert safe_cell(value) == value


def test_no_two_texts_become_the_same_cell():
    texts = [*FORMULAS, *(f"'{text}" for text in FORMULAS), "jay", "'jay", "\r=1", EVIL, ESCAPED, r"\u005cu001b", r"\udce9"]
    assert [original_text(safe_cell(text)) for text in texts] == texts


def test_cells_do_not_steer_a_terminal_that_prints_the_table():
    assert safe_cell(EVIL) == ESCAPED
    assert safe_cell(f"={EVIL}") == f"'={ESCAPED}"
    assert safe_cell("\r=1") == r"\u000d=1"
    assert steering(csv_bytes([EVIL], [[EVIL], ["\udce9"]]).decode()) == set()


def cells(content):
    return {cell for row in csv.reader(io.StringIO(content)) for cell in row}


def test_tables_of_people_are_safe_and_those_of_programs_are_as_they_are(tmp_path):
    names = {"=1+1": ("@family", "-order"), "jay": ("crows", "songbirds")}
    project = write_branch(plain(tmp_path / "p", names), names)
    command = ("hierarchy", "export", project.folder, "--out", "out", "--force", "-q")
    done(*command)
    written = cells((tmp_path / "out/labels.csv").read_text()) | cells((tmp_path / "out/groups.csv").read_text())
    assert {"'=1+1", "'@family", "'-order", "jay", "1"} <= written
    assert written.isdisjoint({"=1+1", "@family", "-order"})
    done(*command, "--raw-csv")
    assert {"=1+1", "@family", "-order"} <= cells((tmp_path / "out/labels.csv").read_text())
    assert cells(csv_bytes(["a"], [["=1"]], raw=True).decode()) == {"a", "=1"}


def test_tables_of_experiments_and_reports_are_safe():
    run = Combination((("loss.name", "=1"), ("loss.weight", "-0.5")))
    assert {"'=1", "-0.5"} <= cells(runs_csv({run: None}))
    assert "=1" in cells(runs_csv({run: None}, raw=True))
    report = evaluate(torch.eye(4), torch.tensor([[0, 0], [0, 0], [1, 1], [1, 1]]), levels=("=fine", "coarse"))
    assert "'=fine" in cells(report.to_csv())
    assert "=fine" in cells(report.to_csv(raw=True))


# What a file holds is nobody's business


class Evil:
    def __reduce__(self):
        return print, ("run",)


def test_a_file_that_would_run_code_is_refused_in_our_words(capsys):
    torch.save(Evil(), "evil.pt")
    with open("old.pt", "wb") as file:  # noqa: PTH123
        pickle.dump(Evil(), file)
    with open("labels.csv", "w", encoding="utf-8") as file:  # noqa: PTH123
        file.write("label\na\n")
    for name in ("evil.pt", "old.pt"):
        output = refused("evaluate", name, "--labels", "labels.csv", "--level", "label")
        assert "weights_only" not in output, output
        assert "not loaded" in output or "not written by torch.save" in output, output
        assert "mmap" not in output, output
    output = refused("models", "create", "test_resnet", "--weights", "evil.pt", "--out", "m")
    assert "weights_only" not in output
    assert "run" not in capsys.readouterr().out.split()


def test_no_message_quotes_the_content_of_a_file_that_is_no_image(folder):
    (folder / "secret").write_text("root:x:0:0:hunter2")
    (folder / "photos/link.png").symlink_to(folder / "secret")
    (folder / "photos/pbm.png").write_bytes(b"P6 hunter2secret 5 255 ")
    columns = {"path": ["link.png", "pbm.png"], "split": ["test"] * 2, "label_a": ["a", "b"]}
    Manifest.from_columns(columns, root=folder / "photos").save("s.parquet")
    result = invoke("data", "check", "s.parquet", "--out", "c.json", "-q")
    assert result.exit_code == 1
    assert "is not an image" in result.output
    for text in (result.output, (folder / "c.json").read_text()):
        assert "root" not in text.replace(str(folder), "").replace('"root"', ""), text
        assert "hunter2" not in text
