"""The check of a manifest: a small collection with one of every trouble, counted by hand."""

import json
import threading
import zipfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from suprank.data import archives
from suprank.data.check import check_manifest
from suprank.data.duplicates import digest_codes, find_duplicates
from suprank.data.file_scan import scan_files
from suprank.data.image_files import ImageFiles
from suprank.data.manifest import Manifest
from suprank.data.members import Members
from tests.data.pictures import encoded, folder, smooth

SHARED = Path(__file__).parents[2] / "../shared/data"


def test_a_sound_collection_is_ok(tmp_path):
    found = check_manifest(folder(tmp_path))
    assert found.ok
    assert found.splits == {"train": 3, "test": 3}
    assert found.classes.counts == {"fine": {"train": 2, "test": 2}, "coarse": {"train": 1, "test": 1}}
    assert found.classes.shared == {"fine": 1, "coarse": 1}
    assert found.classes.sizes == {"2": 3}
    assert found.classes.singletons == {"train": 1, "test": 1}
    assert found.sides == {"short": (48, 48.0, 48), "long": (64, 64.0, 64)}
    assert found.kinds == {"PNG RGB": 6}
    assert found.sentences() == [
        "6 images in 6 files: 3 train, 3 test",
        "fine classes: 2 train, 2 test; 1 of train's in evaluation",
        "coarse classes: 1 train, 1 test; 1 of train's in evaluation",
        "images a class → classes: 2: 3",
        "pixels: short side 48 to 48, median 48; long side 64 to 64, median 64",
        "formats: 6 PNG RGB",
        "1 class has one image in train",
        "1 class has one image in test, and so no positive to retrieve",
    ]


def test_images_far_longer_than_wide_are_named_with_their_size_and_are_no_error(tmp_path):
    manifest = folder(tmp_path)
    Image.new("RGB", (5000, 100)).save(tmp_path / "a1.png")
    Image.new("RGB", (1, 500_000)).save(tmp_path / "a2.png")
    Image.new("RGB", (3200, 100)).save(tmp_path / "a4.png")
    found = check_manifest(manifest)
    assert found.ok
    assert found.elongated == (("a1.png", 5000, 100), ("a2.png", 1, 500_000))
    named = "a1.png (5,000 × 100 pixels); a2.png (1 × 500,000 pixels)"
    assert found.sentences()[-1] == f"2 files are more than 32 times as long as wide, so only the middle is used: {named}"
    assert check_manifest(manifest, decode=False).elongated == ()


@pytest.fixture
def troubled(tmp_path):
    """a1 = a0 in train, a4 = a0 in test, a3 broken, a5 missing, and f0 under two parents."""
    manifest = folder(tmp_path, label_coarse=["c", "d", "c", "c", "c", "c"])
    for copy in ("a1.png", "a4.png"):
        (tmp_path / copy).write_bytes((tmp_path / "a0.png").read_bytes())
    (tmp_path / "a3.png").write_bytes(b"no image")
    (tmp_path / "a5.png").unlink()
    return manifest


def test_every_trouble_is_found_and_said(troubled):
    found = check_manifest(troubled, workers=2)
    assert not found.ok
    assert found.missing == ("a5.png",)
    (broken,) = found.broken
    assert broken[0] == "a3.png"
    assert broken[1].startswith("is not an image")
    group = (("train", "a0.png"), ("train", "a1.png"), ("test", "a4.png"))
    assert found.copies.across == found.copies.leaks == found.copies.contradictions == (group,)
    assert found.copies.within == {"train": 1}
    assert found.classes.two_parents == ("fine 'f0' stands under coarse 'c' and 'd'",)
    assert found.sentences()[-7:] == [
        "1 class has one image in test, and so no positive to retrieve",
        "1 image of train is a copy of another one there",
        "1 file has copies with another label: train a0.png = train a1.png = test a4.png",
        "not a tree: fine 'f0' stands under coarse 'c' and 'd'",
        "1 file is both in train and in evaluation: train a0.png = train a1.png = test a4.png",
        f"1 file is broken: a3.png ({broken[1]})",
        "1 file is missing: a5.png",
    ]
    assert found.sentences() == check_manifest(troubled, workers=1).sentences()


def test_json_holds_everything(troubled):
    found = json.loads(check_manifest(troubled).to_json())
    assert found["ok"] is False
    assert found["missing"] == ["a5.png"]
    assert found["leaks"] == [[["train", "a0.png"], ["train", "a1.png"], ["test", "a4.png"]]]
    assert found["classes"]["counts"]["coarse"] == {"train": 2, "test": 1}


def test_each_part_can_be_left_out(troubled):
    labels = check_manifest(troubled, decode=False, hashes=False)
    assert (labels.missing, labels.broken, labels.copies.across, labels.sides) == (("a5.png",), (), (), {})
    assert not check_manifest(troubled, decode=False).broken
    assert check_manifest(troubled, decode=False).copies.leaks
    assert check_manifest(troubled, hashes=False).broken
    assert not check_manifest(troubled, hashes=False).copies.leaks


def test_one_path_in_two_splits_leaks_even_without_hashes(tmp_path):
    manifest = folder(tmp_path, path=["a0.png"] * 2 + ["a1.png"] * 2 + ["a2.png"] * 2)
    found = check_manifest(manifest, decode=False, hashes=False)
    assert found.files == 3
    assert found.copies.leaks == ((("train", "a1.png"), ("test", "a1.png")),)
    assert found.copies.within == {"train": 1, "test": 1}


def test_queries_in_the_gallery_are_no_leak_and_queries_without_an_answer_are_counted(tmp_path):
    manifest = folder(
        tmp_path,
        path=["a0.png", "a0.png", "a1.png", "a2.png", "a3.png", "a4.png"],
        split=["query", "gallery", "gallery", "query", "query", "distractor"],
        label_fine=["x", "x", "x", "y", "y", None],
        label_coarse=["c", "c", "c", "c", "c", None],
    )
    found = check_manifest(manifest)
    assert found.ok
    assert found.classes.unanswerable == 2
    assert found.classes.counts["fine"] == {"query": 2, "gallery": 1}
    assert found.classes.shared == {}
    assert "1 file is in several splits: query a0.png = gallery a0.png" in found.sentences()
    assert "2 queries have no image of the same class in the gallery" in found.sentences()


def test_archives_that_are_missing_or_unreadable_are_reported_with_their_images(tmp_path):
    with zipfile.ZipFile(tmp_path / "good.zip", "w") as archive:
        archive.writestr("a.png", encoded(smooth()))
    (tmp_path / "bad.zip").write_bytes(b"bad")
    paths = ["bad.zip::a.png", "good.zip::a.png", "gone.zip::a.png", "bad.zip::b.png", "good.zip::b.png"]
    manifest = Manifest.from_columns({"path": paths, "split": ["train"] * 5}, root=tmp_path, levels=())
    found = check_manifest(manifest)
    assert found.missing == ("gone.zip::a.png", "good.zip::b.png")
    assert [path for path, _ in found.broken] == ["bad.zip::a.png", "bad.zip::b.png"]
    assert "is not a readable zip file" in found.broken[0][1]
    assert found.classes.counts == {}
    assert found.sentences()[0] == "5 images in 5 files: 5 train"


def test_files_that_cannot_be_read_are_not_copies_of_each_other(tmp_path):
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        archive.writestr("a", b"content a"), archive.writestr("b", b"content b")
    (tmp_path / "x.zip").write_bytes((tmp_path / "x.zip").read_bytes().replace(b"content", b"CONTENT"))
    columns = {"path": ["x.zip::a", "x.zip::b"], "split": ["train", "test"]}
    found = check_manifest(Manifest.from_columns(columns, root=tmp_path, levels=()))
    assert [path for path, _ in found.broken] == ["x.zip::a", "x.zip::b"]
    assert found.copies.across == ()


def test_when_all_is_missing_there_is_still_a_report(tmp_path):
    manifest = folder(tmp_path)
    for file in tmp_path.iterdir():
        file.unlink()
    found = check_manifest(manifest)
    assert len(found.missing) == 6
    assert found.sentences()[-1].endswith("; and 1 more")


def test_progress_rises_to_the_number_of_files(tmp_path):
    manifest = folder(tmp_path, count=70)
    seen = []
    check_manifest(manifest, progress=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (70, 70)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


def test_an_interruption_ends_it_at_once(tmp_path):
    manifest = folder(tmp_path, count=400)
    read, before = [], set(threading.enumerate())  # other tests may have left threads

    class Counting(ImageFiles):
        def read(self, path):
            read.append(path)
            return super().read(path)

    def interrupted(done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        scan_files(Counting(tmp_path), manifest.paths.chunk(0), np.full(400, -1), workers=2, progress=interrupted)
    assert len(read) < 400
    assert not [thread for thread in set(threading.enumerate()) - before if thread.name.startswith("ThreadPoolExecutor")]


@pytest.mark.parametrize(
    ("sizes", "expected"), [([1, 1, 2], {"1": 2, "2": 1}), ([3, 4, 5, 9], {"3-4": 2, "5-8": 1, "9-16": 1})]
)
def test_class_sizes_are_binned_by_doubling(tmp_path, sizes, expected):
    labels = [f"class {place}" for place, size in enumerate(sizes) for _ in range(size)]
    columns = {"path": ["a.png"] * len(labels), "split": ["train"] * len(labels), "label_a": labels}
    assert check_manifest(Manifest.from_columns(columns, root=tmp_path), decode=False, hashes=False).classes.sizes == expected


@given(
    st.lists(st.tuples(st.integers(0, 4), st.sampled_from(["train", "test", "gallery"]), st.sampled_from("xyz")), min_size=1)
)
def test_copies_are_those_a_dictionary_finds(rows):
    content = [place for place, _, _ in rows]
    splits, labels = [split for _, split, _ in rows], [label for _, _, label in rows]
    paths = [f"{number}.png" for number in range(len(rows))]
    manifest = Manifest.from_columns({"path": paths, "split": splits, "label_a": labels}, root=".")
    groups = {one: [row for row, other in enumerate(content) if other == one] for one in dict.fromkeys(content)}
    found = find_duplicates(manifest, np.array(content))

    def groups_with_several(several_of):
        return tuple(
            tuple((splits[row], paths[row]) for row in group)
            for group in groups.values()
            if len({several_of[row] for row in group}) > 1
        )

    assert found.across == groups_with_several(splits)
    assert found.contradictions == groups_with_several(labels)
    for split in set(splits):
        kept = {one for one, other in zip(content, splits, strict=True) if other == split}
        assert found.within.get(split, 0) == splits.count(split) - len(kept)


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), min_size=1))
def test_equal_digests_get_equal_numbers_and_others_do_not(digests):
    numbers = digest_codes(np.array(digests, np.uint64)).tolist()
    assert len(set(zip(digests, numbers, strict=True))) == len(set(digests)) == len(set(numbers))


def test_different_digests_are_sorted_by_their_first_number_only(monkeypatch):
    monkeypatch.setattr(np, "lexsort", None)
    assert digest_codes(np.array([[7, 1], [2, 3], [5, 0]], np.uint64)).tolist() == [2, 0, 1]


def test_members_are_looked_up_once_and_not_read_one_by_one(tmp_path, monkeypatch):
    names = [f"{number}.jpg" for number in range(300)]
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        for name in names:
            archive.writestr(name, name)
    paths = [f"x.zip::{name}" for name in names]
    manifest = Manifest.from_columns({"path": paths, "split": ["train"] * 300}, root=tmp_path, levels=())
    calls = []
    for owner, name in ((Members, "find"), (archives, "_read_at")):

        def counted(*given, name=name, function=getattr(owner, name)):
            calls.append(name)
            return function(*given)

        monkeypatch.setattr(owner, name, counted)
    assert check_manifest(manifest, decode=False, workers=1).ok
    assert calls == ["find", "_read_at", "_read_at"]


@pytest.mark.skipif(not (SHARED / "omniglot35.zip").is_file(), reason="needs ../shared/data")
def test_a_pack_of_real_images_is_whole():
    archive = ImageFiles(SHARED).archive("omniglot35.zip")
    paths = [f"omniglot35.zip::{name}" for name in archive.members if name.endswith(".png")][::8]
    found = check_manifest(
        Manifest.from_columns({"path": pa.array(paths), "split": ["train"] * len(paths)}, root=SHARED, levels=())
    )
    assert found.ok
    assert (found.images, found.kinds) == (4058, {"PNG L": 4058})
