"""Images in the rows of Arrow files: what pyarrow reads, in any order, from threads and forked workers."""

import io
import pickle
import struct
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import get_context

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from suprank.data.archives import Archive, UnreadableArchiveError
from suprank.data.columnar import ColumnMembers, read_arrow
from suprank.data.importers.hf import import_hf
from tests.attacks import attack, damage

VALUES = [bytes([number]) * (number * 37 % 50) for number in range(40)]
LAYOUTS = {
    "struct": lambda values: pa.array(
        [None if one is None else {"bytes": one, "path": "x"} for one in values],
        pa.struct([("bytes", pa.binary()), ("path", pa.string())]),
    ),
    "binary": lambda values: pa.array(values, pa.binary()),
    "large": lambda values: pa.array(values, pa.large_binary()),
}


def arrow(path, values, layout="struct", file=False, **options):
    table = pa.table({"image": LAYOUTS[layout](values), "label": list(range(len(values)))})
    with (pa.ipc.new_file if file else pa.ipc.new_stream)(path, table.schema, **options) as out:
        out.write_table(table, max_chunksize=7)
    return path


def contents(archive, rows):
    return [archive.read(f"image/{row}") for row in rows]


@pytest.mark.parametrize("file", [True, False])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_images_in_arrow_files_are_ranges_of_bytes(tmp_path, layout, file):
    archive = Archive(arrow(tmp_path / "x.arrow", VALUES, layout, file))
    assert list(archive.members.columns) == ["image"]
    data = (tmp_path / "x.arrow").read_bytes()
    assert [data[first : first + size] for first, size in archive.members.columns["image"].tolist()] == VALUES
    assert contents(archive, range(40)) == VALUES


@pytest.mark.parametrize("kind", [pa.list_(pa.float32()), pa.large_list(pa.float64()), pa.list_(pa.float16(), 3)])
def test_vectors_in_arrow_files_are_ranges_of_bytes(tmp_path, kind):
    number = kind.value_type.to_pandas_dtype()
    rows = [np.arange(3, dtype=number) + row for row in range(20)]
    vectors = pa.array([None if row == 5 else one for row, one in enumerate(rows)], kind)
    with pa.ipc.new_stream(tmp_path / "x.arrow", pa.schema([("v", kind)])) as out:
        out.write_table(pa.table({"v": vectors}).slice(2), max_chunksize=7)
    archive = Archive(tmp_path / "x.arrow")
    found = {row: np.frombuffer(archive.read(f"v/{row}"), number).tolist() for row in range(18) if row != 3}
    assert found == {row: rows[row + 2].tolist() for row in found}
    assert "v/3" not in archive.members


@settings(max_examples=20, deadline=None)
@given(values=st.lists(st.one_of(st.none(), st.binary(max_size=40)), max_size=12), layout=st.sampled_from(sorted(LAYOUTS)))
def test_every_row_is_what_pyarrow_reads_and_a_null_is_no_image(tmp_path_factory, values, layout):
    archive = Archive(arrow(tmp_path_factory.mktemp("columns") / "x.arrow", values, layout))
    for row, value in enumerate(values):
        assert (f"image/{row}" in archive.members) == (value is not None)
        assert value is None or archive.read(f"image/{row}") == value
    assert f"image/{len(values)}" not in archive.members
    assert len(archive.members) == len(list(archive.members)) == len(values)


def test_members_that_do_not_exist_and_files_that_changed_or_are_damaged_say_so(tmp_path):
    path = arrow(tmp_path / "x.arrow", VALUES)
    archive = Archive(path)
    for name in ("image/40", "image/-1", "image/x", "photo/1", "1", "image/²"):
        assert name not in archive.members
        with pytest.raises(FileNotFoundError, match="has no member"):
            archive.read(name)
    arrow(path, VALUES[:5])
    with pytest.raises(UnreadableArchiveError, match="has changed since it was listed; start again"):
        archive.read("image/2")
    path.write_bytes(b"nothing")
    with pytest.raises(UnreadableArchiveError, match="is not a readable Arrow file"):
        Archive(path)
    twice = pa.Table.from_arrays([pa.array([b"1"]), pa.array([b"2"])], ["image", "image"])
    with pa.ipc.new_stream(path, twice.schema) as out:
        out.write_table(twice)
    with pytest.raises(UnreadableArchiveError, match="it has two columns of one name; rename one"):
        Archive(path)


def test_threads_forked_workers_and_pickles_read_the_same(tmp_path):
    archive = Archive(arrow(tmp_path / "x.arrow", VALUES))
    order = [(7 * row) % 40 for row in range(40)]
    expected = [VALUES[row] for row in order]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda row: archive.read(f"image/{row}"), order)) == expected
    answers = get_context("fork").SimpleQueue()
    workers = [get_context("fork").Process(target=lambda: answers.put(contents(archive, order))) for _ in range(2)]
    for worker in workers:
        worker.start()
    assert [answers.get() for _ in workers] == [expected, expected]
    for worker in workers:
        worker.join()
    assert contents(pickle.load(io.BytesIO(pickle.dumps(archive))), order) == expected


def test_rows_are_read_without_the_library_datasets(tmp_path):
    arrow(tmp_path / "x.arrow", VALUES)
    code = (
        "import sys; from pathlib import Path; from suprank.data.archives import Archive;"
        "print(len(Archive(Path(sys.argv[1])).read('image/3')), 'datasets' in sys.modules)"
    )
    shown = subprocess.run([sys.executable, "-c", code, tmp_path / "x.arrow"], capture_output=True, text=True, check=True)
    assert shown.stdout == f"{len(VALUES[3])} False\n"


ROW_NAMES = st.builds(
    "{}/{}{}".format, st.sampled_from(["image", "a/b", "mask", ""]), st.sampled_from(["", "0", "-", " "]), st.integers(0, 12)
) | st.sampled_from(["image", "image/", "image/1 ", "image/0/1"])


@settings(max_examples=40, deadline=None)
@given(st.lists(ROW_NAMES, max_size=8))
def test_rows_are_found_at_once_as_one_by_one(names):
    positions = np.array([[5, 3], [0, -1], [9, 0]])
    members = ColumnMembers({"image": positions, "a/b": positions[:2]})
    assert members.contain(pa.array(names, pa.string())).tolist() == [name in members for name in names]


# Forged files


@pytest.mark.parametrize("file", [True, False])
def test_offsets_out_of_an_arrow_file_are_refused_and_end_no_process(tmp_path, file):
    path = arrow(tmp_path / "x.arrow", [b"1", b"22", b"333"], "binary", file)
    data, offsets = path.read_bytes(), struct.pack("<4i", 0, 1, 3, 6)
    assert data.count(offsets) == 1
    for forged in ((2**30, 2**30 + 1, 2**30 + 3, 2**30 + 6), (0, -5, 3, 6), (0, 7, 3, 6), (0, 1, 3, 2**31 - 1)):
        path.write_bytes(data.replace(offsets, struct.pack("<4i", *forged)))
        for read in (Archive, import_hf):
            assert "x.arrow is not a readable Arrow file" in attack(lambda read=read: read(path))


@pytest.mark.parametrize("codec", ["zstd", "lz4"])
@pytest.mark.parametrize("file", [True, False])
def test_a_compressed_file_is_refused_before_it_expands(tmp_path, codec, file):
    options = pa.ipc.IpcWriteOptions(compression=codec)
    path = arrow(tmp_path / "x.arrow", [bytes(2**28)], "large", file, options=options)
    assert path.stat().st_size < 2**22
    for read in (Archive, import_hf):
        assert "is compressed, so it has no random access" in attack(lambda read=read: read(path), megabytes=200)
    codes = pa.table({"image": [b"1"], "label": pa.array(["a"]).dictionary_encode()})
    with pa.ipc.new_stream(path, codes.schema, options=options) as out:
        out.write_table(codes)
    with pytest.raises(ValueError, match="is compressed"):
        read_arrow(path)


@pytest.mark.parametrize("file", [True, False])
def test_damaged_files_are_read_or_refused_and_their_rows_are_within_them(tmp_path, file):
    """Each of 60 mutants in turn, in one child; the seed of the one that ends it is in the file beside."""
    content = arrow(tmp_path / "x.arrow", VALUES, file=file).read_bytes()

    def read_each():
        for seed in range(60):
            (tmp_path / "x.arrow").write_bytes(damage(content, seed))
            (tmp_path / "seed").write_text(str(seed))
            try:
                archive = Archive(tmp_path / "x.arrow")
            except UnreadableArchiveError:
                continue
            for name in archive.members:
                if name in archive.members:
                    archive.read(name)

    assert attack(read_each, seconds=60) == "", (tmp_path / "seed").read_text()
