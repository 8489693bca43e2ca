"""Tables: three ways to read one, and errors that name the file and the line."""

import numpy as np
import pytest

from suprank.files.tables import MalformedError, column_names, parse_table, read_lines, read_rows, read_table, records

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")


def test_a_bom_crlf_and_quotes_are_fine():
    found = parse_table(b'\xef\xbb\xbfa, b\r\n"1,5","say ""hi"""\r\n\r\n2,x\r\n', "a.csv", ".csv")
    assert found.table.to_pylist() == [{"a": "1,5", "b": 'say "hi"'}, {"a": "2", "b": "x"}]
    assert (found.where(0), found.where(1)) == ("a.csv:2", "a.csv:4")


def test_rows_of_parquet_are_counted_from_one():
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"a": ["x", ""]}), sink)
    found = parse_table(sink.getvalue().to_pybytes(), "a.parquet", ".parquet")
    with pytest.raises(ValueError, match="a.parquet, row 2: it is blank"):
        found.refuse(np.array([False, True]), lambda row: "it is blank")


def test_a_row_is_named_by_its_first_line_or_where_csv_gives_up_by_its_number(tmp_path):
    found = parse_table(b'a,b\n1,"x\ny"\n2,z\n', "a.csv", ".csv")
    assert (found.where(0), found.where(1), found.where(2)) == ("a.csv:2", "a.csv:4", "a.csv:?")
    found = parse_table(b"a,b\n1," + b"x" * 200_000 + b"\n2,y\n", "a.csv", ".csv")
    assert found.where(1) == "a.csv, row 2"


def test_quotes_within_a_cell_are_characters_and_a_quote_that_stays_open_is_refused():
    assert parse_table(b'a,b\n5" disk,x\n', "a.csv", ".csv").column("a").to_pylist() == ['5" disk']
    with pytest.raises(MalformedError, match="a.csv:2: a quote is opened that is never closed"):
        parse_table(b'a,b\n"5,x\n6,y\n', "a.csv", ".csv")
    with pytest.raises(MalformedError, match="x.tsv:2: wrong quoting .*; expected cells"):
        list(records('a\n"1"2\n', "x.tsv", "\t"))


def test_rows_are_the_same_of_text_and_of_parquet(tmp_path):
    (tmp_path / "t.tsv").write_bytes(b"\xef\xbb\xbfb\ta\r\n1\tx\r\n\r\n2\t\r\n")
    pq.write_table(pa.table({"b": [1, 2], "a": ["x", None]}), tmp_path / "t.parquet")
    for name, lines in (("t.tsv", [2, 4]), ("t.parquet", [1, 2])):
        rows = read_rows(tmp_path / name, ["a", "b"], lambda cells: None)
        assert (rows.rows, rows.lines) == ([("x", "1"), ("", "2")], lines)
        assert rows.where(1) == f"{tmp_path / name}:{lines[1]}"
        assert column_names(tmp_path / name) == ["b", "a"]


def test_bad_rows_are_refused_or_listed_with_their_lines(tmp_path):
    file = tmp_path / "t.csv"
    file.write_bytes(b"a,b\n1,x\n2\n3,\xe9\n4,\0\n5,no\n")
    with pytest.raises(MalformedError, match=r"t.csv:3: 1 cells; expected 2 \(a, b\)"):
        read_rows(file, ["b"], lambda cells: None)
    rows = read_rows(file, ["b"], lambda cells: "no." if cells[0] == "no" else None, skip_bad=True)
    assert rows.rows == [("x",)]
    assert [(one.line, one.problem.partition(";")[0]) for one in rows.rejects] == [
        (3, "1 cells"),
        (4, "b holds the byte 0xE9, which is not UTF-8 (Latin-1?)"),
        (5, "b holds a NUL"),
        (6, "no."),
    ]
    with pytest.raises(MalformedError, match="t.csv:1: none of its 5 rows is right; expected one or more with b"):
        read_rows(file, ["b"], lambda cells: "no", skip_bad=True)
    for column, complaint in (("c", "there is no column 'c'"), ("a", "two columns are called 'a'")):
        file.write_text("a,a\n1,2\n")
        with pytest.raises(MalformedError, match=f"t.csv:1: {complaint}"):
            read_rows(file, [column], lambda cells: None)


def test_lines_of_a_text_file_keep_their_white_space(tmp_path):
    file = tmp_path / "labels.txt"
    file.write_bytes(b"\xef\xbb\xbf jay \r\n\n" + b"x" * 1001 + b"\nwren")
    with pytest.raises(MalformedError, match="labels.txt:3: the line has 1,001 letters, where a label has 1,000 at most"):
        read_lines(file)
    rows = read_lines(file, skip_bad=True)
    assert (rows.rows, rows.lines, len(rows.rejects)) == ([(" jay ",), ("wren",)], [1, 4], 1)


@pytest.mark.parametrize(
    "reader", [lambda path: read_rows(path, ["a"], lambda cells: None), read_lines, read_table, column_names]
)
def test_a_file_that_does_not_exist_is_refused(tmp_path, reader):
    with pytest.raises(FileNotFoundError, match="t.csv does not exist .the working folder is"):
        reader(tmp_path / "t.csv")
    (tmp_path / "t.csv").mkdir()
    with pytest.raises(FileNotFoundError, match="is a folder; name a file"):
        reader(tmp_path / "t.csv")


def test_other_kinds_of_files_are_refused(tmp_path):
    (tmp_path / "t.xlsx").write_bytes(b"")
    with pytest.raises(MalformedError, match="'.xlsx' cannot be read; save the table as .csv, .tsv or .parquet"):
        read_table(tmp_path / "t.xlsx")
    with pytest.raises(MalformedError, match="a.parquet is not a readable Parquet file"):
        parse_table(b"hello", "a.parquet", ".parquet")


@pytest.mark.parametrize("name", ["label_espèce", '"label ""espèce"""'])
def test_column_names_that_are_not_utf_8_are_refused_and_007_does_not_become_7(tmp_path, name):
    (tmp_path / "t.csv").write_bytes(f"path,{name}\na,007\nb,7\n".encode("latin-1"))
    with pytest.raises(MalformedError, match="the column names are not UTF-8"):
        read_table(tmp_path / "t.csv")
    (tmp_path / "t.csv").write_text(f"path,{name}\na,007\nb,7\n", encoding="utf-8")
    assert read_table(tmp_path / "t.csv").table.column(1).to_pylist() == ["007", "7"]
