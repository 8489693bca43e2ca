"""Embeddings from anywhere: the same rows from every source, read in small blocks, and what is refused in which words."""

import builtins
import gc
import os
import re
import subprocess
import sys
import tempfile
import textwrap
import tracemalloc
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from suprank.evaluation import embeddings as module
from suprank.evaluation import evaluate
from suprank.evaluation.embedding_files import Shards
from suprank.evaluation.embeddings import Embeddings

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

SEVEN_BY_THREE = np.random.default_rng(0).normal(size=(7, 3)).astype(np.float32)


def saved(path, array):
    np.save(path, array)
    return path


def lists(array, kind=None):
    """A column of lists; of fixed size if no kind is given."""
    flat = pa.array(array.ravel())
    fixed = pa.FixedSizeListArray.from_arrays(flat, array.shape[1])
    return fixed if kind is None else fixed.cast(kind(fixed.type.value_type))


def parquet(path, columns, **options):
    pq.write_table(pa.table(columns), path, **options)
    return path


EVERY_SOURCE = {
    "tensor": lambda at, rows: torch.from_numpy(rows),
    "parameter": lambda at, rows: torch.nn.Parameter(torch.from_numpy(rows)),
    "columns of a larger tensor": lambda at, rows: torch.from_numpy(np.hstack([rows, rows]))[:, : rows.shape[1]],
    "array": lambda at, rows: rows,
    "array of reversed rows": lambda at, rows: rows[::-1].copy()[::-1],
    "read-only array": lambda at, rows: np.frombuffer(rows.tobytes(), rows.dtype).reshape(rows.shape),
    "big-endian array": lambda at, rows: rows.astype(rows.dtype.newbyteorder(">")),
    "memmap": lambda at, rows: np.load(saved(at / "map.npy", rows), mmap_mode="r"),
    "slice of a memmap": lambda at, rows: np.load(saved(at / "longer.npy", np.vstack([rows] * 2)), mmap_mode="r")[: len(rows)],
    "path of .npy": lambda at, rows: saved(at / "path.npy", rows),
    "text of .npy": lambda at, rows: str(saved(at / "text.npy", rows)),
    "column-major .npy": lambda at, rows: saved(at / "fortran.npy", np.asfortranarray(rows)),
    "path of .pt": lambda at, rows: torch.save(torch.from_numpy(rows), at / "rows.pt") or at / "rows.pt",
    "parquet, lists of one size": lambda at, rows: parquet(at / "fixed.parquet", {"vector": lists(rows)}),
    "parquet, lists": lambda at, rows: parquet(at / "lists.parquet", {"vector": lists(rows, pa.list_)}),
    "parquet, large lists": lambda at, rows: parquet(at / "large.parquet", {"vector": lists(rows, pa.large_list)}),
    "parquet, columns": lambda at, rows: parquet(at / "columns.parquet", {f"x.{i}": one for i, one in enumerate(rows.T)}),
    "parquet, row groups": lambda at, rows: parquet(at / "groups.parquet", {"vector": lists(rows)}, row_group_size=2),
}


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """The same rows in every place that rows can be."""
    folder = tmp_path_factory.mktemp("sources")
    return {name: make(folder, SEVEN_BY_THREE) for name, make in EVERY_SOURCE.items()}


def test_rows_come_as_asked_for_from_a_worked_example(tmp_path):
    path = saved(tmp_path / "rows.npy", np.array([[3.0, 4.0], [0.0, 2.0], [-6.0, 8.0]], np.float16))
    source = Embeddings.from_source(path)
    assert (len(source), source.dim) == (3, 2)
    assert source.rows(torch.tensor([2, 0, 2])).tolist() == [[-6, 8], [3, 4], [-6, 8]]
    assert source.rows(slice(1, None)).tolist() == [[0, 2], [-6, 8]]
    assert source.norms().tolist() == [5, 2, 10]


@pytest.mark.parametrize("name", EVERY_SOURCE)
@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_rows_are_those_of_the_array_from_any_source_in_any_order(sources, name, data):
    source = Embeddings.from_source(sources[name])
    index = data.draw(st.lists(st.integers(0, 6)) | st.slices(7))
    found = source.rows(torch.tensor(index, dtype=torch.int64) if isinstance(index, list) else index)
    assert found.dtype == torch.float32
    np.testing.assert_array_equal(found.numpy(), SEVEN_BY_THREE[np.array(index, int) if isinstance(index, list) else index])


@pytest.mark.parametrize("name", EVERY_SOURCE)
def test_norms_are_those_of_numpy_from_any_source(sources, name):
    source = Embeddings.from_source(sources[name])
    assert (len(source), source.dim) == SEVEN_BY_THREE.shape
    np.testing.assert_allclose(source.norms().numpy(), np.linalg.norm(SEVEN_BY_THREE.astype(float), axis=1), rtol=1e-7)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.float8_e4m3fn])
def test_rows_of_a_tensor_of_any_float_type_are_float32(dtype):
    tensor = torch.from_numpy(SEVEN_BY_THREE).to(dtype)
    for index in (slice(2, 5), torch.tensor([4, 1])):
        assert torch.equal(Embeddings.from_source(tensor).rows(index), tensor.float()[index])


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.longdouble])
@pytest.mark.parametrize("on_disk", [True, False])
def test_rows_of_an_array_of_any_float_type_are_float32(tmp_path, dtype, on_disk):
    array = SEVEN_BY_THREE.astype(dtype)
    source = Embeddings.from_source(saved(tmp_path / "rows.npy", array) if on_disk else array)
    np.testing.assert_array_equal(source.rows(torch.tensor([5, 0])).numpy(), array[[5, 0]].astype(np.float32))


@pytest.mark.parametrize("kind", [None, pa.list_])
def test_parquet_keeps_float16_small_on_disk_and_rounds_float64_to_float32(tmp_path, kind):
    for stored, kept in ((np.float16, 2), (np.float32, 4), (np.float64, 4)):
        array = SEVEN_BY_THREE.astype(stored)
        source = Embeddings.from_source(parquet(tmp_path / "rows.parquet", {"embedding": lists(array, kind)}, row_group_size=3))
        assert source._stored.itemsize == kept
        np.testing.assert_array_equal(source.rows(slice(None)).numpy(), array.astype(np.float32))


def test_an_embedding_column_is_found_beside_others(tmp_path):
    other = SEVEN_BY_THREE[:, :2] + 1
    columns = {"path": list("abcdefg"), "other": lists(other), "embedding": lists(SEVEN_BY_THREE), "box": [[1, 2]] * 7}
    path = parquet(tmp_path / "rows.parquet", columns)
    np.testing.assert_array_equal(Embeddings.from_source(path).rows(slice(None)).numpy(), SEVEN_BY_THREE)
    np.testing.assert_array_equal(Embeddings.from_source(path, column="other").rows(slice(None)).numpy(), other)


def test_what_pandas_writes_beside_its_columns_is_no_dimension(tmp_path):
    columns = {f"x{i}": column for i, column in enumerate(SEVEN_BY_THREE.T)} | {"__index_level_0__": np.arange(7)}
    source = Embeddings.from_source(parquet(tmp_path / "rows.parquet", columns))
    np.testing.assert_array_equal(source.rows(slice(None)).numpy(), SEVEN_BY_THREE)


def test_embeddings_of_embeddings_are_themselves():
    source = Embeddings.from_source(SEVEN_BY_THREE, name="gallery")
    assert Embeddings.from_source(source, name="other") is source
    assert source.name == "gallery"


def test_memory_of_tensors_and_arrays_is_shared_rather_than_copied():
    array = SEVEN_BY_THREE.copy()
    for source in (array, torch.from_numpy(array)):
        assert Embeddings.from_source(source).rows(slice(None)).data_ptr() == array.ctypes.data


def test_a_tensor_that_learns_gives_rows_without_gradients():
    assert not Embeddings.from_source(torch.randn(3, 2, requires_grad=True)).rows(slice(None)).requires_grad


@pytest.mark.gpu
def test_rows_and_norms_stay_on_the_gpu():
    source = Embeddings.from_source(torch.from_numpy(SEVEN_BY_THREE).cuda())
    assert source.rows(torch.tensor([3, 1])).is_cuda
    assert source.rows(torch.tensor([3, 1]).cuda()).is_cuda
    np.testing.assert_allclose(source.norms().cpu().numpy(), np.linalg.norm(SEVEN_BY_THREE, axis=1), rtol=1e-6)


def test_norms_are_summed_in_float64():
    # 1 + 2²⁴ · 2⁻²⁴ is 2, but float32 loses every one of the small squares that are added to 1 one by one.
    row = torch.full((1, 2**12), 2.0**-6)
    row[0, 0] = 1
    expected = (1 + (2**12 - 1) * 2.0**-12) ** 0.5
    assert Embeddings.from_source(row).norms().item() == pytest.approx(expected, rel=6e-8)
    assert Embeddings.from_source(torch.tensor([[1e-30, 0.0]])).norms().item() == pytest.approx(1e-30)  # squared: 0
    assert Embeddings.from_source(torch.tensor([[3e30, 4e30]])).norms().item() == pytest.approx(5e30)


def test_a_file_is_read_in_blocks_of_a_few_megabytes(tmp_path):
    count, dim = 65536, 128  # 32 MiB
    path = tmp_path / "rows.npy"
    array = np.lib.format.open_memmap(path, "w+", np.float32, (count, dim))
    array[:] = 1
    del array
    source = Embeddings.from_source(path)
    tracemalloc.start()
    try:
        source.norms()
        source.rows(torch.arange(0, count, 64).flip(0))  # 0.5 MiB of rows that are far apart
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1.5 * module.BLOCK_BYTES


@given(st.lists(st.integers(1, 5), min_size=1, max_size=5), st.data())
def test_shards_are_read_like_one_array(sizes, data):
    rows = np.arange(3 * sum(sizes), dtype=np.float32).reshape(-1, 3)
    ends = np.cumsum(sizes)
    shards = Shards([rows[end - size : end] for size, end in zip(sizes, ends, strict=True)])
    assert (shards.shape, shards.dtype) == (rows.shape, rows.dtype)
    start, stop = sorted(data.draw(st.tuples(st.integers(0, len(rows)), st.integers(0, len(rows)))))
    np.testing.assert_array_equal(shards[start:stop], rows[start:stop])
    numbers = np.array(data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=9)), np.int64)
    np.testing.assert_array_equal(shards[numbers], rows[numbers])


def test_several_files_are_evaluated_as_one_collection(tmp_path):
    rows, labels = np.random.default_rng(0).standard_normal((90, 8)).astype(np.float16), np.arange(90) // 3
    for number, part in enumerate(np.split(rows, [7, 64])):
        np.save(tmp_path / f"part-{number}.npy", part)
    expected = evaluate(rows, labels, progress=False).means
    assert evaluate(tmp_path / "part-*.npy", labels, progress=False).means == expected
    files = [str(tmp_path / f"part-{number}.npy") for number in range(3)]
    own = evaluate(rows, labels, files, labels, self_index=range(90), memory_budget=4000, progress=False)
    assert own.means == expected
    assert Embeddings.from_source(files).is_same(Embeddings.from_source(tmp_path / "part-*.npy"))


def test_wrong_shards_are_refused(tmp_path):
    np.save(tmp_path / "a.npy", np.zeros((2, 3), np.float32))
    np.save(tmp_path / "b.npy", np.zeros((2, 4), np.float32))
    torch.save(torch.zeros(2, 3, dtype=torch.bfloat16), tmp_path / "c.pt")
    with pytest.raises(ValueError, match=r"b.npy\) has shape \(2, 4\), but must be \[rows, 3\], as a.npy has"):
        Embeddings.from_source([tmp_path / "a.npy", tmp_path / "b.npy"])
    with pytest.raises(TypeError, match="bfloat16"):
        Embeddings.from_source([tmp_path / "a.npy", tmp_path / "c.pt"])
    with pytest.raises(FileNotFoundError, match="no file matches"):
        Embeddings.from_source(tmp_path / "x*.npy")
    with pytest.raises(TypeError, match="a list of such paths"):
        Embeddings.from_source([])


def test_shards_whose_numbers_and_names_have_another_order_are_refused(tmp_path):
    """Or else row 2 of labels that were written shard by shard would be given to part 10."""
    for number in (1, 2, 10):
        np.save(tmp_path / f"part-{number}.npy", np.full((1, 3), number, np.float32))
        np.save(tmp_path / f"padded-{number:02}.npy", np.full((1, 3), number, np.float32))
    with pytest.raises(ValueError, match=r"by name part-10.npy comes before part-2.npy, by number after it"):
        Embeddings.from_source(tmp_path / "part-*.npy")
    listed = [tmp_path / f"part-{number}.npy" for number in (1, 2, 10)]
    for source in (listed, tmp_path / "padded-*.npy"):
        assert Embeddings.from_source(source).rows(slice(0, 3))[:, 0].tolist() == [1, 2, 10]


def test_every_float16_is_read_as_the_same_number(tmp_path):
    every = np.arange(2**16, dtype=np.uint16).view(np.float16).reshape(-1, 64)
    source = Embeddings.from_source(saved(tmp_path / "half.npy", every))
    np.testing.assert_array_equal(source.rows(slice(None)).numpy(), every.astype(np.float32))
    swapped = Embeddings.from_source(saved(tmp_path / "swapped.npy", every.astype(">f2")))
    np.testing.assert_array_equal(swapped.rows(torch.arange(len(every))).numpy(), every.astype(np.float32))


def test_scattered_rows_of_a_file_are_read_in_file_order_a_block_at_a_time(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "BLOCK_BYTES", 3 * 12)
    source = Embeddings.from_source(saved(tmp_path / "rows.npy", SEVEN_BY_THREE))
    read, reads = source._read, []
    monkeypatch.setattr(source, "_read", lambda which, device: reads.append(which.tolist()) or read(which, device))
    index = [6, 0, 5, 0, 1, 3, 2]
    np.testing.assert_array_equal(source.rows(torch.tensor(index)).numpy(), SEVEN_BY_THREE[index])
    assert reads == [[0, 0, 1], [2, 3, 5], [6]]


def test_a_large_row_group_of_parquet_is_never_in_memory_whole(tmp_path):
    array = np.random.default_rng(0).normal(size=(100_000, 128)).astype(np.float32)  # 49 MiB
    path = parquet(tmp_path / "rows.parquet", {"embedding": lists(array)}, row_group_size=len(array))
    before, pool = pa.default_memory_pool(), pa.proxy_memory_pool(pa.system_memory_pool())
    pa.set_memory_pool(pool)
    try:
        source = Embeddings.from_source(path)
    finally:
        pa.set_memory_pool(before)
    assert 0 < pool.max_memory() < 30 * 2**20
    np.testing.assert_array_equal(source.rows(torch.tensor([99_999, 31_234])).numpy(), array[[99_999, 31_234]])


@pytest.mark.skipif(sys.platform != "linux", reason="the limit counts private memory on Linux only")
def test_files_larger_than_the_memory_there_is_are_read(tmp_path):
    script = """
        import resource, sys
        import numpy as np, torch
        import pyarrow.parquet, pyarrow.compute
        from suprank.evaluation.embeddings import Embeddings

        torch.set_num_threads(1)
        Embeddings.from_source(torch.ones(9, 9)).norms()
        held = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmData")) * 1024
        resource.setrlimit(resource.RLIMIT_DATA, (held + 96 * 2**20,) * 2)
        try:
            np.ones((60_000, 512), np.float32)
        except MemoryError:
            print("the limit holds")
        source = Embeddings.from_source(sys.argv[1])
        assert len(source) == 60_000 and source.dim == 512
        print(source.norms().sum().item(), source.rows(torch.tensor([59_999, 3])).sum().item())
    """
    array = np.lib.format.open_memmap(tmp_path / "rows.npy", "w+", np.float32, (60_000, 512))  # 117 MiB
    array[:, 0] = 2
    environment = os.environ | {"OMP_NUM_THREADS": "1", "ARROW_DEFAULT_MEMORY_POOL": "system"}
    command = [sys.executable, "-c", textwrap.dedent(script), str(tmp_path / "rows.npy")]
    run = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
    assert run.stdout == "the limit holds\n120000.0 4.0\n", run.stderr


def test_the_copy_of_a_parquet_file_has_no_name_and_goes_with_its_object(tmp_path, monkeypatch):
    folder = tmp_path / "copies"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    path = parquet(tmp_path / "rows.parquet", {"embedding": lists(SEVEN_BY_THREE)})

    def held():
        return [line for line in Path("/proc/self/maps").read_text().splitlines() if str(folder) in line]

    source = Embeddings.from_source(path)
    assert list(folder.iterdir()) == []
    if sys.platform == "linux":
        assert len(held()) == 1
        del source
        gc.collect()
        assert held() == []
    with Embeddings.from_source(path) as source:
        source.rows(slice(None))
    with pytest.raises(ValueError, match=r"embeddings \(.*rows.parquet\) is closed; read before close\(\)"):
        source.rows(slice(None))
    assert len(source) == 7
    if sys.platform == "linux":
        assert held() == []


def test_a_disk_without_room_for_the_copy_is_an_error_that_says_how_much(tmp_path, monkeypatch):
    path = parquet(tmp_path / "rows.parquet", {"embedding": lists(SEVEN_BY_THREE)})
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=10))
    with pytest.raises(
        OSError, match=r"gallery .* takes 0.00 GiB .* does not fit in .* \(0.00 GiB free\); .* point TMPDIR to a"
    ):
        Embeddings.from_source(path, name="gallery")


def test_a_disk_that_fills_while_the_copy_is_written_is_the_same_error(tmp_path):
    resource = pytest.importorskip("resource")
    path = parquet(tmp_path / "rows.parquet", {"embedding": lists(np.ones((9000, 64), np.float32))})
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, hard))  # as a full disk does, this fails a write half way
    try:
        with pytest.raises(OSError, match=r"does not fit in .* \(File too large\); free some space, or point TMPDIR"):
            Embeddings.from_source(path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


# What is refused


def file(path, content):
    path.write_bytes(content)
    return path


BAD = {
    "one dimension": (lambda _: torch.ones(4), ValueError, r"gallery has shape \(4,\), but must be 2-D"),
    "three dimensions": (lambda _: np.ones((2, 3, 4)), ValueError, r"gallery has shape \(2, 3, 4\), but must be 2-D"),
    "integers": (lambda _: torch.ones(4, 2, dtype=torch.int64), TypeError, "gallery holds torch.int64, but embeddings are"),
    "integer array": (lambda _: np.ones((4, 2), int), TypeError, "gallery holds int64, but embeddings are floating-point"),
    "complex": (lambda _: np.ones((4, 2), complex), TypeError, "gallery holds complex128"),
    "booleans": (lambda _: torch.ones(4, 2, dtype=torch.bool), TypeError, "gallery holds torch.bool"),
    "no rows": (lambda _: torch.ones(0, 2), ValueError, r"gallery is empty, shape \(0, 2\): .*an empty gallery"),
    "no dimensions": (lambda _: np.ones((2, 0), np.float32), ValueError, r"gallery has shape \(2, 0\): .* 0 dimensions"),
    "sparse": (lambda _: torch.eye(2).to_sparse(), ValueError, r"gallery is a torch.sparse_coo tensor.*\.to_dense\(\)"),
    "masked": (lambda _: np.ma.masked_array(np.ones((2, 2))), TypeError, r"gallery is a masked array.*\.filled"),
    "list": (lambda _: [[1.0]], TypeError, "gallery is <class 'list'>, but must be a float tensor, .* .npy, .parquet or .pt"),
    "none": (lambda _: None, TypeError, "gallery is <class 'NoneType'>"),
    "no file": (lambda at: at / "q.npy", FileNotFoundError, r"gallery \(.*q.npy\): there is no such file; check the path"),
    "folder": (
        lambda at: (at / "q.npy").mkdir() or at / "q.npy",
        IsADirectoryError,
        "this is not a file; give the path of a file",
    ),
    "extension": (lambda at: at / "q.npz", ValueError, "'.npz' cannot be read; save the embeddings as .npy, .parquet or .pt"),
    "no extension": (lambda at: at / "q", ValueError, "'no extension' cannot be read"),
    "no npy": (lambda at: file(at / "q.npy", b"hello world"), ValueError, "is not a readable .npy file .np.save writes one"),
    "empty npy": (lambda at: file(at / "q.npy", b""), ValueError, "is not a readable .npy file"),
    "objects": (lambda at: saved(at / "q.npy", np.array([[{}]])), TypeError, "holds Python objects, which could run code"),
    "integers in npy": (lambda at: saved(at / "q.npy", np.ones((2, 2), np.int32)), TypeError, "holds int32"),
    "no rows in npy": (lambda at: saved(at / "q.npy", np.ones((0, 2))), ValueError, r"is empty, shape \(0, 2\)"),
    "no pt": (
        lambda at: file(at / "q.pt", b"hello world"),
        ValueError,
        "torch cannot read it .*save one tensor with torch.save",
    ),
    "dictionary in pt": (
        lambda at: torch.save({"x": 1}, at / "q.pt") or at / "q.pt",
        TypeError,
        "holds a dict, but must hold one",
    ),
    "no parquet": (lambda at: file(at / "q.parquet", b"hello world"), ValueError, "is not a readable Parquet file"),
    "no rows in parquet": (
        lambda at: parquet(at / "q.parquet", {"embedding": pa.array([], pa.list_(pa.float32()))}),
        ValueError,
        "is empty, .*an empty gallery",
    ),
    "lists of nothing": (
        lambda at: parquet(at / "q.parquet", {"embedding": pa.array([[], []], pa.list_(pa.float32()))}),
        ValueError,
        r"has shape \(2, 0\): embeddings of 0 dimensions",
    ),
    "ragged": (
        lambda at: parquet(at / "q.parquet", {"embedding": [[1.0, 2.0], [3.0, 4.0], [5.0]]}),
        ValueError,
        "column embedding: row 2 has 1 numbers and the rows before have 2",
    ),
    "null row": (
        lambda at: parquet(at / "q.parquet", {"embedding": [[1.0], [2.0], None]}),
        ValueError,
        "column embedding: row 2 is null; fill it in, or remove the row and its label",
    ),
    "null row of one size": (
        lambda at: parquet(at / "q.parquet", {"embedding": pa.array([[1.0], None], pa.list_(pa.float32(), 1))}),
        ValueError,
        "column embedding: row 1 is null",
    ),
    "null number": (
        lambda at: parquet(at / "q.parquet", {"embedding": [[1.0, 2.0], [3.0, None]]}),
        ValueError,
        "row 1 has a null among its numbers",
    ),
    "null in a column": (
        lambda at: parquet(at / "q.parquet", {"x": [1.0, 2.0], "y": [None, 1.0]}),
        ValueError,
        "column y: row 0 is null",
    ),
    "lists of integers": (
        lambda at: parquet(at / "q.parquet", {"embedding": [[1, 2]]}),
        ValueError,
        r"has embedding \(list<element: int64>\), but must have a column of float lists",
    ),
    "columns of labels": (
        lambda at: parquet(at / "q.parquet", {"x": [1.0], "label": [3]}),
        ValueError,
        r"has x \(double\), label \(int64\), but must have .* only float columns",
    ),
    "two columns of one name": (
        lambda at: (
            pq.write_table(pa.Table.from_arrays([pa.array([[1.0]])] * 2, ["e", "e"]), at / "q.parquet") or at / "q.parquet"
        ),
        ValueError,
        "has two columns called 'e'; rename one",
    ),
    "two vectors": (
        lambda at: parquet(at / "q.parquet", {"a": [[1.0]], "b": [[1.0]]}),
        ValueError,
        "a, b are all float lists; rename the right one to `embedding`",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_refused_by_name_with_a_way_out(tmp_path, case):
    make, error, message = BAD[case]
    with pytest.raises(error, match=message) as refusal:
        Embeddings.from_source(make(tmp_path), name="gallery")
    assert str(refusal.value).startswith("gallery")


def test_a_column_that_is_not_there_is_refused_with_those_that_are(tmp_path):
    path = parquet(tmp_path / "q.parquet", {"a": [[1.0]], "b": ["x"]})
    for column in ("b", "c"):
        with pytest.raises(ValueError, match=rf"'{column}' is not a column of float lists; there are a .*, b \(string\)"):
            Embeddings.from_source(path, column=column)


def test_raggedness_and_nulls_are_found_in_later_batches_by_their_row(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "BLOCK_BYTES", 2 * 8)
    rows = [[1.0, 2.0]] * 9
    for bad, message in (([1.0], "row 7 has 1 numbers"), (None, "row 7 is null"), ([1.0, None], "row 7 has a null")):
        path = parquet(tmp_path / "q.parquet", {"embedding": [*rows[:7], bad, *rows[8:]]})
        with pytest.raises(ValueError, match=message):
            Embeddings.from_source(path)


@pytest.mark.parametrize("lost", [1, 60, 150])
def test_a_file_that_was_cut_short_is_refused(tmp_path, lost):
    for path in (saved(tmp_path / "q.npy", SEVEN_BY_THREE), parquet(tmp_path / "q.parquet", {"e": lists(SEVEN_BY_THREE)})):
        file(path, path.read_bytes()[:-lost])
        with pytest.raises(
            ValueError, match=r"cut short: shape \(7, 3\) takes 84 bytes|not a readable .npy file|not a readable Parquet file"
        ):
            Embeddings.from_source(path)


def test_a_damaged_page_of_parquet_is_refused(tmp_path):
    path = parquet(tmp_path / "q.parquet", {"e": lists(np.ones((500, 8)))}, compression="zstd", use_dictionary=False)
    content = bytearray(path.read_bytes())
    content[4:80] = b"\xff" * 76
    file(path, bytes(content))
    with pytest.raises(ValueError, match="not a readable Parquet file"):
        Embeddings.from_source(path)


class Trap:
    """Leaves a file behind when it is unpickled."""

    def __reduce__(self):
        return Path.touch, (Path("sprung"),)


def test_no_code_of_a_file_is_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.save("q.npy", np.array([[Trap()]]), allow_pickle=True)
    torch.save(Trap(), "q.pt")
    for path, error, message in (("q.npy", TypeError, "could run code"), ("q.pt", ValueError, "torch cannot read it")):
        with pytest.raises(error, match=message):
            Embeddings.from_source(path)
    assert not Path("sprung").exists()
    np.load("q.npy", allow_pickle=True)
    assert Path("sprung").exists()  # so the trap was armed


def test_a_row_group_without_rows_is_passed_over(tmp_path):
    full = pa.table({"e": lists(SEVEN_BY_THREE)})
    with pq.ParquetWriter(tmp_path / "q.parquet", full.schema) as writer:
        for part in (full[:0], full[:3], full[:0], full[3:]):
            writer.write_table(part)
    np.testing.assert_array_equal(Embeddings.from_source(tmp_path / "q.parquet").rows(slice(None)).numpy(), SEVEN_BY_THREE)


def test_without_pyarrow_the_extra_is_named(tmp_path, monkeypatch):
    path = parquet(tmp_path / "q.parquet", {"e": lists(SEVEN_BY_THREE)})
    plain = builtins.__import__

    def without_pyarrow(name, *args, **kwargs):
        if name.startswith("pyarrow"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return plain(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without_pyarrow)
    with pytest.raises(ImportError, match=re.escape('reading .parquet needs pyarrow; pip install "suprank[vision]"')):
        Embeddings.from_source(path)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e300])
def test_norms_refuse_rows_that_are_not_finite_and_name_up_to_five(value):
    array = np.ones((20, 4))
    array[3, 1] = value
    source = Embeddings.from_source(array, name="gallery")
    with pytest.raises(ValueError, match=r"^gallery: 1 of 20 rows \(3\) hold NaN, infinity or numbers too large for float32"):
        source.norms()
    array[8:, 0] = value
    with pytest.raises(ValueError, match=r"13 of 20 rows \(3, 8, 9, 10, 11, ...\) hold NaN"):
        source.norms(zero_allowed=True)


def test_a_row_whose_length_overflows_float32_is_not_finite_either():
    with pytest.raises(ValueError, match=r"1 of 1 rows \(0\) hold NaN, infinity or numbers too large"):
        Embeddings.from_source(torch.full((1, 4), 3e38)).norms()


def test_norms_refuse_rows_that_float32_holds_with_few_digits():
    short = torch.full((2, 4), 1e-40)
    with pytest.raises(ValueError, match=r"2 of 2 rows \(0, 1\) hold nothing but zeros, or numbers too small for float32"):
        Embeddings.from_source(short).norms()
    assert Embeddings.from_source(short).norms(zero_allowed=True).gt(0).all()
    torch.testing.assert_close(Embeddings.from_source(short * 1e3).norms(), torch.full((2,), 2e-37))


def test_norms_refuse_rows_of_zeros_unless_they_are_allowed(tmp_path):
    array = np.eye(6, 4)  # the last two rows are zeros
    source = Embeddings.from_source(saved(tmp_path / "q.npy", array), name="queries")
    message = r"^queries \(.*q.npy\): 2 of 6 rows \(4, 5\) hold nothing but zeros, .*; remove the rows and their labels: keep ="
    with pytest.raises(ValueError, match=message):
        source.norms()
    assert source.norms(zero_allowed=True).tolist() == [1, 1, 1, 1, 0, 0]


@pytest.mark.parametrize("index", [torch.tensor([0, 7]), torch.tensor([-1]), torch.tensor([2**40])])
@pytest.mark.parametrize("name", ["tensor", "memmap"])
def test_rows_that_are_not_there_are_refused(sources, name, index):
    with pytest.raises(IndexError, match=rf"index holds {index[-1]}, but embeddings has rows 0 to 6"):
        Embeddings.from_source(sources[name]).rows(index)


@pytest.mark.parametrize("index", [torch.tensor([True] * 7), torch.tensor([0.0]), torch.tensor([[0]]), 3, [1, 2]])
def test_an_index_is_a_slice_or_a_vector_of_integers(index):
    with pytest.raises(TypeError, match="but must be a slice or a 1-D integer tensor"):
        Embeddings.from_source(SEVEN_BY_THREE).rows(index)


def test_masked_arrays_are_imported_by_those_who_have_one(monkeypatch):
    monkeypatch.delitem(sys.modules, "numpy.ma", raising=False)
    monkeypatch.delattr(np, "ma", raising=False)
    Embeddings.from_source(SEVEN_BY_THREE)
    assert "numpy.ma" not in sys.modules
