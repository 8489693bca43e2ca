"""--head: one head in every command that reads embeddings, and the same numbers by every way."""

import csv
import json
import shutil
from pathlib import Path

import faiss
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import suprank
from suprank.data import Manifest
from suprank.embedding import read_embedded
from suprank.evaluation import Report
from suprank.evaluation.provenance import Provenance
from suprank.explorer.images import read_picture
from suprank.explorer.report.header import header
from suprank.models import Embedder, Head
from suprank.workflows.explorers import open_explorer
from tests.cli.collection import done, invoke, photographs, refused
from tests.models.test_head import made as head
from tests.models.tiny import embedder

FAST = ("--size", 32, "--resize", 0, "--batch-size", 5, "--workers", 0, "--device", "cpu")


@pytest.fixture(scope="module")
def collection(tmp_path_factory):
    """photos/ of 9 classes in 3 groups, m.parquet, a model of width 8, a head from 8 to 6, and the embeddings before/ and
    after/ it."""
    root = tmp_path_factory.mktemp("head")
    photographs(root / "photos")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        done("data", "import", "folder", "photos", "split=test", "--out", "m.parquet")
        embedder(dim=8).save("model")
        head(8, 6).save("head")
        head(8, 8, seed=1).save("square")
        done("embed", "model", "m.parquet", "--out", "before", *FAST)
        done("embed", "model", "m.parquet", "--out", "after", *FAST, "--head", "head")
    return root


@pytest.fixture(autouse=True)
def folder(collection, tmp_path, monkeypatch):
    """A copy of it, as the working folder."""
    faiss.omp_set_num_threads(1)
    shutil.copytree(collection, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def metrics(*arguments):
    """The metrics that `suprank evaluate` saves."""
    done("evaluate", *arguments, "--out", "r.json", "--device", "cpu", "-q")
    return dict(Report.load("r.json"))


def compared(metric):
    """Both values of a metric in the comparison that `--comparison c.csv` saves."""
    with Path("c.csv").open(newline="") as file:
        rows = {f"{row['metric']}/{row['level']}".rstrip("/"): row for row in csv.DictReader(file)}
    return [float(rows[metric][side]) for side in ("own", "other")]


def files(name="before"):
    """The embeddings of a folder as a .npy and a .parquet file, with labels."""
    part = read_embedded(name, "test")
    np.save("rows.npy", np.asarray(part.embeddings))
    pq.write_table(pa.table({"embedding": [*np.asarray(part.embeddings)]}), "rows.parquet")
    pq.write_table(pa.table({"label": part.items.table["label_class"].cast(pa.string())}), "labels.parquet")
    return np.asarray(part.embeddings)


def test_every_way_through_a_head_gives_the_same_numbers(folder):
    """Head on the model's device or on stored embeddings, in one model, or by the exported matrix."""
    by_hand = Head.load("head").transform(np.load("before/test/embeddings.npy"))
    np.testing.assert_allclose(np.load("after/test/embeddings.npy"), by_hand, atol=1e-6)
    output = done("models", "create", "model", "--head", "head", "--out", "adapted").stdout
    assert output == "adapted: model, 0.4 M parameters, embeddings of width 6\n"
    done("embed", "adapted", "m.parquet", "--out", "by-model", *FAST)
    np.testing.assert_array_equal(np.load("by-model/test/embeddings.npy"), np.load("after/test/embeddings.npy"))
    expected = metrics("after")
    assert metrics("by-model") == metrics("before", "--head", "head") == expected
    assert expected != metrics("before")
    files()
    for file in ("rows.npy", "rows.parquet"):
        by_file = metrics(file, "--labels", "labels.parquet", "--head", "head")
        assert by_file["AP"] == expected["AP/class"]
    labels = np.unique(pq.read_table("labels.parquet")["label"].to_pylist(), return_inverse=True)[1]
    assert suprank.evaluate(np.load("rows.npy"), labels, head="head")["AP"] == expected["AP/class"]
    done("models", "export", "head", "--out", "head.npz")
    x = np.load("rows.npy")
    with np.load("head.npz") as matrix:
        x = x / np.linalg.norm(x, axis=1, keepdims=True)
        np.save("product.npy", x @ matrix["weight"].T + matrix["bias"])
    assert metrics("product.npy", "--labels", "labels.parquet")["AP"] == expected["AP/class"]


def test_rounding_to_half_comes_before_the_head_or_after_it():
    done("embed", "model", "m.parquet", "--out", "half", *FAST, "--dtype", "float16")
    done("embed", "model", "m.parquet", "--out", "half-after", *FAST, "--dtype", "float16", "--head", "head")
    full, loaded = np.load("after/test/embeddings.npy"), Head.load("head")
    for found in (loaded.transform(np.load("half/test/embeddings.npy")), np.load("half-after/test/embeddings.npy")):
        assert 0 < np.abs(found - full).max() < 3e-3


def test_a_folder_knows_its_head_and_refuses_another():
    record = json.loads(Path("after/test/run.json").read_text())
    assert record["head"] == Head.load("head").fingerprint() == Provenance.read("after", "test").head
    assert f"with head {record['head'][:12]}, 32 pixels" in Provenance.read("after", "test").summary
    assert "head is None and was" in refused("embed", "model", "m.parquet", "--out", "after", *FAST)
    other = refused("embed", "model", "m.parquet", "--out", "after", *FAST, "--head", "square")
    assert "after/test has the embeddings of another run" in other
    assert "head is " in other
    done("embed", "model", "m.parquet", "--out", "after", *FAST, "--head", "head")
    manifest = Manifest.read("m.parquet")
    manifest.with_columns(split=["query"] * len(manifest)).save("queries.parquet")
    mixed = refused("embed", "model", "queries.parquet", "--out", "after", *FAST, "--head", "square")
    assert "after/test was embedded with another model and head" in mixed


def test_a_head_of_another_width_is_refused_before_any_image_is_read(folder):
    shutil.rmtree(folder / "photos")
    head(7, 6).save("narrow")
    message = refused("embed", "model", "m.parquet", "--out", "e", *FAST, "--head", "narrow")
    assert "the head takes embeddings of width 7, but those of this model (test_resnet) have width 8" in message
    assert not (folder / "e").exists()


def test_a_head_is_not_applied_twice():
    files("after")
    already = "these embeddings already went through this head; leave out the head, or embed without one"
    assert already in refused("evaluate", "after", "--head", "head")
    assert already in refused("evaluate", "after/test/embeddings.npy", "--labels", "labels.parquet", "--head", "head")
    assert already in refused("search", "after", "--head", "head", "--queries", "rows.npy")
    assert already in refused("explore", "after", "--head", "head", "--no-browser", "--port", 0)
    assert already in refused("report", "after", "--head", "head")
    assert "went through another head" in refused("evaluate", "after", "--head", "square")
    message = refused("evaluate", "rows.npy", "--labels", "labels.parquet", "--head", "head")
    assert "rows.npy): these embeddings have width 6, but the head takes 8; give those of the model" in message
    assert "Have they gone through this head already?" in message
    done("models", "create", "model", "--head", "head", "--out", "adapted")
    stacked = refused("embed", "adapted", "m.parquet", "--out", "e", "--head", "head", *FAST)
    assert "already has a head, and heads do not stack" in stacked


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nothing", "nothing is not the folder of a head: it does not exist; `suprank adapt` writes one."),
        ("model", "model is not the folder of a head: it is that of a model"),
        ("before", "before is not the folder of a head: it has no head.json"),
        ("damaged", "damaged/head.safetensors is not the file that head.json describes"),
    ],
)
def test_what_is_no_head_is_refused_by_every_command(folder, name, message):
    head(8, 6).save("damaged")
    (folder / "damaged/head.safetensors").write_bytes(b"")
    for command in (
        ("embed", "model", "m.parquet", "--out", "e", *FAST),
        ("evaluate", "before"),
        ("search", "before", "--queries", "before/test/embeddings.npy"),
        ("explore", "before", "--no-browser", "--port", 0),
        ("report", "before"),
    ):
        assert message in refused(*command, "--head", name)
    assert message in refused("models", "create", "model", "--head", name, "--out", "m")


def test_a_head_on_images_that_are_read_differently_gives_a_warning():
    trained = head(8, 6)
    trained.training_record = {"source": {"made_by": Provenance.read("before", "test").asdict()}}
    trained.save("known")
    warning = "the head was trained on embeddings of images that were read differently: image size 48 against 32."
    other = ("--size", 48, *FAST[2:], "--head", "known")
    assert warning in done("embed", "model", "m.parquet", "--out", "e", *other).stderr
    done("embed", "model", "m.parquet", "--out", "larger", *other[:-2])
    assert done("evaluate", "larger", "--head", "known").stderr.count(warning) == 1
    assert "read differently" not in done("embed", "model", "m.parquet", "--out", "same", *FAST, "--head", "known").stderr
    assert "read differently" not in done("evaluate", "before", "--head", "known").stderr


def test_adapt_records_how_the_embeddings_of_a_folder_were_made():
    done("adapt", "before", "steps=2", "batch=8", "dim=6", "--out", "trained", "--device", "cpu")
    source = Head.load("trained").training_record["source"]
    assert Provenance.from_dict(source["made_by"]) == Provenance.read("before", "test")
    assert "read differently" not in done("evaluate", "before", "--head", "trained").stderr


def test_a_head_gives_a_timm_backbone_the_images_that_the_head_was_trained_on():
    backbone = embedder(dim=None)
    torch.save(backbone.backbone.net.state_dict(), "w.pth")
    trained = head(backbone.dim, 6)
    made_by = Provenance("test_resnet", 0, size=32, resize=40, squash=True, interpolation="bicubic")
    trained.training_record = {"source": {"made_by": made_by.asdict()}}
    trained.save("known")
    done("models", "create", "test_resnet", "--head", "known", "--weights", "w.pth", "--out", "adapted")
    saved = Embedder.load("adapted").input
    assert (saved.size, saved.resize, saved.squash, saved.interpolation) == ((32, 32), 40, True, "bicubic")


def trained_on(folder, name="trained", **changed):
    """A head of width 8 whose record says that it was trained on the embeddings in a folder."""
    trained = head(8, 6)
    source = {**Provenance.read(folder, "test").asdict(), **changed}
    trained.training_record = {"source": {"backbone": source["backbone"], "made_by": source}}
    trained.save(name)


def test_a_head_of_another_model_with_the_same_width_is_refused_by_every_command():
    embedder(dim=8, seed=1).save("other-model")
    done("embed", "other-model", "m.parquet", "--out", "other", *FAST)
    prints = [Provenance.read(name, "test").fingerprint[:12] for name in ("other", "before")]
    trained_on("other")
    for command in (
        ("evaluate", "before"),
        ("search", "before", "--queries", "before/test/embeddings.npy"),
        ("embed", "model", "m.parquet", "--out", "e", *FAST),
        ("explore", "before", "--no-browser", "--port", 0),
        ("report", "before"),
    ):
        said = refused(*command, "--head", "trained")
        assert "the embeddings that the head was trained on and " in said
        assert f"cannot be compared: model {prints[0]} against {prints[1]}" in said
    assert "cannot be compared: model" in refused("models", "create", "model", "--head", "trained", "--out", "m")
    trained_on("before", backbone="test_vit", fingerprint=None)  # as an older suprank recorded it
    assert "cannot be compared: backbone test_vit against test_resnet" in refused("evaluate", "before", "--head", "trained")
    trained_on("before")
    for fits in (("evaluate", "before", "--head", "trained"), ("models", "create", "model", "--head", "trained", "--out", "m")):
        assert "not checked" not in done(*fits).stderr


def test_a_head_of_embeddings_without_a_fingerprint_is_allowed_and_called_not_checked(folder):
    trained_on("before", fingerprint=None)
    evaluated = ("evaluate", "before", "--head", "trained")
    assert "is not checked: no fingerprint is recorded for the embeddings that the head" in done(*evaluated).stderr
    trained_on("before")
    record = json.loads((folder / "before/test/run.json").read_text())
    del record["fingerprint"]
    (folder / "before/test/run.json").write_text(json.dumps(record))
    assert "is not checked: no fingerprint is recorded for before" in done(*evaluated).stderr


def test_adapt_records_the_model_of_its_embeddings_and_refuses_a_test_set_of_another():
    embedder(dim=8, seed=1).save("other-model")
    done("embed", "other-model", "m.parquet", "--out", "other", *FAST)
    assert "before and other cannot be compared: model " in refused("adapt", "before", "--test", "other", "--out", "h")
    options = ("steps=2", "batch=8", "--device", "cpu")
    done("adapt", "before", "--out", "h", *options)
    recorded = Head.load("h").training_record["source"]["made_by"]["fingerprint"]
    assert recorded == Embedder.load("model").network_fingerprint()
    assert "cannot be compared: model " in refused("evaluate", "other", "--head", "h")


def test_the_network_of_a_model_is_the_same_with_a_head_and_with_other_image_settings():
    plain = Embedder.load("model")
    read_otherwise = Embedder.load("model", settings={"image_size": (48, 48), "resize": 50, "precision": "bf16"})
    prints = {one.network_fingerprint() for one in (plain, plain.with_head(head(8, 6)), read_otherwise)}
    assert len(prints) == 1
    assert embedder(dim=8, seed=1).network_fingerprint() not in prints


def test_queries_and_gallery_of_two_models_in_files_are_refused():
    embedder(dim=8, seed=1).save("other-model")
    done("embed", "other-model", "m.parquet", "--out", "other", *FAST)
    files()
    side = "test/embeddings.npy"
    message = refused(
        *("evaluate", f"before/{side}", "--labels", "labels.parquet"),
        *("--gallery", f"other/{side}", "--gallery-labels", "labels.parquet"),
    )
    assert f"before/{side} and other/{side} cannot be compared: model " in message


# Compared with the embeddings before it


def test_the_same_embeddings_are_compared_before_and_after_a_head():
    output = done("evaluate", "before", "--head", "head", "--against", "before", "--comparison", "c.csv").stdout
    assert "before with head" in output
    assert "difference: before with head − before, its interval without correction. p: paired" in " ".join(output.split())
    assert "before with head: test_resnet" in output
    assert f"with head {Head.load('head').fingerprint()[:12]}, 32 pixels" in " ".join(output.split())
    assert compared("AP/class") == pytest.approx([metrics("after")["AP/class"], metrics("before")["AP/class"]])
    files()
    output = done("evaluate", "rows.npy", "--labels", "labels.parquet", "--head", "head", "--against", "rows.npy").stdout
    assert "difference: rows.npy with head − rows.npy, its interval" in output
    assert "are the same; name another one" in refused("evaluate", "before", "--against", "before")


def test_queries_and_gallery_in_files_both_go_through_the_head_and_what_they_are_compared_with_does_not():
    rows = files()
    labels = pq.read_table("labels.parquet")
    for name, some in (("q", slice(0, None, 2)), ("g", slice(1, None, 2))):
        np.save(f"{name}.npy", rows[some])
        pq.write_table(labels.take(np.arange(36)[some]), f"{name}.parquet")
    sides = ("--labels", "q.parquet", "--gallery", "g.npy", "--gallery-labels", "g.parquet")
    transformed = [Head.load("head").transform(np.load(f"{name}.npy")) for name in ("q", "g")]
    codes = np.unique(labels["label"].to_pylist(), return_inverse=True)[1]
    by_hand = suprank.evaluate(transformed[0], codes[::2], transformed[1], codes[1::2])["AP"]
    assert metrics("q.npy", *sides, "--head", "head")["AP"] == by_hand
    done("evaluate", "q.npy", *sides, "--head", "head", "--against", "q.npy", "--comparison", "c.csv")
    assert compared("AP") == pytest.approx([by_hand, metrics("q.npy", *sides)["AP"]])


def test_a_folder_with_a_head_compares_with_one_before_it_without_a_warning():
    result = done("evaluate", "after", "--against", "before")
    assert "differ in more than training" not in result.output
    result = done("evaluate", "before", "--head", "square", "--against", "after")
    assert "difference: before with head − after, its interval" in result.stdout


def test_a_report_says_which_head_it_is_of_and_the_gap_is_measured_after_it():
    fingerprint = Head.load("head").fingerprint()
    metrics("before", "--head", "head")
    settings = Report.load("r.json").settings
    assert settings["head"] == settings["embeddings"]["head"] == fingerprint
    metrics("before")
    assert "head" not in Report.load("r.json").settings
    gaps = []
    for subject in (("after",), ("before", "--head", "head"), ("before",)):
        done("evaluate", *subject, "--gap", 12, "--out", "gap.json", "--device", "cpu", "-q")
        gaps.append(json.loads(Path("gap.json").read_text())["gaps"])
    assert gaps[0] == gaps[1] != gaps[2]


# Search


def test_items_and_queries_go_through_the_same_head():
    done("models", "create", "model", "--head", "head", "--out", "adapted")
    files()
    paths = read_embedded("before", "test").items.paths.to_pylist()
    row = next(row for row, path in enumerate(paths) if path.endswith("12/3.png"))
    image = ("--image", "photos/group1/class12/3.png")
    found = []
    for way in (
        ("before", "--head", "head", *image, "--model", "model"),
        ("before", "--head", "head", *image, "--model", "adapted"),
        ("after", *image, "--model", "adapted"),
        ("before", "--head", "head", "--queries", "rows.npy"),
        ("before", "--head", "head", "--queries", "after/test/embeddings.npy"),
        ("after", "--queries", "after/test/embeddings.npy"),
    ):
        lines = [json.loads(line) for line in done("search", *way, "--k", 3).stdout.splitlines()]
        found.append([(line["id"], round(line["score"], 4)) for line in lines if line["query"] in (row, image[1])])
    assert found[0][0] == (row, 1.0)
    assert all(one == found[0] for one in found)
    known = Head.load("head").fingerprint()[:12]
    other = refused("search", "after", "--queries", "before/test/embeddings.npy")
    assert f"cannot be compared: head {known} against none" in other
    assert f"cannot be compared: head {known} against none" in refused("search", "after", *image, "--model", "model")


def test_an_uploaded_image_goes_through_model_and_head():
    explorer = open_explorer(["before", "before"], model="model", device="cpu", head="head")
    ours, plain = explorer.runs
    assert (ours.data.name, plain.data.name) == ("before with head", "before")
    np.testing.assert_allclose(ours.data.items.embeddings, np.load("after/test/embeddings.npy"), atol=1e-6)
    assert plain.data.items.embeddings.dim == 8
    picture = read_picture(ours.data.items, 5)
    expected = embedder(dim=8).with_head(head(8, 6))
    expected.save("adapted")
    uploaded = ours.embed(picture)
    assert uploaded.shape == (6,)
    np.testing.assert_allclose(Head.load("head").transform(plain.embed(picture)[None])[0], uploaded, atol=1e-6)
    by_model = open_explorer(["after"], model="adapted", device="cpu").runs[0]
    np.testing.assert_array_equal(by_model.embed(picture), uploaded)
    both = open_explorer(["before"], model="adapted", device="cpu", head="head").runs[0]
    np.testing.assert_array_equal(both.embed(picture), uploaded)
    with pytest.raises(ValueError, match=r"the gallery and the model model cannot be compared: head \w+ against none"):
        open_explorer(["after"], model="model", device="cpu").runs[0].embed(picture)


def test_an_uploaded_image_is_read_as_the_gallery_was_and_embedded_by_no_other_model():
    embedder(dim=8, seed=1).save("other-model")
    run = open_explorer(["before"], model="model", device="cpu").runs[0]
    picture = read_picture(run.data.items, 5)
    np.testing.assert_allclose(run.embed(picture), run.data.items.embeddings[5], atol=1e-5)
    with pytest.raises(ValueError, match="the gallery and the model other-model cannot be compared: model "):
        open_explorer(["before"], model="other-model", device="cpu").runs[0].embed(picture)


def test_the_index_of_a_large_gallery_is_kept_for_each_head(folder, monkeypatch):
    monkeypatch.setattr("suprank.explorer.index.resolve_kind", lambda kind, rows, dim: "ivf")
    open_explorer(["before", "before"], device="cpu", head="head")
    indexes = sorted(path.name for path in (folder / "before").glob("index*"))
    assert indexes == ["index", f"index-{Head.load('head').fingerprint()[:12]}"]


def test_a_report_page_is_of_the_embeddings_before_and_after_a_head(monkeypatch):
    shown = []
    monkeypatch.setattr("suprank.explorer.report.report_page", lambda *data, **options: shown.extend(data) or "page")
    done("report", "before", "--head", "head", "--against", "before", "--out", "r.html", "--device", "cpu")
    assert [(data.name, data.queries.embeddings.dim) for data in shown] == [("before with head", 6), ("before", 8)]
    np.testing.assert_allclose(shown[0].queries.embeddings, np.load("after/test/embeddings.npy"), atol=1e-6)
    column = next(column for column in header(shown).columns if column.name == "Head")
    assert (column.values, column.differs) == ((Head.load("head").fingerprint()[:12], "none"), False)


# Export


def test_a_head_is_exported_and_a_model_is_no_matrix(folder):
    assert done("models", "export", "head", "--out", "h.npz").stdout == "h.npz: gives the embeddings of head\n"
    head(8, 6, hidden=4).save("deep")
    assert "has an MLP of width 4, so that it is no matrix" in refused("models", "export", "deep", "--out", "d.npz")
    assert "model is a model, and only a head is a matrix" in refused("models", "export", "model", "--out", "m.npz")
    assert "must end in .onnx or .pt2, or for a head in .npz" in refused("models", "export", "head", "--out", "head.csv")
    assert not [*folder.glob("*d.npz"), *folder.glob("*m.npz")]


def test_help_names_the_option():
    for command in (("embed",), ("evaluate",), ("search",), ("explore",), ("report",)):
        words = " ".join(invoke(*command, "--help").output.split())
        assert "A head of `suprank adapt` that the embeddings go through." in words
