"""Every verb that writes: on a full disk it names the file in one sentence; an unwritable place is refused before the work."""

import shutil
from pathlib import Path

import pytest

from suprank.files.locking import lock_folder
from tests.cli.collection import done, invoke, photographs, refused
from tests.disks import disk_of
from tests.hierarchy.branches import plain, write_branch
from tests.models.tiny import embedder

IMAGES = ("--size", 32, "--resize", 0, "--device", "cpu", "--workers", 0, "-q")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """photos/, m.parquet, model/, e/ with embeddings of the photos, a project p/, and labels.txt."""
    root = tmp_path_factory.mktemp("made")
    photographs(root / "photos")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        done("data", "import", "folder", "photos", "split=test", "--out", "m.parquet")
        embedder(dim=8).save("model")
        done("embed", "model", "m.parquet", "--out", "e", *IMAGES)
        write_branch(plain(root / "p"))
        Path("labels.txt").write_text("".join(f"label {number}\n" for number in range(500)))
    return root


@pytest.fixture(autouse=True)
def folder(made, tmp_path, monkeypatch):
    """A copy of it, as the working folder."""
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


WRITING = {
    "embed": (
        ("embed", "model", "m.parquet", "--out", "f", *IMAGES),
        "f/test/contents/00000.npy",
        1000,
    ),
    "evaluate --out": (("evaluate", "e", "--out", "r.json", "-q"), "r.json", 100),
    "evaluate --csv": (("evaluate", "e", "--csv", "r.csv", "-q"), "r.csv", 100),
    "evaluate --save-run": (("evaluate", "e", "--save-run", "r.trec", "-q"), "r.trec", 1000),
    "data import": (("data", "import", "folder", "photos", "split=test", "--out", "n.csv"), "n.csv", 500),
    "data import parquet": (("data", "import", "folder", "photos", "--out", "n.parquet"), "n.parquet", 500),
    "data check": (("data", "check", "m.parquet", "--out", "c.json", "-q"), "c.json", 100),
    "data show": (("data", "show", "m.parquet", "--out", "s.png"), "s.png", 1000),
    "models create": (("models", "create", "test_resnet", "--untrained", "--out", "n"), "n/model.safetensors", 1000),
    "models export": (("models", "export", "model", "--out", "x.pt2"), "x.pt2", 1000),
    "hierarchy new": (("hierarchy", "new", "q", "--labels", "labels.txt"), "q/project.sqlite", 1000),
    "hierarchy export": (("hierarchy", "export", "p", "--out", "x"), "p/project.sqlite", 100),
    "hierarchy cluster": (("hierarchy", "cluster", "p", "--encoder", "tfidf", "-q"), "p", 20),
}


@pytest.mark.parametrize("verb", WRITING)
def test_a_full_disk_is_told_in_one_sentence_that_names_the_file(verb):
    arguments, file, room = WRITING[verb]
    with disk_of(room):
        output = refused(*arguments)
    assert f"{file} cannot be written" in output or (verb == "hierarchy cluster" and "p/" in output), output
    assert "disk is full" in output or "disk I/O error" in output, output
    assert "ake room on" in output
    left = [path.name for path in Path().rglob("*.tmp*")]
    assert left == [], "nothing half written stays"


def test_what_was_computed_is_printed_where_it_cannot_be_saved():
    with disk_of(100):
        result = invoke("evaluate", "e", "--out", "r.json")
        checked = invoke("data", "check", "m.parquet", "--out", "c.json", "-q")
    assert result.exit_code == checked.exit_code == 2
    assert "R@1" in result.stdout
    assert "36 images" in checked.stdout


NOWHERE = "/proc/nowhere"  # in which not even root can make files


@pytest.mark.parametrize(
    "arguments",
    [
        ("evaluate", "none.npy", "--labels", "none.csv", "--out", f"{NOWHERE}.json"),
        ("evaluate", "none.npy", "--labels", "none.csv", "--csv", f"{NOWHERE}.csv"),
        ("evaluate", "none.npy", "--labels", "none.csv", "--save-run", f"{NOWHERE}.trec"),
        ("report", "none", "--out", f"{NOWHERE}.html"),
        ("embed", "none", "none.parquet", "--out", NOWHERE),
        ("hierarchy", "export", "none", "--out", NOWHERE),
        ("hierarchy", "export", "none", "--out", "x", "--manifest-out", f"{NOWHERE}.parquet"),
        ("data", "import", "folder", "none", "--out", f"{NOWHERE}.parquet"),
        ("data", "check", "none.parquet", "--out", f"{NOWHERE}.json"),
        ("data", "show", "none.parquet", "--out", f"{NOWHERE}.png"),
        ("models", "create", "none", "--out", NOWHERE),
        ("models", "export", "none", "--out", f"{NOWHERE}.pt2"),
        ("compare", "glyphs/happier", "--out", NOWHERE),
    ],
    ids=lambda arguments: " ".join(map(str, arguments[:2])),
)
def test_a_place_that_cannot_be_written_to_is_refused_before_the_work(arguments):
    assert f"{NOWHERE}" in refused(*arguments)


@pytest.mark.parametrize(
    ("arguments", "mark"),
    [
        (("compare", "glyphs/happier", "--out", "photos"), "experiment.json"),
        (("hierarchy", "new", "photos", "--labels", "labels.txt"), "project.sqlite"),
    ],
)
def test_a_folder_of_other_files_is_refused_and_left_as_it_is(arguments, mark):
    before = sorted(Path("photos").rglob("*"))
    assert f"it has group0, but no {mark}; name another folder" in refused(*arguments)
    assert sorted(Path("photos").rglob("*")) == before


def test_a_second_embed_into_a_folder_is_refused_at_once():
    command = ("embed", "model", "m.parquet", "--out", "f", *IMAGES)
    with lock_folder(Path("f/test"), "embedding into", ""):
        assert "is embedding into f/test; wait for it to end, or choose another folder" in refused(*command)
