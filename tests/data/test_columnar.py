"""Images in columns of Parquet and Arrow files: what pyarrow reads, in any order, from threads and forked workers."""

import io
import pickle
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import get_context

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from suprank.data.archives import Archive, UnreadableArchiveError
from suprank.data.columnar import BYTE_RANGE, ROW_GROUP, ColumnMembers, ColumnRows
from suprank.data.importers.hf import import_hf
from tests.attacks import attack

VALUES = [bytes([number]) * (number * 37 % 50) for number in range(40)]


def table(values, struct=True):
    cells = [None if one is None else {"bytes": one, "path": "x"} for one in values] if struct else values
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())]) if struct else pa.binary()
    return pa.table({"image": pa.array(cells, kind), "label": list(range(len(values)))})


def plain(path, values, struct=True, **options):
    """As `datasets` 5 writes it: neither compressed nor with a dictionary."""
    pq.write_table(table(values, struct), path, compression="none", use_dictionary=False, **options)
    return path


def arrow(path, values, struct=True, file=False, **options):
    writer = pa.ipc.new_file if file else pa.ipc.new_stream
    with writer(path, table(values, struct).schema, **options) as out:
        out.write_table(table(values, struct), max_chunksize=7)
    return path


def contents(archive, rows):
    return [archive.read(f"image/{row}") for row in rows]


@pytest.mark.parametrize("struct", [True, False])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"row_group_size": 7},
        {"data_page_size": 64, "write_batch_size": 3},
        {"data_page_version": "2.0", "data_page_size": 64, "write_batch_size": 2},
        {"write_page_checksum": True, "write_page_index": True},
    ],
)
def test_plain_parquet_columns_are_ranges_of_bytes_whatever_the_pages(tmp_path, options, struct):
    archive = Archive(plain(tmp_path / "x.parquet", VALUES, struct, **options))
    assert archive.members.columns["image"].method == BYTE_RANGE
    assert list(archive.members.columns) == ["image"]
    assert contents(archive, range(40)) == VALUES
    data = (tmp_path / "x.parquet").read_bytes()
    assert [data[first : first + size] for first, size in archive.members.columns["image"].positions.tolist()] == VALUES


@pytest.mark.parametrize(
    "options", [{"compression": "snappy"}, {"compression": "zstd", "row_group_size": 7}, {"compression": "none"}]
)
def test_compressed_or_dictionary_encoded_columns_are_read_by_row_group(tmp_path, options):
    pq.write_table(table(VALUES), tmp_path / "x.parquet", **options)
    archive = Archive(tmp_path / "x.parquet")
    assert archive.members.columns["image"].method == ROW_GROUP
    assert contents(archive, [39, 0, 20, 7, 6]) == [VALUES[row] for row in (39, 0, 20, 7, 6)]


@pytest.mark.parametrize("file", [True, False])
@pytest.mark.parametrize("struct", [True, False])
def test_arrow_files_are_ranges_of_bytes(tmp_path, struct, file):
    archive = Archive(arrow(tmp_path / "x.arrow", VALUES, struct, file))
    assert archive.members.columns["image"].method == BYTE_RANGE
    assert contents(archive, range(40)) == VALUES


@settings(max_examples=20, deadline=None)
@given(values=st.lists(st.one_of(st.none(), st.binary(max_size=40)), max_size=12), groups=st.integers(1, 5))
def test_every_row_is_what_pyarrow_reads_and_a_null_is_no_image(tmp_path_factory, values, groups):
    folder = tmp_path_factory.mktemp("columns")
    files = [plain(folder / "x.parquet", values, row_group_size=groups), arrow(folder / "x.arrow", values)]
    for archive in map(Archive, files):
        for row, value in enumerate(values):
            if value is not None:
                assert archive.read(f"image/{row}") == value
            else:
                with pytest.raises((FileNotFoundError, UnreadableArchiveError), match=r"no member|is blank"):
                    archive.read(f"image/{row}")
        assert f"image/{len(values)}" not in archive.members
        assert len(archive.members) == len(list(archive.members)) == len(values)


def test_members_that_do_not_exist_and_files_that_changed_or_are_damaged_say_so(tmp_path):
    path = plain(tmp_path / "x.parquet", VALUES)
    archive = Archive(path)
    for name in ("image/40", "image/-1", "image/x", "photo/1", "1", "image/²"):
        assert name not in archive.members
        with pytest.raises(FileNotFoundError, match="has no member"):
            archive.read(name)
    pq.write_table(table(VALUES), path)
    compressed = Archive(path)
    plain(path, VALUES[:5])
    for one in (archive, compressed):
        with pytest.raises(UnreadableArchiveError, match="has changed since it was listed; start again"):
            one.read("image/2")
    pq.write_table(table(VALUES), path, compression="zstd")
    data = path.read_bytes()
    path.write_bytes(b"PAR1" + bytes(200) + data[204:])  # its end, which lists the row groups, is as it was
    with pytest.raises(
        UnreadableArchiveError, match="(?s)x.parquet: member 'image/2' is damaged .*; copy the (file|archive) again"
    ):
        Archive(path).read("image/2")
    path.write_bytes(path.read_bytes()[:-9])
    (tmp_path / "x.arrow").write_bytes(b"nothing")
    for broken in (path, tmp_path / "x.arrow"):
        with pytest.raises(UnreadableArchiveError, match="is not a readable (Parquet|Arrow) file"):
            Archive(broken)
    arrow(tmp_path / "x.arrow", VALUES, options=pa.ipc.IpcWriteOptions(compression="zstd"))
    with pytest.raises(
        UnreadableArchiveError,
        match="x.arrow is not a .* file: it is compressed, so it has no random access; save",
    ):
        Archive(tmp_path / "x.arrow")


def read_in_fork(archive, rows, answers):
    answers.put(contents(archive, rows))


@pytest.mark.parametrize("write", [plain, lambda path, values: pq.write_table(table(values), path, row_group_size=5) or path])
def test_threads_forked_workers_and_pickles_read_the_same(tmp_path, write):
    archive = Archive(write(tmp_path / "x.parquet", VALUES))
    order = [(7 * row) % 40 for row in range(40)]
    expected = [VALUES[row] for row in order]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda row: archive.read(f"image/{row}"), order)) == expected
    context = get_context("fork")
    answers = context.SimpleQueue()
    workers = [context.Process(target=read_in_fork, args=(archive, order, answers)) for _ in range(2)]
    for worker in workers:
        worker.start()
    assert [answers.get() for _ in workers] == [expected, expected]
    for worker in workers:
        worker.join()
    assert contents(pickle.load(io.BytesIO(pickle.dumps(archive))), order) == expected


ROW_NAMES = st.builds(
    "{}/{}{}".format, st.sampled_from(["image", "a/b", "mask", ""]), st.sampled_from(["", "0", "-", " "]), st.integers(0, 12)
) | st.sampled_from(["image", "image/", "image/1 ", "image/0/1"])


@settings(max_examples=40, deadline=None)
@given(st.lists(ROW_NAMES, max_size=8))
def test_rows_are_found_at_once_as_one_by_one(names):
    positions = np.array([[5, 3], [0, -1], [9, 0]])
    members = ColumnMembers({"image": ColumnRows(BYTE_RANGE, positions), "a/b": ColumnRows(BYTE_RANGE, positions[:2])})
    assert members.contain(pa.array(names, pa.string())).tolist() == [name in members for name in names]


def test_a_page_that_leads_back_to_itself_has_an_end(tmp_path):
    path = plain(tmp_path / "x.parquet", [b"1234" * 20], struct=False, data_page_version="2.0")
    header = bytes.fromhex("1506 1500 1529 5c 1500 1500 1500 1500 1529 1500 00 00".replace(" ", ""))
    assert len(header) == 21  # as many bytes back, from its end: 0x29 is -21
    at = pq.read_metadata(path).row_group(0).column(0).data_page_offset
    data = path.read_bytes()
    path.write_bytes(data[:at] + header + data[at + len(header) :])
    assert attack(lambda: Archive(path), seconds=5) == ""
    assert "member 'image/0'" in attack(lambda: Archive(path).read("image/0"), seconds=5)


@pytest.mark.parametrize("file", [True, False])
def test_offsets_out_of_an_arrow_file_are_refused_and_end_no_process(tmp_path, file):
    texts = ["first", "second", "third"]
    table = pa.table({"image": [b"1", b"2", b"3"], "label": texts})
    with (pa.ipc.new_file if file else pa.ipc.new_stream)(tmp_path / "x.arrow", table.schema) as out:
        out.write_table(table)
    data = (tmp_path / "x.arrow").read_bytes()
    offsets = np.array([0, 5, 11, 16], np.int32).tobytes()
    assert data.count(offsets) == 1
    (tmp_path / "x.arrow").write_bytes(data.replace(offsets, np.array([0, 2**30, 2**30 + 9, 2**30 + 16], np.int32).tobytes()))
    for read in (Archive, import_hf):
        assert "x.arrow is not a readable Arrow file" in attack(lambda read=read: read(tmp_path / "x.arrow"))
