"""suprank search: from a folder of embeddings, a run or a file to lines of JSON."""

import json
import shutil
import sys

import faiss
import numpy as np
import pytest
import torch

import suprank
from suprank.cli.main import main
from suprank.embedding import read_embedded
from tests.cli.collection import done, photographs, refused
from tests.explorer import runs
from tests.models.tiny import embedder

IMAGE = "photos/group1/class12/3.png"


@pytest.fixture(scope="module")
def embedded(tmp_path_factory):
    """A folder with photos/ of 9 classes in 3 groups, a model, its embeddings e/test, and v.npy of other vectors."""
    root = tmp_path_factory.mktemp("embedded")
    photographs(root / "photos")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        done("data", "import", "folder", "photos", "split=test", "--out", "m.parquet")
        embedder(dim=8).save("model")
        done("embed", "model", "m.parquet", "--out", "e", "--size", 32, "--resize", 0, "--device", "cpu", "--workers", 0)
    np.save(root / "v.npy", np.ones((2, 5), np.float32))
    return root


@pytest.fixture(autouse=True)
def folder(embedded, tmp_path, monkeypatch):
    """A copy of it, as the working folder."""
    faiss.omp_set_num_threads(1)
    shutil.copytree(embedded, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def lines(*arguments):
    """What `suprank search` prints, line by line."""
    return [json.loads(line) for line in done("search", *arguments).stdout.splitlines()]


def test_an_image_finds_itself_and_its_class():
    """It is read as the embeddings were, with 32 pixels, where the model itself takes 160."""
    result = done("search", "e", "--image", IMAGE, "--model", "model", "--k", 4)
    assert "e: 36 items × 8, exact search\n" in result.stderr
    found = [json.loads(line) for line in result.stdout.splitlines()]
    assert [list(line) for line in found] == [["query", "rank", "id", "path", "score", "labels"]] * 4
    assert [line["rank"] for line in found] == [1, 2, 3, 4]
    assert {line["query"] for line in found} == {IMAGE}
    first = found[0]
    assert first["path"] == "group1/class12/3.png"
    assert first["score"] == pytest.approx(1, abs=1e-5)
    assert set(first["labels"].values()) == {"class12", "group1"}
    rows = read_embedded("e", "test").embeddings
    query = rows[first["id"]]
    assert [line["id"] for line in found] == np.argsort(-(rows @ query), kind="stable")[:4].tolist()
    assert [line["score"] for line in found] == pytest.approx(np.sort(rows @ query)[::-1][:4].tolist(), abs=1e-5)


def test_an_image_is_read_in_the_scales_of_the_embeddings():
    settings = ("--size", 32, "--resize", 0, "--device", "cpu", "--workers", 0)
    done("embed", "model", "m.parquet", "--out", "s", *settings, "--scale", 1, "--scale", 0.5)
    assert lines("s", "--image", IMAGE, "--model", "model", "--k", 1)[0]["score"] == pytest.approx(1, abs=1e-5)
    said = refused("search", "e", "--queries", "s/test/embeddings.npy")
    assert "e and s/test/embeddings.npy cannot be compared: scales 1 against 1, 0.5" in said


def test_another_model_of_the_same_width_is_refused_and_an_unknown_one_is_not_checked():
    embedder(dim=8, seed=1).save("other")
    done("embed", "other", "m.parquet", "--out", "e2", "--size", 32, "--resize", 0, "--device", "cpu", "--workers", 0)
    assert "cannot be compared: model " in refused("search", "e", "--image", IMAGE, "--model", "other")
    assert "cannot be compared: model " in refused("search", "e", "--queries", "e2/test/embeddings.npy")
    np.save("q.npy", read_embedded("e2", "test").embeddings)
    noted = done("search", "e", "--queries", "q.npy", "--k", 1).stderr
    assert "whether e and q.npy are of the same model is not checked: no fingerprint is recorded for q.npy." in noted


def test_several_images_and_rows_of_a_file_are_queries_in_their_order():
    images = ["photos/group2/class20/0.png", "photos/group0/class00/1.png"]
    found = lines("e", "--image", images[0], "--image", images[1], "--model", "model", "--k", 1)
    assert [(line["query"], f"photos/{line['path']}") for line in found] == [(image, image) for image in images]
    np.save("q.npy", read_embedded("e", "test").embeddings[[30, 2]].astype(np.float16))
    found = lines("e", "--queries", "q.npy", "--k", 2)
    assert [(line["query"], line["rank"]) for line in found] == [(0, 1), (0, 2), (1, 1), (1, 2)]
    assert [line["id"] for line in found if line["rank"] == 1] == [30, 2]


def test_python_finds_what_the_command_prints(monkeypatch):
    monkeypatch.setattr("suprank.workflows.searches._AT_ONCE", 2)
    rows = np.array(read_embedded("e", "test").embeddings[:5])
    np.save("q.npy", rows)
    expected = lines("e", "--queries", "q.npy", "--k", 3, "--where", "class=class01", "--where", "split=test")
    assert list(suprank.search("e", rows, k=3, where={"class": ["class01"], "split": ["test"]})) == expected
    assert len(expected) == 15
    assert {line["labels"]["class"] for line in expected} == {"class01"}


@pytest.mark.parametrize("kind", ["exact", "ivf", "hnsw"])
def test_a_filter_keeps_some_names_of_each_level(kind):
    query = ("--queries", "e/test/embeddings.npy", "--k", 40, "--kind", kind)
    chosen = lines("e", *query, "--where", "class=class01", "--where", "label_class=class22")
    assert len(chosen) == 36 * 8
    assert {line["labels"]["class"] for line in chosen} == {"class01", "class22"}
    assert lines("e", *query, "--where", "class=class01", "--where", "group=group2") == []


def test_the_recall_is_said_first_and_the_index_is_kept_beside_the_embeddings(folder):
    queries = ("--queries", "e/test/embeddings.npy", "--k", 1)
    built = done("search", "e", *queries, "--kind", "ivf", "--recall", 0.9)
    assert "e: 36 items × 8, approximate search (ivf, finds 100.0% of the 10 nearest)\n" in built.stderr
    assert "36/36" in built.stderr
    (vectors,) = (folder / "e" / "index").glob("ivf-*.faiss")
    before = vectors.stat().st_mtime_ns
    again = done("search", "e", *queries, "--kind", "ivf")
    assert "36/36" not in again.stderr
    assert again.stdout == built.stdout
    assert vectors.stat().st_mtime_ns == before
    embedder(dim=8, seed=1).save("other")
    done("embed", "other", "m.parquet", "--out", "f", "--size", 32, "--resize", 0, "--device", "cpu", "--workers", 0)
    shutil.rmtree("e/test")
    shutil.move("f/test", "e/test")
    assert [line["id"] for line in lines("e", *queries, "--kind", "ivf")] == list(range(36)), "other embeddings, another index"


def test_labels_and_paths_are_printed_as_they_are_written(folder):
    (folder / "größe").mkdir()
    np.save("größe/v.npy", np.eye(3, 8, dtype=np.float32))
    (folder / "n.csv").write_text('path,split,label_Art\nä/鳥.jpg,test,Häher\n<b>.jpg,test,"a""b"\nc.jpg,test,x=y\n', "utf-8")
    items = ("größe/v.npy", "--labels", "n.csv", "--queries", "größe/v.npy", "--k", 1)
    result = done("search", *items)
    assert '"path": "ä/鳥.jpg"' in result.stdout
    assert [json.loads(line)["labels"]["Art"] for line in result.stdout.splitlines()] == ["Häher", 'a"b', "x=y"]
    assert [line["id"] for line in lines(*items, "--where", "Art=x=y")] == [2, 2, 2]


def test_a_file_without_a_manifest_has_no_paths_and_may_be_of_torch():
    torch.save(torch.eye(3, 8), "v.pt")
    np.save("q.npy", np.eye(3, 8)[1:2])
    expected = {"query": 0, "rank": 1, "id": 1, "path": None, "score": 1.0, "labels": {}}
    assert lines("v.pt", "--queries", "q.npy", "--k", 1) == [expected]


def test_a_run_is_its_embeddings_and_its_model_and_a_part_is_one_of_them(folder):
    run = runs.run(folder / "run", runs.collection(folder / "pictures"))
    assert "run/embeddings/test" not in str(folder)
    np.save("q.npy", read_embedded(run / "embeddings", "test").embeddings[3:4])
    assert [line["id"] for line in lines("run", "--queries", "q.npy", "--k", 1)] == [3]
    (run / "model").mkdir()  # empty, as after an interrupted copy
    assert "run has neither a folder “model” nor “best”" in refused("search", "run", "--image", IMAGE)
    shutil.copytree("e/test", "e/query")
    shutil.copytree("e/test", "e/gallery")
    np.save("e/query/embeddings.npy", -np.load("e/test/embeddings.npy"))
    np.save("q.npy", -np.load("e/test/embeddings.npy")[7:8])
    (of_part,), (of_gallery,) = (lines(place, "--queries", "q.npy", "--k", 1) for place in ("e/query", "e"))
    assert (of_part["id"], of_part["score"]) == (7, pytest.approx(1))
    assert of_gallery["score"] < 0.5


def test_where_names_that_no_item_has_are_refused_with_near_ones():
    query = ("search", "e", "--queries", "e/test/embeddings.npy", "--where")
    assert "e has no item with class=clas12; the nearest names are class12" in refused(*query, "class=clas12")
    assert "e has no item with split=train; the nearest names are test." in refused(*query, "split=train")
    assert "e has no level 'order'; choose from class, group, split." in refused(*query, "order=x")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("none", "--queries", "v.npy"), "there is no none; name a folder"),
        (("photos", "--queries", "v.npy"), "photos has no embeddings; name a folder of `suprank train`"),
        (
            ("e", "--queries", "e/test/embeddings.npy", "--kind", "lsh"),
            "there is no index kind 'lsh'; choose from auto, exact, ivf, hnsw.",
        ),
        (("e", "--queries", "v.npy", "--labels", "m.parquet"), "e is a folder, which has its own labels"),
        (("v.npy", "--queries", "v.npy", "--labels", "m.parquet"), "m.parquet has 36 rows and embeddings (v.npy) has 2"),
        (("v.npy", "--queries", "v.npy", "--where", "class=x"), "v.npy has no labels to filter by"),
        (("e", "--queries", "e/test/embeddings.npy", "--recall", "95"), "recall=95.0"),
        (("e",), "give what to search for, either images or queries"),
        (("e", "--queries", "v.npy", "--image", "x.png", "--model", "model"), "either images or queries"),
        (("e", "--image", IMAGE), "e has embeddings, but no model"),
        (("e", "--image", "x.png", "--model", "model"), "there is no image x.png"),
        (("e", "--image", "m.parquet", "--model", "model"), "m.parquet"),
        (("e", "--image", IMAGE, "--model", "none/model"), "none/model is not a folder"),
        (("e", "--queries", "v.npy"), "shape [1, 5] and type float32, but the items have 8 dimensions"),
        (("e", "--queries", "none.npy"), "there is no such file"),
        (("e", "--queries", "v.npy", "--where", "order"), "'order' is not LEVEL=NAME"),
        (("e", "--queries", "v.npy", "--k", "0"), "--k"),
        (("e", "--upload"), "needs the collection to upload to"),
        (("e", "--server", "http://localhost/b", "--upload", "--kind", "ivf"), "a server chooses the kind"),
        (("e", "--server", "ftp://localhost/b", "--upload"), "is not the address of a collection"),
        (("e", "--server", "http://127.0.0.1:9/b", "--upload"), "no Milvus answers at http://127.0.0.1:9"),
    ],
)
def test_wrong_arguments_are_refused_in_a_line_and_nothing_is_written(folder, arguments, message):
    before = sorted(folder.rglob("*"))
    assert message in refused("search", *arguments)
    assert sorted(folder.rglob("*")) == before


def test_a_missing_client_is_named_with_its_extra(monkeypatch, capsys):
    for name in ["pymilvus", *(name for name in sys.modules if name.startswith("pymilvus."))]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, "suprank.explorer.milvus", raising=False)
    monkeypatch.setattr(sys, "argv", ["suprank", "search", "e", "--server", "http://h/b", "--upload"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 1
    assert capsys.readouterr().err == 'suprank: this needs pymilvus, which is not installed; pip install "suprank[servers]"\n'
