"""Label files: what becomes a level, which rows share a class, and what is refused in which words."""

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from suprank.evaluation.label_encoding import LabelSpellingWarning, encode_labels, item_ids
from suprank.evaluation.label_tables import LabelTable, read_label_table

MANIFEST = "path,split,label_species,label_genus\na.jpg,test,robin,erithacus\nb.jpg,test,raven,corvus\nc.jpg,test,crow,corvus\n"


def text(path, content):
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def table(**columns):
    return LabelTable("made.csv", tuple(columns), tuple(columns.values()))


def parquet(path, **columns):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    pq.write_table(pa.table(columns), path)
    return path


def test_a_manifest_becomes_labels_finest_first(tmp_path):
    labels = encode_labels(read_label_table(text(tmp_path / "q.csv", MANIFEST)))
    assert labels.names == ("species", "genus")
    assert labels.queries.tolist() == [[0, 0], [1, 1], [2, 1]]
    assert labels.queries.dtype == np.int64
    assert labels.gallery is None


def test_the_same_value_has_the_same_id_in_queries_and_gallery():
    labels = encode_labels(table(label_x=["b", "a", "b"]), table(label_x=["c", "a", "b", "c"]))
    assert labels.queries.tolist() == [[0], [1], [0]]
    assert labels.gallery.tolist() == [[2], [1], [0], [2]]


def test_the_same_value_is_the_same_class_whatever_the_kind_of_file(tmp_path):
    as_text = read_label_table(text(tmp_path / "q.csv", "label\n12\n 7\n"))
    as_numbers = read_label_table(parquet(tmp_path / "g.parquet", label=[7, 12, None]))
    labels = encode_labels(as_text, as_numbers)
    assert labels.queries.tolist() == [[0], [1]]
    assert labels.gallery.tolist() == [[1], [0], [-1]]


def test_empty_cells_nulls_and_minus_one_have_no_class(tmp_path):
    assert encode_labels(table(label=["", "-1", " ", "x"])).queries.tolist() == [[-1], [-1], [-1], [0]]
    assert encode_labels(table(label=np.array([-1, 5]))).queries.tolist() == [[-1], [0]]
    path = parquet(tmp_path / "q.parquet", label_a=["x", None, "-1"], label_b=[7, None, 3])
    assert encode_labels(read_label_table(path)).queries.tolist() == [[0, 0], [-1, -1], [-1, 1]]


def test_gaps_are_filled_in_queries_and_gallery_together():
    queries = table(label_s=["lynx", "puma", "lion"], label_g=["", "-1", "Panthera"], label_f=["F", "F", "F"])
    gallery = table(label_s=["puma", "", "lynx"], label_g=["", "", ""], label_f=["F", "", "F"])
    labels = encode_labels(queries, gallery, fill_gaps=True)
    assert labels.queries.tolist() == [[0, 1, 0], [1, 2, 0], [2, 0, 0]]
    assert labels.gallery.tolist() == [[1, 2, 0], [-1, -1, -1], [0, 1, 0]]
    with pytest.raises(ValueError, match="label_s is 'lynx', but label_g is empty, .*; fill it in, or let --fill-gaps"):
        encode_labels(queries, gallery)
    with pytest.raises(
        ValueError, match="row 0: label_g is 'Panthera', but label_f is empty, .*; fill it in, or empty the finer"
    ):
        encode_labels(table(label_g=["Panthera"], label_f=[""]), fill_gaps=True)
    named = table(label_s=["lynx"], label_g=["Lynx"], label_f=["F"])
    complaint = "made.csv, row 0, and made.csv, row 0: both have label_s 'lynx', but label_g is blank and 'Lynx'; give all rows"
    with pytest.raises(ValueError, match=complaint):
        encode_labels(queries, named, fill_gaps=True)


cells = st.text(alphabet="abé,\"'\t\n;-1 ", max_size=4) | st.integers(-3, 3).map(str)
labels = cells.filter(lambda cell: not re.fullmatch(r"\s*-0*([2-9]|\d{2,})\s*", cell))


@pytest.mark.parametrize(
    ("mine", "theirs"),
    [
        (["1", "2", "10"], ["10.0", "1.0", "2.00"]),
        (["caf\u00e9", "cr\u00eape", "x"], ["x", "cafe\u0301", "cre\u0302pe"]),
        (np.array([1, 2, 10]), ["10.0", " 1.0", "2.0"]),
    ],
    ids=["whole numbers", "accents", "integers"],
)
def test_spellings_of_one_value_are_one_class_in_both_files_and_are_named(mine, theirs):
    with pytest.warns(LabelSpellingWarning) as seen:
        found = encode_labels(table(label=mine), table(label=theirs))
    assert set(found.queries[:, 0].tolist()) == set(found.gallery[:, 0].tolist()) == {0, 1, 2}
    assert str(seen[0].message).startswith("label: two spellings are taken for one class: '")
    assert ascii(str(mine[1]))[1:-1] in str(seen[0].message)
    assert item_ids(table(id=theirs), "id") == [str(value) for value in np.array(mine)[found.gallery[:, 0]]]


def test_minus_one_of_a_spreadsheet_is_no_label_and_other_numbers_stay_apart():
    values = ["-1.0", "", "-1", "1.5", "1", "01", "1e0", "1.", "v1.0", ".0"]
    assert encode_labels(table(label=values)).queries[:, 0].tolist() == [-1, -1, -1, 0, 1, 2, 3, 4, 5, 6]
    with pytest.raises(ValueError, match="label is -2, but"):
        encode_labels(table(label=["-2.0"]))


@pytest.mark.parametrize("cell", ["-2", " -5 ", "-11", "-007"])
def test_numbers_below_minus_one_are_refused_as_evaluate_does(cell):
    with pytest.raises(
        ValueError, match=rf"made.csv, row 1: label is {cell.strip()}, but .* 0 or more, and −1 or an empty cell"
    ):
        encode_labels(table(label=["0", cell]))
    with pytest.raises(ValueError, match=rf"row 0: label is {cell.strip()}"):
        encode_labels(table(label=["0", "-1"]), table(label=[cell]))


def test_unsigned_ids_beyond_int64_are_refused(tmp_path):
    np.save(tmp_path / "q.npy", np.array([0, 2**63], np.uint64))
    with pytest.raises(ValueError, match=r"holds 9223372036854775808, but ids must be below 2\^63"):
        read_label_table(tmp_path / "q.npy")
    np.save(tmp_path / "q.npy", np.array([0, 2**63 - 1], np.uint64))
    assert encode_labels(read_label_table(tmp_path / "q.npy")).queries[:, 0].tolist() == [0, 1]


@given(values=st.lists(labels, min_size=1), split=st.integers(0, 5))
def test_ids_are_equal_exactly_where_values_are(values, split):
    ids = encode_labels(table(label=values)).queries[:, 0]
    plain = np.array([value.strip() for value in values])
    known = ~np.isin(plain, ["", "-1"])
    assert ((ids == -1) == ~known).all()
    assert ((ids[:, None] == ids) == (plain[:, None] == plain))[known][:, known].all()
    if 0 < split < len(values):  # and cutting the rows in two tables changes nothing
        halves = encode_labels(table(label=values[:split]), table(label=values[split:]))
        assert np.concatenate([halves.queries, halves.gallery])[:, 0].tolist() == ids.tolist()


@given(rows=st.lists(st.tuples(cells, cells), min_size=1), tabs=st.booleans())
def test_what_csv_writes_is_read_back(tmp_path_factory, rows, tabs):
    import csv

    path = tmp_path_factory.mktemp("csv") / ("t.tsv" if tabs else "t.csv")
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, delimiter="\t" if tabs else ",").writerows([("one", "two"), *rows])
    found = read_label_table(path)
    assert found.names == ("one", "two")
    assert list(zip(*found.columns, strict=True)) == rows


def test_a_byte_order_mark_quotes_tabs_and_unicode_are_read(tmp_path):
    found = read_label_table(text(tmp_path / "q.csv", '\ufefflabel_species,path\r\n"rouge, gorge",é.jpg\r\n鴉,b.jpg\r\n\r\n'))
    assert found.names == ("label_species", "path")
    assert found.column("species") == ["rouge, gorge", "鴉"]
    assert read_label_table(text(tmp_path / "q.TSV", "label\tpath\na,b\tc\n")).columns == (["a,b"], ["c"])


def test_integer_arrays_are_columns_finest_first(tmp_path):
    np.save(tmp_path / "one.npy", np.array([4, 4, -1], np.int32))
    np.save(tmp_path / "two.npy", np.array([[4, 1], [5, 1]], np.uint64))
    one, two = read_label_table(tmp_path / "one.npy"), read_label_table(tmp_path / "two.npy")
    assert (one.names, two.names) == (("label",), ("label_0", "label_1"))
    assert encode_labels(one).queries.tolist() == [[0], [0], [-1]]
    assert encode_labels(two).names == ("0", "1")
    assert encode_labels(two).queries.tolist() == [[0, 0], [1, 0]]


def test_parquet_gives_strings_categories_and_integers_and_leaves_embeddings_alone(tmp_path):
    pa = pytest.importorskip("pyarrow")
    path = parquet(
        tmp_path / "all.parquet",
        label_s=["a", "b"],
        label_c=pa.array(["x", None]).dictionary_encode(),
        label_i=pa.array([2**64 - 1, 1], pa.uint64()),
        label_n=pa.nulls(2),
        embedding=[[1.0, 2.0], [3.0, 4.0]],
        label_f=[0.5, 1.5],
    )
    found = read_label_table(path)
    assert found.names == ("label_s", "label_c", "label_i", "label_n")
    for level, ids in {"s": [0, 1], "c": [0, -1], "i": [0, 1], "n": [-1, -1]}.items():
        assert encode_labels(found, levels=[level]).queries[:, 0].tolist() == ids
    with pytest.raises(
        ValueError, match="column 'embedding' is list<element: double>, but labels and ids are strings or integers"
    ):
        found.column("embedding")
    with pytest.raises(ValueError, match="column 'label_f' is double"):
        encode_labels(found, levels=["f"])


def test_what_pandas_writes_beside_its_columns_is_no_label(tmp_path):
    assert read_label_table(parquet(tmp_path / "q.parquet", x=["a"], __index_level_0__=[5])).names == ("x",)


@pytest.mark.parametrize(
    ("columns", "asked", "names"),
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
def test_levels_are_those_asked_for_or_else_the_label_columns_or_else_the_only_other_column(columns, asked, names):
    found = table(**{name: ["x"] for name in columns})
    assert encode_labels(found, levels=asked).names == names


def test_which_of_several_columns_are_labels_is_not_guessed():
    with pytest.raises(
        ValueError, match=r"no label column \(its columns: image, species\); .* or name them with --level, so that no id"
    ):
        encode_labels(table(image=["1", "2"], species=["a", "a"]))


def test_the_id_column_is_no_level():
    found = table(image=["1", "2"], species=["a", "b"])
    assert encode_labels(found, without=["image"]).names == ("species",)
    assert item_ids(found, "image") == ["1", "2"]
    assert item_ids(table(id=np.array([3, 4])), "id") == ["3", "4"]


# What is refused


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("q.txt", "", "'.txt' cannot be read; save labels as .csv, .tsv, .parquet or .npy"),
        ("q", "", "'no extension' cannot be read"),
        ("q.csv", "", "is empty; its first line must name the columns"),
        ("q.csv", "label\n", "has no rows; it must have one for each embedding"),
        ("q.csv", "0,1\n2,3\n", "the first line is 0,1, but must name the columns; add a line of names"),
        ("q.csv", "a,,b\n1,2,3\n", "column 2 has no name"),
        ("q.csv", "a,b,a\n1,2,3\n", "has two columns called 'a'; rename one"),
        ("q.csv", "a,b\n1,2\n3,4,5\n", ":3: 3 cells under 2 names; put cells that hold a comma in double quotes"),
        ("q.tsv", "a\tb\n1\n", ":2: 1 cells under 2 names; put cells that hold a tab in double quotes"),
        ("q.csv", "a\n1\n\n2\n", ':3: the line is blank; delete it, or write "" for a row without a label'),
        ("q.csv", 'a\n"1\n2\n', ":2: a quote is opened that is never closed"),
        ("q.csv", b"a\n\xe9\n", "is not UTF-8 .* at byte 2.; save it as UTF-8"),
        ("q.npy", b"hello", "is not a readable .npy file"),
        ("q.parquet", b"hello", "is not a readable Parquet file"),
    ],
)
def test_bad_files_are_refused_with_a_way_out(tmp_path, name, content, message):
    if name.endswith("parquet"):
        pytest.importorskip("pyarrow")
    path = text(tmp_path / name, content)
    with pytest.raises(ValueError, match=message) as refusal:
        read_label_table(path)
    assert str(refusal.value).startswith(str(path))


def test_a_missing_file_and_a_folder_are_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="q.csv: there is no such file"):
        read_label_table(tmp_path / "q.csv")
    (tmp_path / "q.csv").mkdir()
    with pytest.raises(IsADirectoryError, match="q.csv: this is not a file"):
        read_label_table(tmp_path / "q.csv")


@pytest.mark.parametrize(
    ("array", "error", "message"),
    [
        (np.ones((3, 2)), TypeError, "holds float64, but labels are integers; is this a file of embeddings"),
        (np.array([{}]), TypeError, "holds Python objects"),
        (np.ones((3, 2, 1, 1), int), ValueError, r"has shape \(3, 2, 1, 1\), but labels must be \[N\] or \[N, L\]"),
        (np.ones((3, 0), int), ValueError, r"has shape \(3, 0\)"),
        (np.ones(0, int), ValueError, "has no rows"),
    ],
)
def test_arrays_that_are_no_labels_are_refused(tmp_path, array, error, message):
    np.save(tmp_path / "q.npy", array)
    with pytest.raises(error, match=message):
        read_label_table(tmp_path / "q.npy")


def test_a_parquet_file_of_embeddings_alone_has_no_labels(tmp_path):
    with pytest.raises(ValueError, match=r"has no column of strings or integers \(its columns: embedding \(list"):
        read_label_table(parquet(tmp_path / "q.parquet", embedding=[[1.0]]))


def test_lists_of_one_length_are_sets_of_labels(tmp_path):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    lists = pa.FixedSizeListArray.from_arrays(pa.array([5, 7, 7, -1]), 2)
    pq.write_table(pa.table({"label_thing": lists}), tmp_path / "q.parquet")
    assert encode_labels(read_label_table(tmp_path / "q.parquet")).queries.tolist() == [[[0, 1]], [[1, -1]]]


def test_two_columns_of_one_name_are_refused_in_parquet_too(tmp_path):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    pq.write_table(pa.Table.from_arrays([pa.array(["x"])] * 2, ["label", "label"]), tmp_path / "q.parquet")
    with pytest.raises(ValueError, match="q.parquet has two columns called 'label'; rename one"):
        read_label_table(tmp_path / "q.parquet")


def test_a_row_count_that_differs_is_refused_with_both_numbers():
    with pytest.raises(ValueError, match="made.csv has 3 rows and gallery has 4, but every embedding needs one row of labels"):
        table(label=["a", "b", "c"]).check_rows(4, "gallery")
    table(label=["a", "b", "c"]).check_rows(3, "gallery")


def test_an_unknown_column_is_refused_with_the_nearest_name():
    found = table(path=["a"], label_species=["b"], label_genus=["c"])
    with pytest.raises(ValueError, match="made.csv has no column 'specie'; did you mean 'label_species'?"):
        encode_labels(found, levels=["specie"])
    with pytest.raises(ValueError, match="has no column 'zzz'; choose from path, label_species, label_genus"):
        item_ids(found, "zzz")
    with pytest.raises(ValueError, match="has no column 'label_genus'"):
        encode_labels(found, table(label_species=["b"]))


def test_a_level_asked_for_twice_is_refused():
    with pytest.raises(ValueError, match="level 'label_a' is named twice; name each level once, finest first"):
        encode_labels(table(label_a=["x"], label_b=["y"]), levels=["a", "b", "label_a"])


def test_levels_the_wrong_way_round_are_refused_by_name():
    fine, coarse = ["a", "b", "c"], ["x", "x", "y"]
    with pytest.raises(
        ValueError, match="made.csv, row 0: label_coarse 'x' stands under label_fine 'a', and under 'b' in made.csv"
    ):
        encode_labels(table(label_coarse=coarse, label_fine=fine))
    assert encode_labels(table(label_coarse=coarse, label_fine=fine), levels=["fine", "coarse"]).names == ("fine", "coarse")


def test_a_label_under_two_parents_is_refused_wherever_the_second_is():
    one, two = table(label_s=["p", "v"], label_g=["t", "t"]), table(label_s=["", "q", "v"], label_g=["u", "t", "u"])
    with pytest.raises(
        ValueError, match="row 1: label_s 'v' stands under label_g 't', and under 'u' in made.csv, row 2, .*--level"
    ):
        encode_labels(one, two)


def test_a_label_without_its_parent_is_refused_and_a_parent_alone_is_not():
    with pytest.raises(ValueError, match="row 1: label_s is 'w', but label_g is empty.*; fill it in, or empty the finer label"):
        encode_labels(table(label_s=["v", "w"], label_g=["t", ""]))
    assert encode_labels(table(label_s=["v", ""], label_g=["t", "t"])).queries.tolist() == [[0, 0], [-1, 0]]


def test_a_table_without_labels_is_refused():
    with pytest.raises(ValueError, match=r"has no label column \(its columns: path, split\); call them label_<level>"):
        encode_labels(table(path=["a"], split=["test"]))


def test_rows_without_an_id_are_refused():
    message = r"7 of 8 rows \(0, 2, 3, 4, 5, ...\) have no 'image', and would all count as the same item"
    with pytest.raises(ValueError, match=message):
        item_ids(table(image=["", "x", *[" "] * 5, "-1"]), "image")
