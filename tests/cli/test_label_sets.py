"""Images with several labels, from the command line: every command takes them or says that it does not."""

from pathlib import Path

import numpy as np
import pytest

import suprank
from suprank.data import Manifest
from suprank.data.importers.table import read
from suprank.training.loop import train
from tests.cli.collection import done, refused
from tests.training.runs import pictures, recipe

RANK_LOSS = {"name": "sup-ap"}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """The working folder: sets.csv has eight things of two kinds, and every third image shows the next thing too; sets.parquet
    is what it is imported as."""
    monkeypatch.chdir(tmp_path)
    manifest = Manifest.read(pictures(tmp_path / "photos"))
    numbers = [int(name[1]) for name in manifest.table["label_fine"].to_pylist()]
    lines = ["path,split,label_thing,label_kind"]
    rows = zip(manifest.paths.to_pylist(), manifest.table["split"].to_pylist(), numbers, strict=True)
    for row, (path, split, number) in enumerate(rows):
        things = [number, (number + 1) % 8] if row % 3 == 0 else [number]
        kinds = sorted({f"k{thing // 4}" for thing in things})
        lines.append(f"{path},{split},{'|'.join(f't{thing}' for thing in things)},{'|'.join(kinds)}")
    Path("sets.csv").write_text("\n".join(lines) + "\n")
    save_sets()
    return tmp_path


def save_sets():
    read(Path("photos"), table="sets.csv", label_separator="|")[""].save("sets.parquet")


def settings(**tables):
    data = {"manifest": "sets.parquet", "workers": 0}
    run = {"run": {"epochs": 1}, "evaluation": {"metrics": ("R@1", "AP", "AP/kind", "H-AP"), "every": 1}, "loss": RANK_LOSS}
    return recipe("", data=data, **run | tables)


def test_a_run_trains_evaluates_and_embeds_to_the_same_digits():
    result = train(settings(), "runs/sets")
    values = result.reports["test"].means
    needs = "of sets needs one label for an image at each level, but images have several thing"
    assert f"the report {needs}" in refused("report", "runs/sets", "--device", "cpu")
    assert f"the explorer page {needs}" in refused("explore", "runs/sets", "--device", "cpu")
    assert not Path("runs/sets/embeddings").exists()
    assert suprank.evaluate("runs/sets", metrics=list(values), device="cpu").means == values
    done("embed", "runs/sets/model", "sets.parquet", "--out", "embedded", "--device", "cpu")
    done("evaluate", "embedded", "--device", "cpu", "--out", "r.json")
    report = suprank.evaluation.Report.load("r.json")
    assert {key: report[key] for key in values} == values
    items = Manifest.read("embedded/test/items.parquet")
    assert items.names["thing"] == tuple(f"t{number}" for number in range(8))
    assert items.labels.tolist() == Manifest.read("sets.parquet").split("test").labels.tolist()
    files = ("evaluate", "embedded/test/embeddings.npy", "--device", "cpu", "--out", "files.json")
    done(*files, "--labels", "embedded/test/items.parquet")
    assert suprank.evaluation.Report.load("files.json").means == report.means
    assert "different classes" not in done("evaluate", "runs/sets", "--against-frozen", "--device", "cpu").output


def test_a_level_of_one_label_an_image_trains_with_proxies():
    rows = [line.split(",") for line in Path("sets.csv").read_text().splitlines()]
    Path("sets.csv").write_text("\n".join(",".join([*row[:3], row[3].partition("|")[0]]) for row in rows) + "\n")
    save_sets()
    data = {"manifest": "sets.parquet", "workers": 0, "levels": ("kind",)}
    run = {"run": {"epochs": 1}, "evaluation": {"metrics": ("AP",), "every": 1}, "batch": {"size": 16, "images_per_class": 8}}
    assert np.isfinite(train(recipe("", data=data, loss={"name": "nsm"}, **run), "runs/kind").reports["test"]["AP"])


@pytest.mark.parametrize("tables", [{"memory": {"size": 32}}, {"loss": {"name": "roadmap", "decomposability": "pairs"}}])
def test_memory_and_pair_calibration_train(tables):
    assert np.isfinite(train(settings(**tables), "runs/sets").reports["test"]["AP"])


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ({"loss": {"name": "roadmap"}}, "loss.name='roadmap' has proxies.*use loss.decomposability='pairs'"),
        ({"loss": {"name": "nsm"}}, "loss.name='nsm' has proxies.*such as loss.name='sup-ap'"),
        ({"batch": {"sampler": "hierarchical", "size": 16, "images_per_class": 2}}, "use batch.sampler='m-per-class'"),
    ],
)
def test_recipes_that_need_one_label_name_the_key_to_change(tables, message):
    with pytest.raises(ValueError, match=message):
        train(settings(**tables), "runs/refused")


def test_an_imported_table_knows_its_sets():
    done("data", "import", "csv", "photos", "table=sets.csv", "label_separator=|", "--out", "m.csv")
    again = Manifest.read("m.csv")
    assert again.labels.tolist() == Manifest.read("sets.parquet").labels.tolist()
    output = done("data", "check", "m.csv", "-q").stdout
    assert "images with several labels: 24 thing, 6 kind" in output
    assert "thing classes: 8 train, 8 test; 8 of train's in evaluation" in output
    assert "t0" in done("data", "show", "m.csv", "--out", "sheet.png").stdout
    assert "a split by classes needs one label" in refused(
        *("data", "import", "csv", "photos", "table=sets.csv", "label_separator=|", "--out", "n.csv"),
        *("--holdout-classes", "0.5"),
    )
    bad = Path("sets.csv").read_text().replace("t0|t1", "t0||t1", 1)
    Path("bad.csv").write_text(bad)
    command = ("data", "import", "csv", "photos", "table=bad.csv", "label_separator=|", "--out", "n.csv")
    assert "bad.csv:2: there is a blank among the labels of thing" in refused(*command)
    assert "label_separator=' ' must be a character" in refused(*command[:-3], "label_separator= ", "--out", "n.csv")


def test_label_files_and_arrays_give_the_numbers_of_the_manifest(tmp_path):
    manifest = Manifest.read("sets.parquet")
    np.save("e.npy", np.random.default_rng(0).normal(size=(len(manifest), 4)).astype(np.float32))
    np.save("labels.npy", manifest.labels)
    manifest.save("labels.parquet")
    manifest.save("labels.csv")
    expected = suprank.evaluation.evaluate(np.load("e.npy"), manifest.labels, device="cpu", levels=manifest.levels)
    for labels, separator in (
        ("sets.csv", ("--label-separator", "|")),
        ("labels.csv", ()),
        ("labels.parquet", ()),
        ("labels.npy", ()),
    ):
        done("evaluate", "e.npy", "--labels", labels, *separator, "--device", "cpu", "--out", "r.json")
        found = suprank.evaluation.Report.load("r.json").means
        assert list(found.values()) == list(expected.values())
    np.save("other.npy", np.load("e.npy")[:, :3])
    compared = done("evaluate", "e.npy", "--labels", "labels.parquet", "--against", "other.npy", "--device", "cpu")
    assert "other" in compared.output
    assert "the decomposability gap needs one label" in refused(
        "evaluate", "e.npy", "--labels", "labels.parquet", "--gap", "16", "--device", "cpu"
    )


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (["a||b,k"], "bad.csv:2: there is a blank among the labels of x"),
        (["1|-3,k"], "bad.csv:2: x is -3, but classes are numbered from 0"),
        (["a|b,", "a,k"], "bad.csv:2: there is a label of x, but none of y"),
        (["a|b,k", "a,m"], "bad.csv:2: x 'a' has no parent, because its 2 rows have no y in common"),
    ],
)
def test_label_files_that_are_no_sets_are_refused(rows, message):
    Path("bad.csv").write_text("\n".join(["label_x,label_y", *rows]) + "\n")
    np.save("e.npy", np.ones((len(rows), 2), np.float32))
    command = ("evaluate", "e.npy", "--labels", "bad.csv", "--device", "cpu", "--label-separator")
    assert message in refused(*command, "|")
    assert "label_separator='' must be a character" in refused(*command, "")


def test_a_blank_between_several_labels_is_to_be_filled_in():
    Path("gap.csv").write_text("path,split,label_a,label_b,label_c\n0-0.png,train,x|y,,z\n")
    message = "fill it in: with several labels for an image there are no placeholders"
    command = ("data", "import", "csv", "photos", "table=gap.csv", "label_separator=|")
    assert message in refused(*command, "--out", "m.csv")


def test_what_shows_classes_says_that_it_needs_one_label():
    manifest = Manifest.read("sets.parquet")
    manifest.save("m.parquet")
    np.save("e.npy", np.random.default_rng(0).normal(size=(len(manifest), 4)).astype(np.float32))
    needs = (
        "needs one label for an image at each level, but images have several thing and kind; measure it with `suprank evaluate`"
    )
    assert f"the explorer page of e {needs}" in refused("explore", "e.npy", "--labels", "m.parquet", "--port", "0")
    assert "a search of e needs one label" in refused("search", "e.npy", "--labels", "m.parquet", "--queries", "e.npy")
    filled = refused("evaluate", "e.npy", "--labels", "m.parquet", "--fill-gaps", "--device", "cpu")
    assert "fill_gaps needs one label in a row at each level" in filled
