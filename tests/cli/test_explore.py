"""suprank explore: from a folder to a page, and what it refuses before that."""

import json
import re
import socket
from contextlib import contextmanager

import httpx2
import numpy as np
import pytest
from starlette.testclient import TestClient

from tests.cli.collection import done, photographs, refused
from tests.explorer import runs
from tests.models.tiny import embedder

FAST = ("--size", 32, "--resize", 0, "--workers", 0, "--device", "cpu")

FLAT = runs.RECIPE.replace("[loss]", 'levels = ["class"]\n\n[loss]')


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The working folder, with photos/ of 9 classes in 3 groups, embedded into e/ by model/, and into e2/ by another model."""
    root = tmp_path_factory.mktemp("explore")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        photographs(root / "photos")
        done("data", "import", "folder", "photos", "split=test", "--out", "m.parquet")
        for model, out, made in (("model", "e", embedder(dim=8)), ("other", "e2", embedder(dim=6, seed=1))):
            made.save(model)
            done("embed", model, "m.parquet", "--out", out, *FAST)
        yield root


@contextmanager
def exploring(forked, folder, *arguments):
    """The command in a process of its own, on a free port; a client of its page."""
    process = forked.start("explore", *arguments, "--port", "0", "--quiet", cwd=folder)
    try:
        (line,) = process.first_lines(1)
        found = re.match(r"(http://\S+)  \(press Ctrl-C to stop\)", line)
        assert found, line
        with httpx2.Client(base_url=found[1].replace("0.0.0.0", "127.0.0.1"), timeout=60) as client:
            yield client, process
    finally:
        process.kill()


@pytest.fixture
def explored(folder, monkeypatch):
    """The command in this process, without a server: a client of its page, and what it prints on stderr."""

    def run(*arguments):
        apps = []
        monkeypatch.setattr("suprank.cli.explore.serve", lambda app, *_, **__: apps.append(app))
        output = done("explore", *arguments, "--port", 0, "--quiet").stderr
        return TestClient(apps[0], base_url="http://127.0.0.1:8000"), output

    return run


def test_two_folders_with_a_model_for_uploads_loud_when_not_on_loopback(forked, folder):
    with exploring(forked, folder, "e", "e2", "--model", "model", "--device", "cpu", "--host", "0.0.0.0") as (client, process):
        assert client.get("/").text.count('class="frame"') == 36
        page = client.get("/item/a/gallery/3").text
        assert page.count('<section class="ranking') == 2
        assert "same " in page
        assert client.get("/", headers={"host": "machine.lan"}).status_code == 200
        code, output = process.interrupt()
    assert "WARNING: everyone who can reach 0.0.0.0 can see these images and change their tags" in output
    assert code == 0  # Ctrl-C is how it ends


def test_a_folder_of_embeddings_with_a_model_for_uploads(folder, explored):
    client, output = explored("e", "--model", "model", "--device", "cpu")
    assert output == ""
    picture = (folder / "photos" / "group0" / "class00" / "0.png").read_bytes()
    answer = client.post("/upload", files={"image": ("a.png", picture, "image/png")})
    assert answer.status_code == 200
    assert "class00" in answer.text.split("<ol")[1].split("</li>")[0]
    assert client.get("/", headers={"host": "evil.example"}).status_code == 421
    client, _ = explored("e", "--model", "no_such_network", "--device", "cpu")
    answer = client.post("/upload", files={"image": ("a.png", picture, "image/png")})
    assert answer.status_code == 500
    assert "The model no_such_network cannot embed the image: " in answer.text


def test_a_run_whose_model_is_gone_can_be_looked_at_and_nothing_is_written(folder, explored):
    run = runs.run(folder / "run", runs.collection(folder / "pictures"))
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    flat = runs.run(folder / "flat", runs.collection(folder / "pictures"), recipe=FLAT)
    client, output = explored(run, flat)
    page = client.get("/item/a/gallery/0").text
    assert "same " in page
    assert "<script>alert" not in client.get("/tree").text
    assert client.get("/picture/small/a/gallery/0").headers["content-type"] == "image/png"
    assert "run has neither a folder “model” nor “best”; name the model that embedded it with model" in page
    assert "run is shown without group, which the other run does not have" in output
    assert "in common" not in output
    assert "e and run have no image in common, so only an uploaded image is searched in both." in explored("e", run)[1]
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*")} == before


def test_embeddings_in_a_file_with_their_manifest(folder, explored):
    np.save("v.npy", np.random.default_rng(0).normal(size=(36, 5)).astype(np.float32))
    page = explored("v.npy", "--labels", "m.parquet")[0].get("/").text
    assert "exact search among 36 images, 5 dimensions" in page
    assert "v has embeddings, but no model; name the model that embedded it with model" in page


def test_tags_are_kept_beside_the_run_or_where_the_option_says(folder, explored):
    np.save("v.npy", np.random.default_rng(0).normal(size=(36, 5)).astype(np.float32))
    form = {"image": "a/gallery/3", "tag": "blurry"}
    for arguments, file in (
        (("e", "e2"), "e/tags.csv"),
        (("v.npy", "--labels", "m.parquet"), "v.tags.csv"),
        (("e", "--tags", "mine.csv"), "mine.csv"),
    ):
        client, _ = explored(*arguments)
        assert client.post("/tags", data=form).status_code == 200
        assert ",blurry" in (folder / file).read_text()
    assert {path.name for path in (folder / "e").glob("*.csv")} == {"tags.csv"}
    client, _ = explored("e", "--read-only")
    assert client.post("/tags", data=form).status_code == 403
    assert "blurry" in client.get("/tags").text
    assert "name a .csv file" in refused("explore", "e", "--tags", "e", "--port", 0)
    done("embed", "model", "m.parquet", "--out", "e", *FAST)
    assert "blurry" in explored("e")[0].get("/tags").text, "tags stay when the images are embedded again"


def test_a_large_gallery_is_indexed_once_beside_its_embeddings(folder, explored, monkeypatch, tmp_path):
    monkeypatch.setattr("suprank.explorer.faiss_search.EXACT_NUMBERS", 100)
    monkeypatch.setenv("SUPRANK_CACHE", str(tmp_path))
    assert "approximate search (ivf, finds 100.0% of the 10 nearest) among 36 images" in explored("e")[0].get("/").text
    (built,) = (folder / "e" / "index").glob("ivf-*.faiss")
    before = built.stat().st_mtime_ns
    assert "approximate search (ivf" in explored("e")[0].get("/item/a/gallery/7").text
    found = json.loads(done("search", "e", "--queries", "e/test/embeddings.npy", "--k", 1).stdout.splitlines()[7])
    assert found["id"] == 7
    assert built.stat().st_mtime_ns == before, "a search uses the same index"
    (folder / "e2" / "index").write_text("a file in its place")
    assert "approximate search (ivf" in explored("e2")[0].get("/").text
    assert len(list(tmp_path.glob("index/*/ivf.json"))) == 1, "it is in the cache"


def test_what_cannot_be_looked_at_is_refused_at_the_door(folder):
    assert "there is no nowhere" in refused("explore", "nowhere", "--port", 0)
    (folder / "empty").mkdir()
    assert "empty has no embeddings; name a folder of `suprank train`" in refused("explore", "empty", "--port", 0)
    assert "Missing argument" in refused("explore")
    assert "3 runs are given" in refused("explore", "e", "e", "e")
    np.save("few.npy", np.zeros((3, 2), np.float32))
    assert "give the manifest of the rows as labels" in refused("explore", "few.npy", "--port", 0)
    assert "a folder has its own" in refused("explore", "e", "--labels", "m.parquet", "--port", 0)
    assert "m.parquet has 36 rows" in refused("explore", "few.npy", "--labels", "m.parquet", "--port", 0)
    assert "The images of a manifest are embedded by `suprank embed`" in refused("explore", "m.parquet", "--port", 0)
    assert "e2 is not the folder of a model" in refused("explore", "e", "--model", "e2", "--port", 0)
    (folder / "trained").mkdir()
    (folder / "trained" / "model").symlink_to(folder / "model")
    assert "or the run that trained it." in " ".join(refused("explore", "e", "--model", "trained", "--port", 0).split())


def test_a_port_that_is_taken_is_found_out_first(folder):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert f"127.0.0.1 port {port} is not available" in refused("explore", "e", "--port", port)
