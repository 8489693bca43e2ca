"""`open_npy`, `read_npz`, `open_parquet`: a forged or damaged file is refused by one sentence that names it, at no cost."""

import io
import re
import zipfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from suprank.data import Manifest
from suprank.files import binary
from suprank.files.atomic import DiskFullError
from suprank.files.binary import open_npy, open_parquet, read_columns, read_npz, read_struct, write_npy
from suprank.files.tables import read_table
from tests.attacks import attack
from tests.disks import disk_of


def header(text):
    return b"\x93NUMPY\x01\x00" + (len(text) + 1).to_bytes(2, "little") + text.encode() + b"\n"


@pytest.mark.parametrize(
    "text",
    [
        "{'descr': '<f4', 'fortran_order': False, 'shape': (20, 8",  # tokenize.TokenError
        "{'descr': '<f4', 'fortran_order': False, 'shape': (20 8), }",  # SyntaxError
        f"{{'descr': '<f4', 'fortran_order': False, 'shape': (0, {2**70}), }}",  # OverflowError
        "{'descr': '<f4', 'fortran_order': False, 'shape': (-1, 8), }",
        "[" * 3000,
    ],
)
def test_a_damaged_header_of_npy_is_refused_with_the_name_of_the_file(tmp_path, text):
    (tmp_path / "x.npy").write_bytes(header(text) + bytes(640))
    with pytest.raises(ValueError, match=r"x\.npy is not a readable \.npy file") as found:
        open_npy(tmp_path / "x.npy")
    assert "\n" not in str(found.value)


def npz(path, member, method=zipfile.ZIP_DEFLATED):
    with zipfile.ZipFile(path, "w", method, compresslevel=1) as archive, archive.open("embeddings.npy", "w") as file:
        for block in member:
            file.write(block)
    return path


@pytest.fixture
def small(monkeypatch):
    """A limit that little content exceeds."""
    monkeypatch.setattr(binary, "FREE_BYTES", 2**24)


def test_an_npz_of_little_that_holds_far_more_is_refused(tmp_path, small):
    rows = header(f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({2**25},), }}")
    path = npz(tmp_path / "x.npz", [rows, *[bytes(2**24)] * 8])
    said = attack(lambda: read_npz(path), megabytes=50)
    assert re.search("x.npz has .* bytes and declares 134,217,8", said)


def test_a_header_in_an_npz_that_claims_more_than_its_member_has_is_refused(tmp_path):
    path = npz(tmp_path / "x.npz", [header(f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({2**40},), }}"), bytes(64)])
    assert "x.npz (embeddings.npy): the file is cut short" in attack(lambda: read_npz(path))


def test_a_manifest_of_little_that_holds_far_more_is_refused(tmp_path, small):
    table = pa.table({"path": pa.repeat("a" * 2**22, 18)})
    pq.write_table(table, tmp_path / "x.parquet", compression="zstd", use_dictionary=False, write_statistics=False)
    said = attack(lambda: Manifest.read(tmp_path / "x.parquet"))
    assert re.search("x.parquet has .* bytes and declares 75,49", said)


def test_a_manifest_that_repeats_one_long_text_is_refused(tmp_path):
    repeated(tmp_path / "x.parquet")
    assert "and declares 600,0" in attack(lambda: Manifest.read(tmp_path / "x.parquet"))


def test_so_is_one_that_lies_about_the_length_of_its_texts(tmp_path):
    repeated(tmp_path / "x.parquet")
    start, found, end = (tmp_path / "x.parquet").read_bytes().rpartition(b"\x80\x98\x9a\xbc\x04")  # 6·10^8 as Thrift writes it
    (tmp_path / "x.parquet").write_bytes(start + b"\x80" * 4 + b"\0" + end)
    assert found
    assert "and declares 600,0" in attack(lambda: Manifest.read(tmp_path / "x.parquet"))


def repeated(path):
    """300 bytes that hold 600 MB."""
    long = pa.DictionaryArray.from_arrays(np.zeros(6_000, np.int32), ["a" * 100_000])
    table = pa.table({"path": long}).replace_schema_metadata()
    pq.write_table(table, path, compression="zstd", store_schema=False)


def test_honest_tables_of_constants_are_read(tmp_path):
    table = pa.table({"label": np.zeros(10**6, np.int64), "name": ["jay"] * 10**6})
    pq.write_table(table, tmp_path / "x.parquet", compression="zstd")
    with open_parquet(tmp_path / "x.parquet") as file:
        assert read_columns(file).equals(table)


@pytest.mark.parametrize("coded", [True, False])
def test_text_is_read_as_a_dictionary_only_if_the_file_has_one(tmp_path, coded):
    table = pa.table({"name": [f"jay {number}" for number in range(70_000)]})
    pq.write_table(table, tmp_path / "x.parquet", use_dictionary=coded, store_schema=False, row_group_size=40_000)
    with open_parquet(tmp_path / "x.parquet") as file:
        assert pa.types.is_dictionary(file.read().schema.types[0]) == coded
        assert read_columns(file).equals(table)


@pytest.mark.parametrize("pages", [b"", b"PAR1" * 9, bytes(9), b"\x15\x00\x15\x00\x15\x01\x00"])  # the last: of −1 bytes
def test_pages_that_cannot_be_read_may_be_dictionaries(pages):
    assert binary._has_dictionary(io.BytesIO(pages), {9: 0, 7: 30, 11: 0})


FORGED = {
    "type": (b"\x15\x0c\x19", b"\x15\x04\x19"),  # of the column's chunk: 2 for int64 in place of 6 for text
    "rows": (b"\x16\x06", b"\x16\x08"),  # 4 in place of 3
}


@pytest.mark.parametrize("what", FORGED)
def test_a_footer_that_contradicts_itself_does_not_end_the_process(tmp_path, what):
    content = io.BytesIO()
    pq.write_table(pa.table({"path": ["a", "b", "c"]}), content)
    old, new = FORGED[what]
    start, found, end = content.getvalue().rpartition(old)
    assert found
    (tmp_path / "x.parquet").write_bytes(start + new + end)
    for read in (Manifest.read, read_table):
        assert "x.parquet is not a readable Parquet file" in attack(lambda read=read: read(tmp_path / "x.parquet"))


def test_text_that_is_not_utf_8_is_refused_where_the_table_is_read(tmp_path):
    cells = pa.array([b"jay", b"\xff"]).view(pa.string())
    pq.write_table(pa.table({"path": cells}), tmp_path / "x.parquet")
    with pytest.raises(ValueError, match="x.parquet is not a readable Parquet file: .*UTF8"):
        read_table(tmp_path / "x.parquet")


def test_structures_of_thrift_are_read_with_lists_and_skipped_text():
    data = bytes.fromhex("15 02 19 25 02 03 18 02 6162 1c 11 00 00")
    assert read_struct(data, 0) == ({1: 1, 2: [1, -2], 3: None, 4: {1: True}}, 14)
    for cut in range(len(data)):
        with pytest.raises((IndexError, ValueError)):
            read_struct(data[:cut], 0)


@pytest.mark.parametrize(
    "array", [np.arange(12.0).reshape(3, 4).T, np.zeros((0, 4), np.int64), np.array([True]), np.float16(3)]
)
def test_what_is_written_is_what_numpy_writes(tmp_path, array):
    np.save(tmp_path / "numpy.npy", np.ascontiguousarray(array))
    write_npy(tmp_path / "ours.npy", array)
    assert (tmp_path / "ours.npy").read_bytes() == (tmp_path / "numpy.npy").read_bytes()


@pytest.mark.parametrize("rows", [30, 30_000])
def test_a_full_disk_is_an_error_also_for_a_file_of_a_few_bytes(tmp_path, rows):
    write_npy(tmp_path / "a.npy", np.arange(10))
    with disk_of(300), pytest.raises(DiskFullError, match="a.npy cannot be written"):
        write_npy(tmp_path / "a.npy", np.arange(rows))
    np.testing.assert_array_equal(open_npy(tmp_path / "a.npy"), np.arange(10))
    assert [file.name for file in tmp_path.iterdir()] == ["a.npy"]
