"""A user's table: columns called whatever they are called, in files of three kinds, on disk or in an archive."""

import logging
import zipfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from suprank.data.image_files import missing_rows
from suprank.data.importers.table import CSV, read
from suprank.files.labels import LabelSpellingWarning
from suprank.files.tables import parse_table, read_table

SHARED = Path(__file__).parents[4] / "shared" / "data"

BIRDS = """path,label_species,label_family,split,width
a/1.jpg,jay,Corvidae,train,640
a/2.jpg,crow,Corvidae,train,480
b/3.jpg,wren,Troglodytidae,test,640
"""


def write_table(root: Path, text: str, name: str = "manifest.csv") -> Path:
    (root / name).write_bytes(text.encode())
    return root


def rows(manifest, *columns):
    return [tuple(row.values()) for row in manifest.table.select(list(columns)).to_pylist()]


# What is read


def test_a_table_in_our_own_words_needs_no_options(tmp_path):
    manifest = read(write_table(tmp_path, BIRDS))[""]
    assert (manifest.levels, manifest.root) == (("species", "family"), tmp_path)
    assert manifest.table.column_names == ["path", "split", "label_species", "label_family", "width"]
    assert rows(manifest, "path", "split", "label_species", "label_family", "width") == [
        ("a/1.jpg", "train", "jay", "Corvidae", "640"),
        ("a/2.jpg", "train", "crow", "Corvidae", "480"),
        ("b/3.jpg", "test", "wren", "Troglodytidae", "640"),
    ]


def test_columns_of_any_name_are_mapped_and_the_others_kept(tmp_path):
    text = "file\tkind\tgroup\tset\tnumber\tnote\n1.jpg\tjay\tbirds\tTrain \t007\thello, you\n2.jpg\t crow\tbirds\ttest\t8\t\n"
    write_table(tmp_path, text, "labels.tsv")
    manifest = read(tmp_path, table="labels.tsv", path="file", split="set", levels=["kind", "group"], id="number")[""]
    assert manifest.table.column_names == ["path", "split", "label_kind", "label_group", "id", "note"]
    assert rows(manifest, "path", "split", "label_kind", "label_group", "id", "note") == [
        ("1.jpg", "train", "jay", "birds", "007", "hello, you"),
        ("2.jpg", "test", "crow", "birds", "8", ""),
    ]


def test_levels_may_be_named_with_or_without_the_prefix_and_in_another_order(tmp_path):
    write_table(tmp_path, BIRDS)
    for levels in (["species", "family"], ["label_species", "family"]):
        assert read(tmp_path, levels=levels)[""].levels == ("species", "family")
    assert read(tmp_path, levels=["family"])[""].levels == ("family",)
    assert read(tmp_path, levels=())[""].levels == ()


def test_one_split_for_all_takes_the_place_of_a_column_and_that_is_said(tmp_path, caplog):
    manifest = read(write_table(tmp_path, BIRDS), constant_split="gallery")[""]
    assert manifest.splits == {"gallery": 3}
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "column 'split' is left out, because another column takes its name" in record.message


def test_absolute_paths_may_go_through_a_link_to_the_root(tmp_path):
    (tmp_path / "photos").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "photos")
    table = f"path,split,label_s\n{tmp_path}/link/1.jpg,train,a\n{tmp_path}/photos/2.jpg,train,b\n"
    manifest = read(tmp_path / "link", table=write_table(tmp_path, table) / "manifest.csv")[""]
    assert manifest.paths.to_pylist() == ["1.jpg", "2.jpg"]


def test_the_table_may_lie_elsewhere_and_have_absolute_paths(tmp_path):
    (tmp_path / "images").mkdir()
    write_table(tmp_path, BIRDS.replace("\na/", f"\n{tmp_path}/images/a/"), "labels.csv")
    manifest = read(tmp_path / "images", table=tmp_path / "labels.csv")[""]
    assert manifest.table["path"].to_pylist() == ["a/1.jpg", "a/2.jpg", "b/3.jpg"]
    assert manifest.root == tmp_path / "images"


def test_boxes_come_from_one_column_or_four(tmp_path):
    one = "path,label_c,split,crop\n1.jpg,a,train,1 2 30.5 40\n2.jpg,b,train,\n"
    four = "path,label_c,split,x1,y1,x2,y2\n1.jpg,a,train,1, 2,3.05e1,40\n2.jpg,b,train,,,,\n"
    for text, box in ((one, "crop"), (four, ("x1", "y1", "x2", "y2")), (one.replace("crop", "box"), None)):
        manifest = read(write_table(tmp_path, text), box=box)[""]
        assert rows(manifest, "box") == [([1, 2, 30.5, 40],), (None,)]
        assert manifest.table.column_names == ["path", "split", "label_c", "box"]


def test_distractors_may_have_no_label(tmp_path):
    manifest = read(write_table(tmp_path, "path,label_c,split\n1.jpg,a,gallery\n2.jpg,,distractor\n"))[""]
    assert manifest.labels.tolist() == [[0], [-1]]


def test_parquet_keeps_the_types_of_other_columns(tmp_path):
    columns = {
        "path": ["1.jpg", "2.jpg"],
        "split": pa.array(["train", "test"]).dictionary_encode(),
        "label_class": pa.array([7, 8], pa.int32()),
        "box": pa.array([[0, 0, 4, 4], None], pa.list_(pa.float64())),
        "weight": [0.5, 1.5],
        "__index_level_0__": [0, 1],
    }
    pq.write_table(pa.table(columns), tmp_path / "manifest.parquet")
    manifest = read(tmp_path)[""]
    assert rows(manifest, "path", "split", "label_class", "box", "weight") == [
        ("1.jpg", "train", "7", [0, 0, 4, 4], 0.5),
        ("2.jpg", "test", "8", None, 1.5),
    ]
    assert "__index_level_0__" not in manifest.table.column_names


def test_an_archive_holds_table_and_images(tmp_path):
    with zipfile.ZipFile(tmp_path / "birds.zip", "w") as archive:
        archive.writestr("manifest.csv", BIRDS)
        archive.writestr("a/1.jpg", b"")
    manifest = read(tmp_path / "birds.zip")[""]
    assert manifest.root == tmp_path
    assert manifest.table["path"].to_pylist() == ["birds.zip::a/1.jpg", "birds.zip::a/2.jpg", "birds.zip::b/3.jpg"]
    assert missing_rows(manifest.paths, manifest.root).tolist() == [1, 2]
    with pytest.raises(FileNotFoundError, match="has no labels.csv; tables in it: manifest.csv. Name one with table"):
        read(tmp_path / "birds.zip", table="labels.csv")


def test_the_importer_reports(tmp_path):
    sentences = CSV(write_table(tmp_path, BIRDS)).sentences
    assert sentences[:2] == ("train: 2 images, 2 species, 1 family", "test: 1 images, 1 species, 1 family")
    assert sentences[2].startswith("3 of 3 images do not exist under")


@pytest.mark.skipif(not SHARED.is_dir(), reason="needs ../shared/data, packs of real images")
@pytest.mark.parametrize(
    ("name", "splits", "levels", "sizes"),
    [
        ("cub200_s128", {"train": 5864, "test": 5924}, ("species", "genus", "family", "order"), [200, 121, 37, 13]),
        ("omniglot35", {"train": 19_280, "test": 13_180}, ("character", "alphabet"), [1623, 50]),
        ("emoji64", {"train": 4518, "test": 4181}, ("emoji", "subgroup", "group"), [1614, 96, 9]),
    ],
)
def test_the_real_packs(name, splits, levels, sizes):
    manifest = read(SHARED / f"{name}.zip")[""]
    assert (manifest.splits, manifest.levels, manifest.root) == (splits, levels, SHARED)
    assert [len(manifest.names[level]) for level in levels] == sizes
    assert manifest.two_parents() == []
    assert len(missing_rows(manifest.paths, SHARED)) == 0


# What is refused


@pytest.mark.parametrize(
    ("text", "options", "complaint"),
    [
        (BIRDS.replace("path", "paths"), {}, r"has no column 'path'; did you mean 'paths'\? It has paths, label_species"),
        (BIRDS.replace("split", "fold"), {}, r"has no column 'split'; .* or give all rows one split with constant_split"),
        (BIRDS, {"levels": ["specie"]}, r"has no column 'specie'; did you mean 'label_species'\?"),
        (BIRDS, {"levels": ["species", "label_species"]}, "level 'species' is named twice"),
        (BIRDS, {"id": "number"}, "has no column 'number'"),
        (BIRDS, {"box": ("width", "width")}, "box names 2 columns"),
        (BIRDS.replace("label_", ""), {}, "has no column that begins with 'label_', only path, species"),
        (BIRDS.replace("a/2.jpg", " "), {}, "manifest.csv:3: 'path' is blank"),
        (BIRDS.replace("crow", ""), {}, "manifest.csv:3: species is blank; fill it in, leave the row out, or give it"),
        (
            BIRDS.replace("Corvidae", ""),
            {},
            r"csv:2: there is a label of species, but none of family.* \(and 1 other rows\)",
        ),
        (BIRDS.replace("test", ""), {}, "manifest.csv:4: 'split' is blank"),
        (BIRDS.replace("test", "val"), {}, "split 'val' is unknown"),
        (BIRDS.replace("a/2", "../2"), {}, "'../2.jpg' leads out of the root"),
        (BIRDS.replace("a/2", "/etc/2"), {}, "'/etc/2.jpg' leads out of the root"),
        (BIRDS.replace("crow,", "crow,,"), {}, r"manifest.csv:3: 'a/2.jpg,crow,,Cor.* has 6 cells, but there are 5 columns"),
        (BIRDS.replace("a/2.jpg,", '"a/2.jpg,'), {}, "manifest.csv:3: a quote is opened that is never closed"),
        (BIRDS.replace("width", "split"), {}, "two columns called 'split'"),
        (BIRDS.replace("width", ""), {}, "column 5 has no name"),
        (BIRDS.splitlines()[0] + "\n", {}, "has no rows"),
        ("", {}, "is empty; its first line must name the columns"),
        ("path,label_c,split,a,b,c,d\n1,x,train,1,2,3,\n", {"box": list("abcd")}, "csv:2: one of a, b, c, d is blank"),
        (
            "path,label_c,split,a,b,c,d\n1,x,train,1,2,3,four\n",
            {"box": list("abcd")},
            "csv:2: 'd' is 'four', which is not a number",
        ),
        ("path,label_c,split,a,b,c,d\n1,x,train,1,2,1,4\n", {"box": list("abcd")}, "box that is not x1 < x2"),
    ],
)
def test_a_table_that_does_not_say_what_it_should_is_refused(tmp_path, text, options, complaint):
    with pytest.raises(ValueError, match=complaint):
        read(write_table(tmp_path, text), **options)


def test_lines_are_counted_with_blank_ones_and_line_breaks_in_quotes(tmp_path):
    text = BIRDS.replace("width", "note").replace("640\n", '"two\nlines"\n\n').replace("wren", "")
    with pytest.raises(ValueError, match="manifest.csv:6: species is blank"):
        read(write_table(tmp_path, text))
    assert text.splitlines()[5].startswith("b/3.jpg")  # line 6, whose row ends on 7


def test_a_missing_table_or_root_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"has no manifest.csv; it has no table \(.csv, .tsv, .parquet\)"):
        read(tmp_path)
    with pytest.raises(FileNotFoundError, match="absent does not exist"):
        read(tmp_path / "absent")


def test_an_archive_that_cannot_be_read_is_named(tmp_path):
    (tmp_path / "birds.zip").write_bytes(b"PK no archive")
    with pytest.raises(ValueError, match="birds.zip is not a readable zip file"):
        read(tmp_path / "birds.zip")


def test_columns_that_cannot_be_text_are_refused(tmp_path):
    pq.write_table(pa.table({"path": ["1"], "split": ["train"], "label_c": [0.5]}), tmp_path / "manifest.parquet")
    with pytest.raises(TypeError, match="column 'label_c' holds double, but must hold text .or whole numbers"):
        read(tmp_path)


# The file


def test_a_file_that_is_no_table_is_refused(tmp_path):
    with pytest.raises(ValueError, match="'.xlsx' cannot be read; save the table as .csv, .tsv or .parquet"):
        read_table(write_table(tmp_path, "", "a.xlsx") / "a.xlsx")
    with pytest.raises(ValueError, match="is not a readable Parquet file"):
        parse_table(b"PAR1", "a.parquet", ".parquet")
    with pytest.raises(ValueError, match="must be UTF-8 text"):
        parse_table(b"a,b\n1,\xff\n", "a.csv", ".csv")


def test_labels_get_one_spelling(tmp_path):
    numbers = "path,split,label_k\na,train,1\nb,train,1.0\ne,distractor,-1\nf,distractor,-1.0\n"
    with pytest.warns(LabelSpellingWarning, match="k: two spellings are taken for one class: '1' and '1.0'"):
        assert read(write_table(tmp_path, numbers))[""].table["label_k"].to_pylist() == ["1", "1", None, None]
    words = "path,split,label_k\na,train,Zu\u0308rich\nb,train,Z\u00fcrich\nc,test,-1\n"
    with pytest.warns(LabelSpellingWarning, match="u0308"):
        words = read(write_table(tmp_path, words))[""]
    assert words.table["label_k"].to_pylist() == ["Zürich", "Zürich", "-1"]


@pytest.mark.parametrize(("cell", "complaint"), [("-2", "k is -2, but classes are numbered from 0"), ("-1", "k is blank")])
def test_numbers_below_zero_are_no_classes(tmp_path, cell, complaint):
    with pytest.raises(ValueError, match=complaint):
        read(write_table(tmp_path, f"path,split,label_k\na,train,7\nb,train,{cell}\n"))
