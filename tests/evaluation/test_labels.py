"""Labels as text, in data frames and in files: what becomes a level, which rows share a class, and what is refused."""

import numpy as np
import pandas as pd
import polars
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from suprank.evaluation import encode_labels, evaluate
from suprank.evaluation.labels import read_label_files

FRAME = pd.DataFrame({"species": ["robin", "raven", "crow", None], "genus": ["erithacus", "corvus", "corvus", np.nan]})
MANIFEST = "path,split,label_species,label_genus\na.jpg,test,robin,erithacus\nb.jpg,test,raven,corvus\nc.jpg,test,crow,corvus\n"
LABELS, NAMES = [[2, 1], [1, 0], [0, 0], [-1, -1]], {"species": ("crow", "raven", "robin"), "genus": ("corvus", "erithacus")}


def table(path, /, **columns):
    text = [",".join(columns), *(",".join(cells) for cells in zip(*columns.values(), strict=True))]
    path.write_text("\n".join(text) + "\n", encoding="utf-8")
    return path


def parquet(path, /, **columns):
    pq.write_table(pa.table(columns), path)
    return path


@pytest.mark.parametrize(
    "labels",
    [FRAME, polars.from_pandas(FRAME), pa.Table.from_pandas(FRAME), FRAME.to_dict("list"), FRAME.astype("category")],
    ids=["pandas", "polars", "pyarrow", "dictionary", "categories"],
)
def test_a_table_of_any_library_is_encoded_with_its_columns_as_levels(labels):
    encoded = encode_labels(labels)
    assert (encoded.labels.tolist(), encoded.names) == (LABELS, NAMES)
    assert encoded.labels.dtype == torch.int64
    assert encode_labels(labels, ["genus"]).labels.tolist() == [row[1:] for row in LABELS]


def test_text_and_a_series_are_encoded_too():
    assert encode_labels(["b", "a", ""]).labels.tolist() == [[1], [0], [-1]]
    assert encode_labels(np.array([["b", "x"], ["a", "x"]]), ["fine", "coarse"]).names == {"fine": ("a", "b"), "coarse": ("x",)}
    assert encode_labels(FRAME["genus"]).names == {"genus": NAMES["genus"]}
    assert encode_labels(pd.Series([3, 3, 7], dtype="Int64"), ["k"]).labels.tolist() == [[0], [0], [1]]


def test_a_second_table_keeps_the_codes_of_the_first_and_new_classes_follow():
    labels, names = encode_labels({"species": ["puffin", "crow"]}, names=NAMES)
    assert (labels.tolist(), names["species"]) == ([[3], [0]], ("crow", "raven", "robin", "puffin"))


@pytest.mark.parametrize("labels", [FRAME, FRAME["species"], FRAME["species"].tolist(), FRAME["species"].to_numpy()])
def test_evaluate_takes_names_as_it_takes_their_codes(labels):
    embeddings = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    found = evaluate(embeddings, labels)
    encoded, names = encode_labels(labels)
    assert found.means == pytest.approx(evaluate(embeddings, encoded, levels=list(names)).means, nan_ok=True, abs=0)
    beside = evaluate(embeddings[:2], labels[:2], embeddings[2:], labels[2:])
    assert beside.n_items == 2
    with pytest.raises(TypeError, match="labels and gallery_labels are of two kinds.*encode both with encode_labels"):
        evaluate(embeddings[:2], labels[:2], embeddings[2:], [0, 1])


# Files


def test_the_same_value_is_the_same_class_whatever_the_kind_of_file(tmp_path):
    as_text = table(tmp_path / "q.csv", label=["12", " 7"])
    read = read_label_files([as_text, parquet(tmp_path / "g.parquet", label=[7, 12, None])])
    assert [one.tolist() for one in read.labels] == [[[0], [1]], [[1], [0], [-1]]]
    assert (read.levels, read.names, read.ids, read.classes) == (("label",), {"label": ("12", "7")}, None, None)


def test_a_manifest_is_a_label_file_with_ids_and_classes_at_every_level(tmp_path):
    (tmp_path / "q.csv").write_text(MANIFEST)
    read = read_label_files([tmp_path / "q.csv"], ["genus"], id_column="path")
    assert (read.levels, read.labels[0].tolist(), read.ids) == (("genus",), [[1], [0], [0]], [["a.jpg", "b.jpg", "c.jpg"]])
    assert {level: own.tolist() for level, own in read.classes.items()} == {"species": [2, 1, 0], "genus": [1, 0, 0]}


def test_gaps_are_filled_in_queries_and_gallery_together(tmp_path):
    queries = table(tmp_path / "q.csv", s=["lynx", "lion"], g=["", "Panthera"], f=["F", "F"])
    gallery = table(tmp_path / "g.csv", s=["puma", "", "lynx"], g=["", "", ""], f=["F", "", "F"])
    found = read_label_files([queries, gallery], ["s", "g", "f"], fill_gaps=True)
    assert [one.tolist() for one in found.labels] == [[[1, 0, 0], [0, 2, 0]], [[2, 1, 0], [-1, -1, -1], [1, 0, 0]]]
    with pytest.raises(ValueError, match="q.csv:2: g is blank between two labels; fill it in, or let fill_gaps"):
        read_label_files([queries, gallery], ["s", "g", "f"])
    named = table(tmp_path / "n.csv", s=["lynx"], g=["Lynx"], f=["F"])
    with pytest.raises(ValueError, match=r"q.csv:2: s 'lynx' stands under g '.no g. F: lynx', and under 'Lynx' in .*n.csv:2"):
        read_label_files([queries, named], ["s", "g", "f"], fill_gaps=True)


def test_integer_arrays_stay_in_their_file_and_their_columns_are_named(tmp_path):
    np.save(tmp_path / "one.npy", np.array([4, 4, -1], np.int32))
    np.save(tmp_path / "two.npy", np.array([[4, 1], [5, 1]], np.uint64))
    (one,) = read_label_files([tmp_path / "one.npy"]).labels
    assert (one.tolist(), one.dtype) == ([[4], [4], [-1]], np.int32)
    assert read_label_files([tmp_path / "two.npy"]).levels == ("label0", "label1")
    assert read_label_files([tmp_path / "two.npy"], ["fine", "coarse"]).levels == ("fine", "coarse")
    with pytest.raises(ValueError, match="a .npy file has integers, no names and no ids"):
        read_label_files([tmp_path / "one.npy", table(tmp_path / "g.csv", label=["4"])])


def test_a_parquet_file_may_hold_embeddings_and_sets_beside_the_labels(tmp_path):
    things = pa.FixedSizeListArray.from_arrays(pa.array([5, 7, 7, -1]), 2)
    coded = pa.DictionaryArray.from_arrays(pa.array([0, None], pa.uint32()), ["x"])  # unsigned, as polars writes them
    columns = {"label_s": ["a", ""], "label_c": coded, "label_n": pa.nulls(2), "embedding": [[1.0], [2.0]]}
    path = parquet(tmp_path / "q.parquet", **columns, label_things=things, __index_level_0__=[5, 6])
    assert read_label_files([path], ["c"]).labels[0].tolist() == [[0], [-1]]
    assert read_label_files([path], ["things"]).labels[0].tolist() == [[[0, 1]], [[1, -1]]]
    assert read_label_files([parquet(tmp_path / "one.parquet", name=["a", "b"], embedding=[[1.0], [2.0]])]).levels == ("name",)


@pytest.mark.parametrize(
    ("columns", "asked", "levels"),
    [
        (("path", "label_a", "other", "label_b"), (), ("a", "b")),
        (("label", "path"), (), ("label",)),
        (("path", "id", "split", "box", "species"), (), ("species",)),
        (("label_a", "other", "label_b"), ("b", "label_a"), ("b", "a")),
        (("label_a", "other"), ("other",), ("other",)),
        (("label_a", "a"), ("a", "label_a"), ("a", "label_a")),  # a short name that two columns would share is not used
        (("label_", "x"), (), ("label_",)),
    ],
)
def test_levels_are_those_asked_for_or_else_the_label_columns_or_else_the_only_other_column(tmp_path, columns, asked, levels):
    path = table(tmp_path / "q.csv", **{name: ["x"] for name in columns})
    assert read_label_files([path], asked).levels == levels


@pytest.mark.parametrize(
    ("columns", "asked", "message"),
    [
        (
            {"image": ["1", "2"], "species": ["a", "a"]},
            (),
            r"no label column \(its columns: image, species\)",
        ),
        ({"path": ["a"], "split": ["test"]}, (), r"no label column \(its columns: path, split\); call them label_<level>"),
        ({"label_species": ["a"], "x": ["b"]}, ("specie",), "q.csv has no column 'specie'; did you mean 'label_species'?"),
        ({"label_a": ["x"], "label_b": ["y"]}, ("a", "b", "label_a"), "level 'label_a' is named twice; name each level once"),
        ({"label_c": ["x", "x"], "label_f": ["a", "b"]}, (), "q.csv:2: c 'x' stands under f 'a', and under 'b' in .*q.csv:3"),
        ({"label_s": ["v", "w"], "label_g": ["t", ""]}, (), "q.csv:3: there is a label of s, but none of g"),
        ({"0": ["1"], "2": ["3"]}, (), "the first line is 0,2, but must name the columns; add a line of names"),
    ],
)
def test_tables_without_a_tree_of_labels_are_refused(tmp_path, columns, asked, message):
    with pytest.raises(ValueError, match=message):
        read_label_files([table(tmp_path / "q.csv", **columns)], asked)


@pytest.mark.parametrize(
    ("name", "content", "error", "message"),
    [
        ("q.txt", b"", ValueError, "'.txt' cannot be read; save the table as .csv, .tsv or .parquet"),
        ("q.csv", b"label\n", ValueError, "has no rows below its column names"),
        ("q.csv", b"a\n\xe9\n", ValueError, "must be UTF-8 text"),
        ("q.npy", b"hello", ValueError, "is not a readable .npy file"),
        ("q.parquet", b"hello", ValueError, "is not a readable Parquet file"),
        ("q.npy", np.ones((3, 2)), TypeError, "holds float64, but labels are integers; is this a file of embeddings"),
        ("q.csv", None, FileNotFoundError, "q.csv: there is no such file"),
    ],
)
def test_bad_files_are_refused_with_a_way_out(tmp_path, name, content, error, message):
    if isinstance(content, bytes):
        (tmp_path / name).write_bytes(content)
    elif content is not None:
        np.save(tmp_path / name, content)
    with pytest.raises(error, match=message):
        read_label_files([tmp_path / name])


def test_rows_without_an_id_are_refused(tmp_path):
    path = table(tmp_path / "q.csv", label=["a", "b", "c"], image=["", "x", " "])
    with pytest.raises(ValueError, match="q.csv:2: there is no 'image' in 2 of 3 rows, which would all count as the same item"):
        read_label_files([path], id_column="image")
