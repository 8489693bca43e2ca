"""--fill-gaps: what turns files into data refuses a blank between two labels, says so in the same words, and fills it."""

from pathlib import Path

import numpy as np
import pytest

import suprank
from suprank.data import Manifest
from tests.cli.collection import done, refused
from tests.training.runs import pictures

ADVICE = "genus is blank between two labels; fill it in, or let fill_gaps (of `suprank data import csv` and of label files) put"
IMPORT = ("data", "import", "csv", "photos", "table=gaps.csv", "--out", "m.parquet")
GENERA = ("(no genus) o0: f0", "(no genus) o0: f1", "g1", "g2", "g3")


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """The working folder: gaps.csv has eight species of two orders, and f0 and f1 have no genus."""
    monkeypatch.chdir(tmp_path)
    manifest = Manifest.read(pictures(tmp_path / "photos"))
    names = manifest.table["label_fine"].to_pylist()
    lines = ["path,split,label_species,label_genus,label_order"]
    for path, split, name in zip(manifest.paths.to_pylist(), manifest.table["split"].to_pylist(), names, strict=True):
        genus = "" if name in ("f0", "f1") else f"g{int(name[1]) // 2}"
        lines.append(f"{path},{split},{name},{genus},o{int(name[1]) // 4}")
    Path("gaps.csv").write_text("\n".join(lines) + "\n")
    return tmp_path


def test_an_imported_table_has_placeholders_and_needs_no_option_afterwards():
    assert f"gaps.csv:2: {ADVICE}" in refused(*IMPORT)
    output = done(*IMPORT, "fill_gaps=true").stdout
    assert "placeholders for blanks: 2 genus" in output
    assert "not a tree" not in output
    assert Manifest.read("m.parquet").names["genus"] == GENERA
    assert "placeholders for blanks: 2 genus" in done("data", "check", "m.parquet", "-q").stdout
    assert "(no genus) o0: f1  9 images, 1 species" in done("data", "show", "m.parquet").stdout


@pytest.mark.parametrize("command", [("data", "check", "gaps.csv"), ("data", "show", "gaps.csv")])
def test_a_table_that_was_not_imported_is_refused_with_the_way_out(command):
    assert f"gaps.csv, row 0: {ADVICE}" in refused(*command, "--root", "photos")


def test_a_label_file_with_gaps_is_evaluated_as_the_filled_manifest_would_be():
    done(*IMPORT, "fill_gaps=true")
    rows = Manifest.read("m.parquet")
    np.save("e.npy", np.random.default_rng(0).normal(size=(len(rows), 4)).astype(np.float32))
    command = ("evaluate", "e.npy", "--labels", "gaps.csv", "--device", "cpu", "--out", "r.json")
    assert f"gaps.csv:2: {ADVICE}" in refused(*command)
    done(*command, "--fill-gaps")
    report = suprank.evaluation.Report.load("r.json")
    expected = suprank.evaluation.evaluate(np.load("e.npy"), rows.labels, levels=rows.levels, device="cpu")
    assert report.means == expected.means
    np.save("other.npy", np.load("e.npy")[:, :3])
    assert "other" in done(*command, "--fill-gaps", "--against", "other.npy").output


def test_species_without_a_genus_are_no_positives_of_each_other_at_genus():
    """Two lynxes and a puma of one family: at genus a lynx finds the lynx only, at family all of them."""
    Path("cats.csv").write_text(
        "label_species,label_genus,label_family\nlynx,,Felidae\nlynx,,Felidae\npuma,,Felidae\nlion,Panthera,Felidae\n"
    )
    np.save("cats.npy", np.array([[1, 0], [0, 1], [0.9, 0.1], [0.5, 0.5]], np.float32))
    report = suprank.evaluate("cats.npy", "cats.csv", fill_gaps=True, metrics=["AP/genus", "AP/family"], device="cpu")
    assert report["AP/genus"] == pytest.approx((1 / 3 + 1 / 3) / 2)  # each lynx comes last in the other's list
    assert report["AP/family"] == 1
