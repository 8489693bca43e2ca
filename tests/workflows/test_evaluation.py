"""A folder of embeddings as `suprank evaluate` reads it: parts, labels by name, and which rows are one image."""

import json
import re

import numpy as np
import pytest
from typer.testing import CliRunner

import suprank
from suprank import open_data
from suprank.cli.app import app
from suprank.data import Manifest
from suprank.data.importers import BENCHMARKS
from suprank.evaluation import evaluate, read_ground_truth
from suprank.evaluation.revisited import revisited
from tests.data import miniatures_landmarks
from tests.models.test_head import made


def write(folder, part, labels, *, split=None, paths=None, **columns):
    """Random embeddings of images with these labels, as `suprank embed` leaves them."""
    (folder / part).mkdir(parents=True)
    count = len(labels)
    given = {
        "path": paths or [f"{part}{row}.png" for row in range(count)],
        "split": split or [part] * count,
        "label_kind": labels,
        **columns,
    }
    Manifest.from_columns(given, root=".").save(folder / part / "items.parquet")
    embeddings = np.random.default_rng([count, *part.encode()]).normal(size=(count, 4)).astype(np.float32)
    np.save(folder / part / "embeddings.npy", embeddings)
    return embeddings


def test_a_part_that_is_not_evaluated_is_named(tmp_path, caplog):
    caplog.set_level("INFO", "suprank")
    for part in ("query", "gallery", "test"):
        write(tmp_path, part, ["a", "b"])
    open_data(tmp_path)
    assert "test is left out: query against gallery is evaluated" in caplog.text


def test_images_that_are_listed_twice_or_embedded_for_training_too_are_named(tmp_path, caplog):
    write(tmp_path, "test", ["a", "a", "b", "b"], paths=["1.png", "2.png", "1.png", "3.png"])
    write(tmp_path, "train", ["a", "c"], paths=["3.png", "4.png"])
    open_data(tmp_path)
    twice, trained = (record.getMessage() for record in caplog.records)
    assert f"{tmp_path}: 1 of 3 images to evaluate on are listed twice, so that each finds its copy (" in twice
    assert "1.png); see suprank data check." in twice
    assert "1 of 3 images to evaluate on are trained on, so that metrics say little about new images (" in trained
    boxes = [[0, 0, 5, 5], [0, 0, 5, 5], [5, 5, 9, 9], [0, 0, 5, 5]]
    write(tmp_path / "crops", "test", ["a", "a", "b", "b"], paths=["1.png", "2.png", "1.png", "3.png"], box=boxes)
    caplog.clear()
    open_data(tmp_path / "crops")
    assert not caplog.records, "two crops of a photograph are two images"


def species(folder, part="test", genera=20):
    """Two images of each of two species of each genus, and orders of ten genera."""
    rows = np.arange(4 * genera)
    labels = {f"label_{level}": [f"{level} {row // size}" for row in rows] for level, size in (("genus", 4), ("order", 40))}
    write(folder, part, [f"kind {row // 2}" for row in rows], **labels)


def test_levels_that_are_not_evaluated_decide_the_unit_of_intervals(tmp_path):
    species(tmp_path)
    report = suprank.evaluate(tmp_path, levels=["kind"], per_query=True, intervals=True)
    assert report.levels == ("kind",)
    assert list(report.classes) == ["kind", "genus", "order"]
    assert str(report.units()) == "genus: 20 classes, effectively 20"
    assert report.sentence() == "Measured on 40 classes of kind, in 20 genera (unit: genus)."
    assert report.settings["intervals"]["measured"] == report.sentence()
    by_hand = evaluate(
        np.load(tmp_path / "test" / "embeddings.npy"), np.arange(80) // 4, metrics=["AP"], per_query=True, progress=False
    )
    assert by_hand.units().level == "label0"
    assert by_hand.with_intervals().settings["intervals"]["unit"]["count"] == 20


def test_the_classes_are_those_of_the_queries_and_never_of_the_gallery(tmp_path):
    species(tmp_path, "query", genera=6)
    species(tmp_path, "gallery")
    report = suprank.evaluate(tmp_path, per_query=True)
    assert report.units().classes == {"kind": 12, "genus": 6, "order": 1}
    assert report.units().level == "kind"


def test_images_without_labels_are_sent_where_ground_truth_is_read(tmp_path):
    for part in ("query", "gallery"):
        (tmp_path / part).mkdir()
        Manifest.from_columns({"path": ["a"], "split": [part]}, root=".", levels=()).save(tmp_path / part / "items.parquet")
        np.save(tmp_path / part / "embeddings.npy", np.ones((1, 2), np.float32))
    with pytest.raises(ValueError, match="no labels.* gnd_roxford5k.pkl"):
        suprank.evaluate(tmp_path)


@pytest.fixture
def oxford(tmp_path):
    """The miniature of revisited Oxford, imported, with random embeddings of its two queries and three images."""
    root = miniatures_landmarks.revisited(tmp_path / "oxford", "roxford5k")
    manifest = BENCHMARKS["roxford5k"].read(root)[""]
    for part in ("query", "gallery"):
        (tmp_path / "e" / part).mkdir(parents=True)
        items = manifest.split(part)
        items.save(tmp_path / "e" / part / "items.parquet")
        rows = np.random.default_rng(len(items)).normal(size=(len(items), 4)).astype(np.float32)
        np.save(tmp_path / "e" / part / "embeddings.npy", rows)
    return tmp_path


def test_revisited_oxford_is_judged_by_its_own_file(oxford):
    truth = oxford / "oxford" / "gnd_roxford5k.pkl"
    command = ["evaluate", str(oxford / "e"), "--truth", str(truth), "--out", str(oxford / "r.json")]
    shown = CliRunner().invoke(app, command)
    assert shown.exit_code == 0, shown.output
    query, gallery = (np.load(oxford / "e" / part / "embeddings.npy") for part in ("query", "gallery"))
    expected = revisited(query, gallery, read_ground_truth(truth), progress=False)
    values = json.loads((oxford / "r.json").read_text())["values"]
    assert values["AP/medium"] == expected["AP/medium"]
    assert "medium" in shown.output


def test_revisited_oxford_is_judged_after_a_head(oxford):
    truth, head = oxford / "oxford" / "gnd_roxford5k.pkl", made(4, 3)
    head.save(oxford / "head")
    command = ["evaluate", str(oxford / "e"), "--truth", str(truth), "--head", str(oxford / "head")]
    shown = CliRunner().invoke(app, [*command, "--out", str(oxford / "r.json"), "-q"])
    assert shown.exit_code == 0, shown.output
    sides = [head.transform(np.load(oxford / "e" / part / "embeddings.npy")) for part in ("query", "gallery")]
    expected = revisited(*sides, read_ground_truth(truth), progress=False)
    assert json.loads((oxford / "r.json").read_text())["values"]["AP/medium"] == expected["AP/medium"]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--metric", "AP"], "--metric cannot be combined with --protocol revisited"),
        (["--level", "kind"], "has no level 'kind'"),
    ],
)
def test_a_ground_truth_goes_without_what_labels_need(oxford, arguments, complaint):
    truth = oxford / "oxford" / "gnd_roxford5k.pkl"
    command = ["evaluate", str(oxford / "e"), "--truth", str(truth), *arguments]
    refused = CliRunner().invoke(app, command)
    assert refused.exit_code == 2
    assert complaint in " ".join(refused.output.replace("│", " ").split())


def test_images_are_found_by_their_names_and_missing_ones_refused(oxford):
    gallery, truth = oxford / "e" / "gallery", oxford / "oxford" / "gnd_roxford5k.pkl"
    expected = suprank.evaluate(oxford / "e", truth=truth, per_query=True)
    items, rows = Manifest.read(gallery / "items.parquet"), np.load(gallery / "embeddings.npy")
    items.take([1, 0, 2]).save(gallery / "items.parquet")
    np.save(gallery / "embeddings.npy", rows[[1, 0, 2]])
    found = suprank.evaluate(oxford / "e", truth=truth, per_query=True)
    assert found == expected
    items.take([0, 1]).save(gallery / "items.parquet")
    np.save(gallery / "embeddings.npy", rows[:2])
    refused = CliRunner().invoke(app, ["evaluate", str(oxford / "e"), "--truth", str(truth)])
    assert refused.exit_code == 2
    assert "are not the 3 images of the ground truth, all whole" in " ".join(refused.output.replace("│", " ").split())


def test_arguments_that_would_have_no_effect_are_refused(tmp_path):
    write(tmp_path / "embeddings", "test", ["a", "a", "b"])
    np.save(tmp_path / "labels.npy", np.array([0, 0, 1]))
    file, labels = tmp_path / "embeddings" / "test" / "embeddings.npy", tmp_path / "labels.npy"
    with pytest.raises(ValueError, match=r"a folder, which has its own labels"):
        suprank.evaluate(tmp_path / "embeddings", labels)
    with pytest.raises(ValueError, match=r"gallery and gallery_labels go together"):
        suprank.evaluate(file, labels, gallery=file)
    with pytest.raises(ValueError, match=r"id_column is for files and folders"):
        suprank.evaluate(np.eye(3), np.array([0, 0, 1]), id_column="id")
    assert suprank.evaluate(file, labels, metrics=["AP"]).n_queries == 3


@pytest.mark.parametrize(
    ("name", "arguments", "complaint"),
    [
        ("labels of another length", {"labels": [0, 0, 1]}, "labels have 3 rows and embeddings 4; give one row for each"),
        ("an unknown level", {"metrics": ["AP/genus"]}, "AP/genus names no level of the labels; their levels are label0"),
        (
            "ids of another kind",
            {"gallery": np.eye(4), "gallery_labels": [0] * 4, "ids": [1, 2, 3, 4], "gallery_ids": "abcd"},
            "one type",
        ),
        ("too few ids", {"ids": ["a", "b"]}, "there are 2 ids for 4 rows of embeddings; give one for each"),
        ("another width", {"gallery": np.eye(5), "gallery_labels": [0] * 5}, "embeddings have 4 dimensions and the gallery 5"),
        ("a row of NaN", {"subject": np.full((4, 4), np.nan)}, "4 of 4 rows (0, 1, 2, 3) hold NaN"),
        ("no file", {"subject": "gone", "labels": None}, "there is no gone; name a folder of `suprank train`"),
    ],
)
def test_bad_input_is_refused_in_a_sentence_with_a_way_out(name, arguments, complaint):
    given = {"subject": np.eye(4, dtype=np.float32), "labels": [0, 0, 1, 1], "progress": False, **arguments}
    if isinstance(ids := given.get("gallery_ids"), str):
        given["gallery_ids"] = list(ids)
    with pytest.raises((ValueError, TypeError, FileNotFoundError), match=re.escape(complaint)):
        suprank.evaluate(**given)


def test_a_folder_with_a_part_that_was_not_finished_is_refused(tmp_path):
    write(tmp_path, "test", ["a", "a"])
    (tmp_path / "test" / "items.parquet").unlink()
    with pytest.raises((ValueError, FileNotFoundError), match="test"):
        suprank.evaluate(tmp_path, progress=False)
