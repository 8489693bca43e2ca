"""suprank data: folders, tables, archives and benchmarks into manifests; what check finds; what show draws; refusals."""

import json
import shutil
import tarfile
import zipfile

import pytest
from PIL import Image

from suprank.data import Manifest
from suprank.data.importers import BENCHMARKS
from tests.cli.collection import done, invoke, photographs, refused
from tests.data import miniatures


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """The working folder, with 36 pictures of 9 classes in 3 groups under photos/."""
    monkeypatch.chdir(tmp_path)
    photographs(tmp_path / "photos")
    return tmp_path


def imported(*arguments, out="m.parquet"):
    """The manifest that `suprank data import` writes, and what it says."""
    output = done("data", "import", *arguments, "--out", out).stdout
    return Manifest.read(out), output


def table(name, *lines):
    with open(name, "w", encoding="utf-8") as file:  # noqa: PTH123
        file.writelines(line + "\n" for line in lines)
    return name


def archive(name):
    """photos/ packed into a .zip or .tar, without the folder around it or with it."""
    if name.endswith(".tar"):
        with tarfile.open(name, "w") as file:
            file.add("photos")
    else:
        shutil.make_archive(name.removesuffix(".zip"), "zip", "photos")
    return name


# import


def test_a_manifest_without_test_images_says_how_to_have_some():
    command = ("data", "import", "folder", "photos", "--out", "m.parquet")
    output = done(*command).stderr
    assert "has nothing to evaluate on" in output
    assert "import again with --holdout-classes 0.5." in output
    assert done(*command, "--holdout-classes", 0.5).stderr == ""
    assert done(*command, "split=test").stderr == ""


def test_a_folder_tree_becomes_a_manifest(folder):
    manifest, output = imported("folder", "photos", "split=test")
    assert output.splitlines() == ["test: 36 images, 9 class, 3 group", "m.parquet: 36 images"]
    assert manifest.levels == ("class", "group")
    assert manifest.splits == {"test": 36}
    assert manifest.paths[0].as_py() == "group0/class00/0.png"
    assert manifest.root == folder / "photos"
    assert manifest.names["group"] == ("group0", "group1", "group2")
    assert manifest.labels[-1].tolist() == [8, 2]


def test_the_root_is_required():
    assert "suprank data import folder ROOT [KEY=VALUE ...]" in refused("data", "import", "folder", "--out", "m.parquet")
    assert "--out: name the file to write" in refused("data", "import", "folder", "photos")


def test_levels_can_be_named_and_a_csv_can_be_written(folder):
    manifest, _ = imported("folder", "photos", "--level", "species", "--level", "genus", out="made/m.csv")
    assert manifest.levels == ("species", "genus")
    assert (folder / "made/m.csv").read_text().splitlines()[1].replace('"', "") == "group0/class00/0.png,train,class00,group0"


def test_held_out_classes_are_in_test_alone_and_their_groups_on_both_sides():
    options = ("folder", "photos", "--holdout-classes", 0.4)
    manifest, output = imported(*options)
    assert output.splitlines()[:2] == ["train: 20 images, 5 class, 3 group", "test: 16 images, 4 class, 3 group"]
    train, test = (manifest.split(split).labels for split in ("train", "test"))
    assert set(train[:, 0]).isdisjoint(test[:, 0])
    assert set(train[:, 1]) == set(test[:, 1]) == {0, 1, 2}
    again, _ = imported(*options, out="again.parquet")
    others = [imported(*options, "--seed", seed, out="other.parquet")[0] for seed in (1, 2, 3)]
    assert again.table.equals(manifest.table)
    assert not all(other.table.equals(manifest.table) for other in others)


@pytest.mark.parametrize("name", ["p.zip", "p.tar"])
def test_an_archive_is_read_without_unpacking(name):
    plain, _ = imported("folder", "photos")
    packed, _ = imported("folder", archive(name), out="packed.parquet")
    assert (packed.labels == plain.labels).all()
    assert packed.paths[0].as_py().startswith(f"{name}::")
    assert "36 PNG RGB" in done("data", "check", "packed.parquet").stdout


def test_a_table_of_ones_own_with_names_boxes_and_ids():
    table(
        "birds.csv",
        "file,species,genus,name,x1,y1,x2,y2",
        "group0/class00/0.png,crow,corvus,a,0,0,20,30",
        "group0/class00/1.png,raven,corvus,b,5,5,40,40",
        "group1/class10/0.png,wren,troglodytes,c,0,0,8,8",
    )
    corners = [f"box={edge}" for edge in ("x1", "y1", "x2", "y2")]
    columns = ("path=file", "--level", "species", "--level", "genus", "id=name", *corners)
    manifest, output = imported("csv", "photos", "table=birds.csv", "constant_split=test", *columns)
    assert output.splitlines()[0] == "test: 3 images, 3 species, 2 genus"
    assert manifest.levels == ("species", "genus")
    assert manifest.table["id"].to_pylist() == ["a", "b", "c"]
    assert manifest.table["box"].to_pylist()[1] == [5, 5, 40, 40]


def test_a_pack_brings_its_table_in_the_archive():
    table("manifest.csv", "path,split,label_thing", "group0/class00/0.png,train,x", "group0/class01/0.png,test,y")
    with zipfile.ZipFile(archive("pack.zip"), "a") as file:
        file.write("manifest.csv")
    manifest, _ = imported("csv", "pack.zip")
    assert manifest.splits == {"train": 1, "test": 1}
    assert done("data", "check", "m.parquet").exit_code == 0


def test_a_benchmark_is_compared_with_what_is_published(folder):
    miniatures.sop(folder / "sop")
    manifest, output = imported("sop", "sop")
    assert "train: 4 images, 3 product, 2 category; published: 59,551 images, 11,318 product, 12 category" in output
    assert manifest.levels == ("product", "category")


def test_further_test_sets_go_beside_the_main_manifest(folder):
    miniatures.dyml(folder / "dyml")
    _, output = imported("dyml-animal", "dyml")
    for suffix in ("fine", "middle", "coarse"):
        assert f"m-{suffix}.parquet: 8 images" in output
        assert set(Manifest.read(f"m-{suffix}.parquet").splits) == {"query", "gallery"}


def test_every_source_is_listed_and_says_what_it_expects():
    listed = done("data", "import").output.split()
    assert {"folder", "csv", "hf", "glyphs", "emoji", "mteb", *BENCHMARKS} <= set(listed)
    for name, importer in BENCHMARKS.items():
        assert importer.layout in done("data", "import", name).output
    assert "  path=path           column of the paths, relative to ROOT\n" in done("data", "import", "csv").output


def test_drawn_sets_are_given_the_options_and_saved(folder, monkeypatch):
    asked = {}

    def drawn(**options):
        asked.update(options)
        options["progress"](36, 36)
        return Manifest.read("m.parquet")

    imported("folder", "photos")
    (folder / "photos/LICENSES.txt").write_text("free")
    monkeypatch.setattr("suprank.data.importers.glyphs.read", drawn)
    monkeypatch.setattr("suprank.data.importers.emoji.read", drawn)
    monkeypatch.setattr("suprank.data.importers.emoji.LICENSES", "LICENSES.txt")
    result = done("data", "import", "glyphs", "size=32", "font=my.ttf", "--seed", 5, "--out", "g.parquet")
    assert (asked["size"], asked["seed"], [str(font) for font in asked["fonts"]]) == (32, 5, ["my.ttf"])
    assert "36/36" in result.stderr
    assert f"images: {folder / 'photos'}" in result.stdout
    assert Manifest.read("g.parquet").table.equals(Manifest.read("m.parquet").table)
    result = done("data", "import", "emoji", "--quiet", "--out", "e.parquet")
    assert result.stderr == ""
    assert (folder / "e-LICENSES.txt").read_text() == "free"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("folder", "nowhere"), "nowhere does not exist; folder expects under it:"),
        (("folder", "photos", "--out", "m.txt"), "m.txt must end in .parquet or .csv."),
        (("folder", "photos", "--level", "a"), "levels are named (a), but folders are 2 deep"),
        (("folder", "photos", "split=valid"), "split 'valid' is unknown; a split is one of train, test"),
        (("folder", "photos", "--holdout-classes", "1.5"), "--holdout-classes: 1.5 must lie between 0 and 1"),
        (("folder", "photos", "--holdout-classes", "0.1"), "Possible fractions: 0.333333 to 0.666667"),
        (("folder", "photos", "--holdout-classes", "0.5", "--shared", "order"), "choose from class, group"),
        (("folder", "photos", "--seed", "1"), "add --holdout-classes 0.5"),
        (("folder", "bad.zip"), "bad.zip is not a readable zip file"),
        (("folder", "bad.tar"), "bad.tar is not a readable tar file"),
        (("folder", "bad.tar.gz"), "compressed as a whole"),
        (("csv", "photos"), "photos has no manifest.csv"),
        (("csv", "t.csv"), "t.csv is a table; give the folder of the images, and table=t.csv"),
        (("csv", "photos", "table=gone.csv"), "has no gone.csv"),
        (("csv", "photos", "table=t.csv"), "name the label columns with levels"),
        (("csv", "photos", "table=t.csv", "--level", "speices"), "did you mean 'species'?"),
        (("csv", "photos", "table=t.csv", "--level", "species"), "has no column 'path'"),
        (
            ("csv", "photos", "table=t.csv", "path=file", "--level", "species"),
            "has no column 'split'",
        ),
        (
            ("csv", "photos", "table=t.csv", "path=file", "--level", "species", "constant_split=test"),
            "t.csv:3: species is blank; fill it in, leave the row out, or give it the split distractor.",
        ),
        (
            ("csv", "photos", "table=out.csv", "path=file", "--level", "species", "constant_split=test"),
            "path '../a.png' leads out of the root",
        ),
        (("sop", "photos"), "photos/Ebay_train.txt does not exist; sop expects under photos:"),
        (("glyphs", "font=gone.ttf"), "gone.ttf does not exist; fonts are"),
        (("flowers", "photos"), "there is no source 'flowers'"),
        (("folders", "photos"), "did you mean folder?"),
        (("sop", "photos", "--seed", "1"), "--seed: sop does not take it; leave it out"),
        (("sop", "photos", "size=3"), "sop has no key 'size'; its keys: none."),
        (("csv", "photos", "tabel=t.csv"), "csv has no key 'tabel'; did you mean table?"),
        (("csv", "photos", "t.csv"), "'t.csv' is not KEY=VALUE"),
        (("csv", "photos", "id=a", "id=b"), "id is given twice, as a and as b; give one."),
        (("glyphs", "size=big"), "size: 'big' should be a valid integer"),
    ],
)
def test_what_cannot_be_imported_is_said_plainly_and_nothing_is_written(folder, arguments, message):
    for name in ("bad.zip", "bad.tar", "bad.tar.gz"):
        table(name, "no archive")
    table("t.csv", "file,species,genus", "group0/class00/0.png,crow,corvus", "group0/class00/1.png,,corvus")
    table("out.csv", "file,species", "../a.png,crow")
    out = () if "--out" in arguments else ("--out", "m.parquet")
    assert message in refused("data", "import", *arguments, *out)
    assert not list(folder.glob("m.*"))


def test_a_manifest_cannot_be_written_where_there_is_no_folder_to_make():
    table("file", "in the way")
    output = refused("data", "import", "folder", "photos", "--out", "file/m.parquet")
    assert "file/m.parquet cannot be written: the folder cannot be made" in output


# check


def test_a_sound_collection_passes_and_its_classes_are_counted():
    imported("folder", "photos", "--holdout-classes", 0.4)
    result = done("data", "check", "m.parquet", "--out", "found.json")
    assert result.stdout.splitlines() == [
        "36 images in 36 files: 20 train, 16 test",
        "class classes: 5 train, 4 test; none of train's in evaluation",
        "group classes: 3 train, 3 test; 3 of train's in evaluation",
        "images a class → classes: 3-4: 9",
        "pixels: short side 48 to 48, median 48; long side 56 to 56, median 56",
        "formats: 36 PNG RGB",
    ]
    assert "36/36" in result.stderr
    with open("found.json") as file:  # noqa: PTH123
        assert json.load(file)["ok"] is True
    quiet = done("data", "check", "m.parquet", "--quiet", "--split", "test", "--no-decode", "--no-hashes")
    assert quiet.stderr == ""
    assert "16 images in 16 files: 16 test" in quiet.stdout
    assert "formats" not in quiet.stdout


def test_broken_missing_and_leaking_images_are_named_and_the_exit_code_is_1(folder):
    imported("folder", "photos", "--holdout-classes", 0.4)
    manifest = Manifest.read("m.parquet")
    train, test = (manifest.split(split).paths.to_pylist() for split in ("train", "test"))
    (folder / "photos" / train[0]).write_text("no image")
    (folder / "photos" / train[1]).unlink()
    shutil.copy(folder / "photos" / train[2], folder / "photos" / test[0])
    result = invoke("data", "check", "m.parquet", "--out", "found.json")
    assert result.exit_code == 1
    assert f"1 file is both in train and in evaluation: train {train[2]} = test {test[0]}" in result.stdout
    assert f"1 file is broken: {train[0]} (is not an image" in result.stdout
    assert f"1 file is missing: {train[1]}" in result.stdout
    with open("found.json") as file:  # noqa: PTH123
        found = json.load(file)
    assert (found["ok"], found["missing"]) == (False, [train[1]])


# show


def test_a_sheet_is_drawn_and_the_tree_is_printed():
    imported("folder", "photos")
    output = done("data", "show", "m.parquet", "--level", "group", "--per-class", 5, "--size", 32, "--most", 2).stdout
    assert output.splitlines()[:5] == [
        "group0  12 images, 3 class",
        "├── class00  4",
        "├── class01  4",
        "└── ... and 1 more",
        "group1  12 images, 3 class",
    ]
    assert output.splitlines()[-1] == "m.png"
    wide = size_of("m.png")
    less = ("--level", "group", "--classes", 2, "--per-class", 3, "--size", 32, "--most", 0, "--out", "s.jpg")
    assert "class00" not in done("data", "show", "m.parquet", *less).stdout
    narrow = size_of("s.jpg")
    assert 64 <= wide[0] - narrow[0] <= 80, "two images of 32 pixels, and a little between them"
    assert wide[1] - narrow[1] >= 32, "a class"


def size_of(picture):
    with Image.open(picture) as opened:
        return opened.size


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("check", "gone.parquet"), "gone.parquet: the manifest does not exist"),
        (("check", "photos"), "photos: the manifest is a folder; make one with `suprank data import`"),
        (("check", "photos.zip"), "a manifest is a .parquet or .csv file"),
        (("check", "bad.parquet"), "bad.parquet is not a readable Parquet file"),
        (("check", "m.parquet", "--split", "valid"), "there is no split 'valid' here; choose from train"),
        (("check", "m.parquet", "--root", "gone"), "the root gone is not a folder"),
        (("check", "m.parquet", "--out", "photos"), "photos is a folder; name a file in it."),
        (("show", "m.parquet", "--level", "order"), "there is no level 'order'; choose from class, group."),
        (("show", "m.parquet", "--out", "sheet.txt"), "sheet.txt must end in one of .png"),
        (("show", "m.parquet", "--classes", "0"), "--classes"),
    ],
)
def test_what_cannot_be_checked_or_shown_is_said_plainly(arguments, message):
    imported("folder", "photos")
    table("bad.parquet", "no Parquet")
    assert message in refused("data", *arguments)
