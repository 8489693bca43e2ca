"""suprank index: the verbs of a script, on a folder and on servers in their embedded modes."""

import json
import shutil
import sys

import faiss
import numpy as np
import pytest

from suprank.cli.main import main
from suprank.embedding import read_embedded
from suprank.explorer.index.milvus import MilvusIndex
from tests.cli.collection import done, invoke, photographs, refused
from tests.models.tiny import embedder

IMAGES = ("--size", 32, "--resize", 0, "--device", "cpu")


@pytest.fixture(scope="module")
def embedded(tmp_path_factory):
    """A folder with photos/ of 9 classes in 3 groups, a model, its embeddings e/test, and an index of them, built/."""
    root = tmp_path_factory.mktemp("embedded")
    photographs(root / "photos")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        done("data", "import", "folder", "--root", "photos", "--split", "test", "--out", "m.parquet")
        embedder(dim=8).save("model")
        done("embed", "--model", "model", "--manifest", "m.parquet", "--out", "e", *IMAGES, "--workers", 0)
        faiss.omp_set_num_threads(1)
        done("index", "build", "e", "--out", "built")
    return root


@pytest.fixture(autouse=True)
def folder(embedded, tmp_path, monkeypatch):
    """A copy of it, as the working folder."""
    faiss.omp_set_num_threads(1)
    shutil.copytree(embedded, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def lines(*arguments):
    """What `suprank index search` prints, line by line."""
    return [json.loads(line) for line in done("index", "search", *arguments).stdout.splitlines()]


def info(index="i"):
    return json.loads(done("index", "info", index).stdout)


def test_an_image_finds_itself_and_its_class(folder):
    built = done("index", "build", "e", "--out", "i")
    assert built.stdout.startswith("i: 36 items × 8, exact, 0.")
    assert "36/36" in built.stderr
    image = "photos/group1/class12/3.png"
    found = lines("i", "--image", image, "--model", "model", *IMAGES, "--k", 4)
    assert [list(line) for line in found] == [["query", "rank", "id", "path", "score", "labels"]] * 4
    assert [line["rank"] for line in found] == [1, 2, 3, 4]
    assert {line["query"] for line in found} == {image}
    first = found[0]
    assert first["path"] == "group1/class12/3.png"
    assert first["score"] == pytest.approx(1, abs=1e-5)
    assert set(first["labels"].values()) == {"class12", "group1"}
    rows = read_embedded("e", "test").embeddings
    query = rows[first["id"]]
    assert [line["id"] for line in found] == np.argsort(-(rows @ query), kind="stable")[:4].tolist()
    assert [line["score"] for line in found] == pytest.approx(np.sort(rows @ query)[::-1][:4].tolist(), abs=1e-5)


def test_an_image_is_read_as_those_of_the_index_were_and_finds_itself(folder):
    """With the model's own 64 pixels, another crop, it found itself at 0.724."""
    image = ("--image", "photos/group1/class12/3.png", "--model", "model", "--device", "cpu", "--k", 1)
    (found,) = lines("built", *image)
    assert (found["path"], found["score"]) == ("group1/class12/3.png", pytest.approx(1, abs=1e-5))
    said = refused("index", "search", "built", *image, "--size", 48)
    assert "built and the model model cannot be compared: image size 32 against 48; take the model" in said
    done("embed", "model", "m.parquet", "--out", "scales", *IMAGES, "--scale", 1, "--scale", 0.5, "--workers", 0)
    done("index", "build", "scales", "--out", "s")
    assert lines("s", *image)[0]["score"] == pytest.approx(1, abs=1e-5)
    assert "built and scales cannot be compared: scales 1 against 1, 0.5" in refused("index", "add", "built", "scales")


def test_another_model_of_the_same_width_is_refused(folder):
    embedder(dim=8, seed=1).save("other")
    done("embed", "other", "m.parquet", "--out", "e2", *IMAGES, "--workers", 0)
    against = "cannot be compared: model "
    assert against in refused(
        *("index", "search", "built", "--image", "photos/group1/class12/3.png", "--model", "other"), *IMAGES
    )
    assert against in refused("index", "search", "built", "--embeddings", "e2/test/embeddings.npy")
    assert against in refused("index", "add", "built", "e2")
    done("index", "copy", "built", "copied")
    assert against in refused("index", "add", "copied", "e2")
    np.save("q.npy", read_embedded("e2", "test").embeddings)
    noted = done("index", "search", "built", "--embeddings", "q.npy", "--k", 1).stderr
    assert "whether built and q.npy are of the same model is not checked: no fingerprint is recorded for q.npy." in noted


def test_several_images_and_rows_of_a_file_are_queries_in_their_order(folder):
    images = ["photos/group2/class20/0.png", "photos/group0/class00/1.png"]
    found = lines("built", "--image", images[0], "--image", images[1], "--model", "model", *IMAGES, "--k", 1)
    assert [(line["query"], f"photos/{line['path']}") for line in found] == [(image, image) for image in images]
    np.save("q.npy", read_embedded("e", "test").embeddings[[30, 2]].astype(np.float16))
    found = lines("built", "--embeddings", "q.npy", "--k", 2)
    assert [(line["query"], line["rank"]) for line in found] == [(0, 1), (0, 2), (1, 1), (1, 2)]
    assert [line["id"] for line in found if line["rank"] == 1] == [30, 2]


@pytest.mark.parametrize("kind", ["exact", "ivf", "hnsw", "qdrant", "milvus"])
def test_a_collection_grows_and_shrinks_by_the_same_commands_wherever_it_is(folder, kind):
    address, options = "i", ("--kind", kind)
    if kind in ("qdrant", "milvus"):
        pytest.importorskip("qdrant_client" if kind == "qdrant" else "milvus_lite")
        address, options = f"{kind}+file://{folder}/{'q' if kind == 'qdrant' else 'm.db'}/birds", ()
    rows = read_embedded("e", "test").embeddings
    done("index", "build", "e/test", "--out", address, *options, "--quiet")
    np.save("more.npy", -rows[:2])
    output = done("index", "add", address, "more.npy", "--quiet").stdout
    assert output == f"{address}: added 2 items with ids 36 to 37; it now has 38\n"
    np.save("q.npy", -rows[:1])
    (first,) = lines(address, "--embeddings", "q.npy", "--k", 1)
    assert first == {"query": 0, "rank": 1, "id": 36, "path": None, "score": pytest.approx(1, abs=0.02), "labels": {}}
    assert done("index", "remove", address, "--ids", "36,37").stdout == f"{address}: removed 2 items; it now has 36\n"
    fine, coarse = info(address)["levels"]
    assert "removed 12 items; it now has 24" in done("index", "remove", address, "--where", f"{coarse}=group1").stdout
    np.save("q.npy", rows[:3])
    found = lines(address, "--embeddings", "q.npy", "--k", 40)
    assert len(found) == 3 * 24
    assert {line["labels"][coarse] for line in found} == {"group0", "group2"}
    chosen = lines(address, "--embeddings", "q.npy", "--where", f"{fine}=class01", "--where", f"label_{fine}=class22")
    assert len(chosen) == 3 * 8
    assert {line["labels"][fine] for line in chosen} == {"class01", "class22"}
    assert info(address)["items"] == 24


def test_segments_and_removed_items_are_compacted_on_demand(folder):
    np.save("many.npy", np.random.default_rng(0).normal(size=(1100, 8)).astype(np.float32))
    np.save("one.npy", np.full((1, 8), 0.5, np.float32))
    done("index", "build", "many.npy", "--out", "i", "--quiet")
    done("index", "add", "i", "one.npy", "--quiet")
    done("index", "remove", "i", "--ids", "7,8")
    assert (info()["segments"], info()["removed"], info()["items"]) == (2, 2, 1099)
    before = lines("i", "--embeddings", "one.npy", "--k", 3)
    output = done("index", "compact", "i").stdout
    assert output.startswith("i: 2 segments with 2 removed items → 1 segment of 1,099, 0.")
    assert (info()["segments"], info()["removed"], info()["items"]) == (1, 0, 1099)
    assert lines("i", "--embeddings", "one.npy", "--k", 3) == before
    assert done("index", "compact", "i").stdout.startswith("i is already compact: 1 segment of 1,099, 0.")
    assert "a server compacts its collections itself" in refused("index", "compact", "qdrant://localhost:6333/birds")
    assert "none holds no index" in refused("index", "compact", "none")


def test_an_index_is_copied_to_a_server_and_back(folder):
    address = f"qdrant+file://{folder}/q/birds"
    copied = done("index", "copy", "built", address)
    assert copied.stdout == f"{address}: 36 items × 8, qdrant; 100.0% of the 10 best are those of built\n"
    assert "36/36" in copied.stderr
    assert "100.0% of the 10 best are those of qdrant" in done("index", "copy", address, "back", "-q").stdout
    query = ("--embeddings", "e/test/embeddings.npy", "--k", 3)
    for line, theirs, ours in zip(lines("back", *query), lines(address, *query), lines("built", *query), strict=True):
        assert line.pop("score") == pytest.approx(ours.pop("score"), abs=1e-5)
        assert line == ours == {key: value for key, value in theirs.items() if key != "score"}
    assert f"{address} already exists" in refused("index", "copy", "built", address)
    assert "back already holds an index" in refused("index", "copy", address, "back")
    assert "a server chooses the kind" in refused("index", "copy", "built", address, "--kind", "ivf")
    assert "built cannot be copied to itself" in refused("index", "copy", "built", "built")
    assert "none holds no index" in refused("index", "copy", "none", "new")


def test_what_an_index_is_can_be_read_by_a_script(folder):
    output = done("index", "build", "e", "--out", "i", "--kind", "ivf", "--codes", "int8", "--recall", "0.9").stdout
    known = info()
    assert known["kind"] == "ivf"
    assert known["codes"] == "int8"
    assert known["items"] == 36
    assert known["dim"] == 8
    assert known["recall"]["at"] == 10
    assert f"finds {known['recall']['value']:.1%} of the 10 best (36 queries)" in output


def test_labels_and_paths_are_printed_as_they_are_written(folder):
    vectors = np.eye(3, 8, dtype=np.float32)
    np.save("v.npy", vectors)
    (folder / "n.csv").write_text('path,split,label_Art\nä/鳥.jpg,test,Häher\n<b>.jpg,test,"a""b"\nc.jpg,test,x=y\n', "utf-8")
    done("index", "build", "v.npy", "--manifest", "n.csv", "--out", "größe/i")
    result = done("index", "search", "größe/i", "--embeddings", "v.npy", "--k", 1)
    assert '"path": "ä/鳥.jpg"' in result.stdout
    assert [json.loads(line)["labels"]["Art"] for line in result.stdout.splitlines()] == ["Häher", 'a"b', "x=y"]
    assert [line["id"] for line in lines("größe/i", "--embeddings", "v.npy", "--where", "Art=x=y", "--k", 1)] == [2, 2, 2]


def test_ids_may_be_given_and_are_kept(folder):
    np.save("ids.npy", np.arange(36) * 10 + 5)
    done("index", "build", "e", "--out", "i", "--ids", "ids.npy")
    np.save("q.npy", read_embedded("e", "test").embeddings[:2])
    assert [line["id"] for line in lines("i", "--embeddings", "q.npy", "--k", 1)] == [5, 15]
    assert "already has 36 of these ids (5, 15, 25, ...)" in refused("index", "add", "i", "e", "--ids", "ids.npy")
    assert "ids 356 to 391; it now has 72" in done("index", "add", "i", "e").stdout


def test_a_run_is_its_embeddings_and_a_gallery_goes_before_test(folder):
    (folder / "run").mkdir()
    (folder / "run" / "recipe.toml").touch()
    shutil.move("e", "run/embeddings")
    assert done("index", "build", "run", "--out", "i").stdout.startswith("i: 36 items")
    shutil.copytree("run/embeddings/test", "run/embeddings/gallery")
    assert "using gallery of run/embeddings; test is not indexed" in done("index", "build", "run", "--out", "j").stderr
    assert (
        "using test of run/embeddings; gallery is not indexed"
        in done("index", "build", "run", "--part", "test", "--out", "k").stderr
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("build", "none", "--out", "j"), "there is no none; give a folder"),
        (("build", "photos", "--out", "j"), "photos has no embeddings"),
        (("build", "e", "--out", "photos"), "photos is not empty"),
        (("build", "e", "--out", "i"), "i already holds an index; add to it"),
        (("build", "e", "--out", "j", "--kind", "lsh"), "'lsh' is not one of"),
        (("build", "e", "--out", "j", "--part", "query"), "has test; embed that split first"),
        (("build", "e", "--out", "j", "--manifest", "m.parquet"), "leave the manifest out"),
        (("build", "v.npy", "--out", "j", "--part", "test"), "v.npy is a file, so it has no part 'test'"),
        (("build", "v.npy", "--out", "j", "--manifest", "m.parquet"), "36 rows for 2 embeddings"),
        (("build", "e", "--out", "j", "--ids", "v.npy"), "give a list of integers"),
        (("build", "e", "--out", "j", "--recall", "95"), "recall=95.0"),
        (("build", "e", "--out", "qdrant://localhost/b", "--kind", "ivf"), "a server chooses the kind"),
        (("build", "e", "--out", "ftp://localhost/b"), "not the address of an index"),
        (("search", "i"), "either as --embeddings, or as --image with --model"),
        (("search", "i", "--embeddings", "v.npy", "--image", "x.png", "--model", "model"), "either as --embeddings"),
        (("search", "i", "--image", "x.png"), "--image and --model go together"),
        (("search", "i", "--embeddings", "v.npy", "--model", "model"), "--image and --model go together"),
        (("search", "i", "--image", "x.png", "--model", "model"), "there is no image x.png"),
        (("search", "i", "--image", "m.parquet", "--model", "model", "--device", "cpu"), "m.parquet"),
        (("search", "i", "--image", "photos/group0/class00/0.png", "--model", "none/model"), "none/model is not a folder"),
        (("search", "i", "--embeddings", "v.npy"), "shape [2, 5] and type float32, but i has 8 dimensions"),
        (("search", "i", "--embeddings", "none.npy"), "there is no such file"),
        (("search", "i", "--embeddings", "e/test/embeddings.npy", "--where", "order=x"), "no level 'order'; choose from"),
        (
            ("search", "i", "--embeddings", "e/test/embeddings.npy", "--where", "split=galery"),
            "i has no item with split=galery",
        ),
        (("search", "i", "--embeddings", "v.npy", "--where", "order"), "'order' is not LEVEL=NAME"),
        (("search", "i", "--embeddings", "v.npy", "--k", "0"), "--k"),
        (("search", "none", "--embeddings", "v.npy"), "none holds no index"),
        (("add", "i", "v.npy"), "have 5 dimensions and i has 8"),
        (("add", "none", "e"), "none holds no index"),
        (("remove", "i"), "either by --ids or by --where"),
        (("remove", "i", "--ids", "1", "--where", "split=test"), "either by --ids or by --where"),
        (("remove", "i", "--ids", "1,x"), "'x' is not an id"),
        (("remove", "i", "--ids", "1,36"), "i has no item 36"),
        (("remove", "i", "--where", "split=train"), "i has no item with split=train; the nearest names are test."),
        (
            ("remove", "i", "--where", "split=test", "--where", "split=tets"),
            "no item with split=tets; the nearest names are test.",
        ),
        (("info", "photos"), "photos holds no index"),
        (("info", "qdrant://127.0.0.1:9/b", "--timeout", "1"), "no Qdrant server answers at http://127.0.0.1:9"),
        (("info", "milvus://127.0.0.1:9/b", "--timeout", "1"), "no Milvus answers at http://127.0.0.1:9"),
    ],
)
def test_wrong_arguments_are_refused_in_a_line_and_change_nothing(folder, arguments, message):
    (folder / "built").rename("i")
    before = (folder / "i" / "meta.json").read_bytes()
    np.save("v.npy", np.ones((2, 5), np.float32))
    assert message in refused("index", *arguments)
    assert (folder / "i" / "meta.json").read_bytes() == before
    assert not (folder / "j" / "meta.json").exists()


def test_who_stops_an_addition_to_a_server_is_told_what_is_in(folder, monkeypatch):
    pytest.importorskip("milvus_lite")
    address = f"milvus+file://{folder}/m.db/birds"
    done("index", "build", "e", "--out", address)
    monkeypatch.setattr("suprank.explorer.index.server.BATCH_NUMBERS", 8 * 10)
    plain = MilvusIndex._insert

    def insert(self, vectors, items):
        if items[0].id >= 36 + 20:
            raise KeyboardInterrupt
        plain(self, vectors, items)

    monkeypatch.setattr(MilvusIndex, "_insert", insert)
    stopped = invoke("index", "add", address, "e", "--quiet")
    assert stopped.exit_code == 130
    assert f"20 of 36 items were added to {address}, ids 36 to 55." in stopped.stderr
    assert info(address)["items"] == 36 + 20


@pytest.mark.parametrize(
    ("module", "extra", "index"),
    [
        ("faiss", "explore", "built"),
        ("qdrant_client", "servers", "qdrant://h/b"),
        ("pymilvus", "servers", "milvus://h/b"),
    ],
)
def test_a_missing_part_is_named_with_its_extra(folder, monkeypatch, capsys, module, extra, index):
    for name in [module, *(name for name in sys.modules if name.startswith(f"{module}."))]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setattr(sys, "argv", ["suprank", "index", "info", index])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 1
    output = capsys.readouterr().err
    assert f'pip install "suprank[{extra}]"' in output
    assert "Traceback" not in output
