"""--fill-gaps: every command that reads labels refuses a blank between two labels, says so in the same words, and fills it."""

from pathlib import Path

import numpy as np
import pytest

import suprank
from suprank.data import Manifest
from suprank.training.loop import train
from tests.cli.collection import done, refused
from tests.training.runs import pictures, recipe

ADVICE = "fill it in, or let --fill-gaps (of `suprank data import csv`,"


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


GENERA = ("(no genus) o0: f0", "(no genus) o0: f1", "g1", "g2", "g3")


def test_an_imported_table_has_placeholders_and_needs_no_option_afterwards():
    command = ("data", "import", "csv", "photos", "--table", "gaps.csv", "--out", "m.parquet")
    assert f"gaps.csv:2: 'label_genus' is blank between two labels; {ADVICE}" in refused(*command)
    output = done(*command, "--fill-gaps").stdout
    assert "placeholders for blanks: 2 genus" in output
    assert "not a tree" not in output
    assert Manifest.read("m.parquet").names["genus"] == GENERA
    assert "placeholders for blanks: 2 genus" in done("data", "check", "m.parquet", "-q").stdout
    assert "(no genus) o0: f1  9 images, 1 species" in done("data", "show", "m.parquet").stdout


@pytest.mark.parametrize(
    "command",
    [
        ("data", "check", "gaps.csv", "--root", "photos", "-q"),
        ("data", "show", "gaps.csv", "--root", "photos", "--out", "sheet.png"),
        ("embed", "test_resnet.untrained", "gaps.csv", "--root", "photos", "--out", "embedded"),
    ],
)
def test_a_table_with_gaps_is_read_as_it_is(command, monkeypatch):
    rows = "18 of 72 rows (0, 1, 2, 3, 4, ...) have no label_genus, but labels below and above it"
    assert f"gaps.csv: {rows}; {ADVICE}" in refused(*command)
    if command[0] == "embed":
        from suprank.models import Embedder
        from suprank.workflows import embeddings

        model = Embedder.create("test_resnet", pretrained=False, dim=8, image_size=(32, 32))
        monkeypatch.setattr(embeddings, "load_embedder", lambda *_, **__: model)
    done(*command, "--fill-gaps")
    if command[0] == "embed":
        assert Manifest.read("embedded/test/items.parquet").names["genus"] == GENERA
        done("evaluate", "embedded", "-q", "--out", "r.json")
        assert "AP/genus" in suprank.evaluation.Report.load("r.json")
        assert "embedded is a folder, which has its own labels" in refused("evaluate", "embedded", "--fill-gaps")


def test_a_label_file_with_gaps_is_evaluated_as_the_filled_manifest_would_be():
    rows = Manifest.read("gaps.csv", root="photos", fill_gaps=True)
    np.save("e.npy", np.random.default_rng(0).normal(size=(len(rows), 4)).astype(np.float32))
    command = ("evaluate", "e.npy", "--labels", "gaps.csv", "--device", "cpu", "--out", "r.json")
    assert f"gaps.csv, row 0: label_species is 'f0', but label_genus is empty, and levels go from fine to coarse; {ADVICE}" in (
        refused(*command)
    )
    done(*command, "--fill-gaps")
    report = suprank.evaluation.Report.load("r.json")
    expected = suprank.evaluation.evaluate(np.load("e.npy"), rows.labels, levels=rows.levels, device="cpu")
    assert report.means == expected.means
    assert suprank.evaluate("e.npy", "gaps.csv", fill_gaps=True, device="cpu").means == expected.means
    np.save("other.npy", np.load("e.npy")[:, :3])
    assert "other" in done(*command, "--fill-gaps", "--against", "other.npy").output


def test_a_recipe_fills_gaps_in_training_in_its_test_sets_and_when_the_run_is_evaluated():
    data = {"manifest": "gaps.csv", "root": "photos", "workers": 0}
    run = {"run": {"epochs": 1}, "evaluation": {"metrics": ("AP/genus",), "every": 1}}
    with pytest.raises(ValueError, match=r"have no label_genus.*data\.fill_gaps = true"):
        train(recipe("", data=data, **run), "runs/refused")
    Path("photos/more.csv").write_text(Path("gaps.csv").read_text())
    filled = data | {"fill_gaps": True, "tests": {"more": "photos/more.csv"}}
    reports = train(recipe("", data=filled, **run), "runs/filled").reports
    assert reports["test"].means == reports["more"].means
    assert "AP/genus" in reports["test"]
    assert suprank.evaluate("runs/filled", metrics=["AP/genus"], device="cpu").means == reports["test"].means


def test_species_without_a_genus_are_no_positives_of_each_other_at_genus():
    """Two lynxes and a puma of one family: at genus a lynx finds the lynx only, at family all of them."""
    Path("cats.csv").write_text(
        "label_species,label_genus,label_family\nlynx,,Felidae\nlynx,,Felidae\npuma,,Felidae\nlion,Panthera,Felidae\n"
    )
    np.save("cats.npy", np.array([[1, 0], [0, 1], [0.9, 0.1], [0.5, 0.5]], np.float32))
    values = suprank.evaluate("cats.npy", "cats.csv", fill_gaps=True, metrics=["AP/genus", "AP/family"], device="cpu").means
    assert values["AP/genus"] == pytest.approx((1 / 3 + 1 / 3) / 2)  # each lynx comes last in the other's list
    assert values["AP/family"] == 1
