import json
import pickle
import signal
import threading

import numpy as np
import pytest

from suprank.embedding import shards
from suprank.embedding.shards import write_embeddings
from suprank.executors.local import Answer, Crashed, ExperimentStopped
from suprank.files import atomic, binary

COUNT, DIM = 23, 3
RUN = {"model": "abc", "scales": (1, 0.5)}


def vectors(rows):
    """An embedding that says which row it is of."""
    return np.stack([np.asarray(rows), np.asarray(rows) ** 2 / 7, np.full(len(rows), 0.1)], axis=1).astype(np.float32)


def embedding(batch=4, fail_after=None, log=None):
    """`embed_rows` in batches, which may break after a number of them and notes the rows it was asked for."""

    def rows_of(shards):
        rows = np.concatenate(list(shards))
        if log is not None:
            log.append(rows.tolist())
        for number, start in enumerate(range(0, len(rows), batch)):
            if number == fail_after:
                raise KeyboardInterrupt
            yield vectors(rows[start : start + batch])

    return rows_of


def write(out, embed_rows=None, **options):
    options = {"fingerprint": RUN, "shard_rows": 5, **options}
    return write_embeddings(embed_rows or embedding(), COUNT, DIM, out, **options)


def test_the_result_is_one_array_in_order_and_the_parts_are_gone(tmp_path):
    path = write(tmp_path / "a" / "b")
    assert path == tmp_path / "a" / "b" / "embeddings.npy"
    found = np.load(path)
    np.testing.assert_array_equal(found, vectors(np.arange(COUNT)))
    assert found.dtype == np.float32
    assert sorted(file.name for file in path.parent.iterdir()) == [".lock", "embeddings.npy", "run.json"]


@pytest.mark.parametrize("batch", [1, 4, 5, 30])
@pytest.mark.parametrize("broken_after", [0, 1, 3, 5])
def test_after_an_interruption_the_rest_is_computed_and_no_more(tmp_path, batch, broken_after):
    whole = write(tmp_path / "whole").read_bytes()
    if broken_after * batch < COUNT:
        with pytest.raises(KeyboardInterrupt):
            write(tmp_path / "out", embedding(batch, fail_after=broken_after))
        assert not (tmp_path / "out" / "embeddings.npy").exists()
    log = []
    resumed = write(tmp_path / "out", embedding(batch, log=log))
    assert resumed.read_bytes() == whole
    finished = min(broken_after * batch // 5 * 5, COUNT) if broken_after * batch < COUNT else 0
    assert log == [list(range(finished, COUNT))]


@pytest.mark.parametrize("crash", range(6))
def test_a_crash_while_writing_any_part_or_the_result_costs_that_file_alone(tmp_path, monkeypatch, crash):
    whole = write(tmp_path / "whole").read_bytes()
    real, begun = atomic.atomic_writer, []

    def breaking(path):
        begun.append(path.name)
        if len(begun) > crash:
            raise OSError("power cut")
        return real(path)

    for module in (shards, binary):
        monkeypatch.setattr(module, "atomic_writer", breaking)
    with pytest.raises(OSError, match="power cut"):
        write(tmp_path / "out")
    monkeypatch.undo()
    assert begun == [*(f"0000{part}.npy" for part in range(5)), "embeddings.npy"][: crash + 1]
    log = []
    assert write(tmp_path / "out", embedding(log=log)).read_bytes() == whole
    assert log == ([list(range(5 * crash, COUNT))] if crash < 5 else [])


def test_a_crash_before_the_parts_are_removed_leaves_only_that_to_do(tmp_path, monkeypatch):
    monkeypatch.setattr(shards.shutil, "rmtree", lambda *args, **options: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        write(tmp_path)
    monkeypatch.undo()
    log = []
    write(tmp_path, embedding(log=log))
    assert log == []
    assert sorted(file.name for file in tmp_path.iterdir()) == [".lock", "embeddings.npy", "run.json"]


@pytest.mark.parametrize(
    "spoil",
    [
        lambda part: part.write_bytes(part.read_bytes()[:-1]),
        lambda part: part.write_bytes(b""),
        lambda part: part.unlink(),
        lambda part: np.save(part, np.zeros((5, DIM + 1), np.float32)),
        lambda part: np.save(part, np.zeros((5, DIM), np.float64)),
    ],
)
def test_a_part_that_is_not_whole_is_computed_again(tmp_path, spoil):
    with pytest.raises(KeyboardInterrupt):
        write(tmp_path, embedding(5, fail_after=3))
    spoil(tmp_path / "parts" / "00001.npy")
    (tmp_path / ".embeddings.npy.1234.tmp").write_bytes(b"half a result of a process that was killed")
    log = []
    np.testing.assert_array_equal(np.load(write(tmp_path, embedding(log=log))), vectors(np.arange(COUNT)))
    assert log == [[*range(5, 10), *range(15, COUNT)]]
    assert sorted(file.name for file in tmp_path.iterdir()) == [".lock", "embeddings.npy", "run.json"]


def test_a_finished_run_is_not_computed_again(tmp_path):
    path, log = write(tmp_path), []
    before = path.read_bytes()
    assert write(tmp_path, embedding(log=log)).read_bytes() == before
    assert log == []


@pytest.mark.parametrize("broken", [True, False])
def test_another_run_in_the_folder_is_refused_by_name(tmp_path, broken):
    if broken:
        with pytest.raises(KeyboardInterrupt):
            write(tmp_path, embedding(5, fail_after=2))
    else:
        write(tmp_path)
    with pytest.raises(ValueError, match=r"of another run: model is 'xyz' and was 'abc'\. Choose another folder, or delete"):
        write(tmp_path, fingerprint={**RUN, "model": "xyz"})
    with pytest.raises(ValueError, match="shard_rows is 6 and was 5"):
        write(tmp_path, shard_rows=6)
    with pytest.raises(ValueError, match="precision is 'bf16' and was None"):
        write(tmp_path, fingerprint={**RUN, "precision": "bf16"})
    with pytest.raises(ValueError, match="scales is None and was"):
        write(tmp_path, fingerprint={"model": "abc"})
    write(tmp_path)


def in_ranks(world_size, out, embed_rows, **options):
    """What each process of a torchrun does, here in threads; their barrier fails rather than hang."""
    barrier = threading.Barrier(world_size, timeout=20)

    def process(rank):
        try:
            write(out, embed_rows, rank=rank, world_size=world_size, barrier=barrier.wait, **options)
        except (KeyboardInterrupt, threading.BrokenBarrierError):
            barrier.abort()

    threads = [threading.Thread(target=process, args=(rank,)) for rank in range(world_size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@pytest.mark.parametrize("world_size", [2, 3, 7])
def test_several_processes_write_what_one_does_each_its_own_parts(tmp_path, world_size):
    log = []
    in_ranks(world_size, tmp_path / "many", embedding(log=log))
    assert (tmp_path / "many" / "embeddings.npy").read_bytes() == write(tmp_path / "one").read_bytes()
    assert sorted(row for rows in log for row in rows) == list(range(COUNT))
    assert len(log) == min(world_size, 5)


def test_a_run_begun_by_one_process_is_ended_by_two_and_the_reverse(tmp_path):
    whole = write(tmp_path / "whole").read_bytes()
    with pytest.raises(KeyboardInterrupt):
        write(tmp_path / "a", embedding(5, fail_after=2))
    log = []
    in_ranks(2, tmp_path / "a", embedding(log=log))
    assert (tmp_path / "a" / "embeddings.npy").read_bytes() == whole
    assert sorted(row for rows in log for row in rows) == list(range(10, COUNT))
    in_ranks(2, tmp_path / "b", embedding(5, fail_after=1))
    assert write(tmp_path / "b").read_bytes() == whole


def test_progress_counts_rows_those_of_before_included(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        write(tmp_path, embedding(5, fail_after=2))
    seen = []
    write(tmp_path, embedding(5), progress=lambda done, total: seen.append((done, total)))
    assert seen == [(10, 23), (15, 23), (20, 23), (23, 23)]


def test_float16_rounds_at_the_end(tmp_path):
    found = np.load(write(tmp_path, dtype="float16"))
    assert found.dtype == np.float16
    np.testing.assert_array_equal(found, vectors(np.arange(COUNT)).astype(np.float16))


@pytest.mark.parametrize(
    ("embed_rows", "complaint"),
    [
        (lambda rows: [vectors(rows[:-1])], "stopped 1 rows before the end"),
        (lambda rows: [vectors(rows), vectors(rows[:1])], "too many rows"),
        (lambda rows: [vectors(np.append(rows, 0))], "too many rows"),
        (lambda rows: [vectors(rows)[:, :2]], r"\[23, 2\]; give \[rows, 3\]"),
        (lambda rows: [vectors(rows)[0]], r"\[3\]; give"),
    ],
)
def test_embeddings_that_do_not_match_the_rows_are_refused(tmp_path, embed_rows, complaint):
    with pytest.raises(ValueError, match=complaint):
        write(tmp_path, lambda shards: (array for array in embed_rows(np.concatenate(list(shards)))))
    assert not (tmp_path / "embeddings.npy").exists()


@pytest.mark.parametrize(
    ("options", "error", "complaint"),
    [
        ({"shard_rows": 0}, ValueError, "shard_rows=0 must be 1 or more"),
        ({"shard": (0, 16)}, ValueError, r"shard=\(0, 16\) must be \(i, n\) with i from 1 to n, such as \(3, 16\)"),
        ({"shard": (17, 16)}, ValueError, r"shard=\(17, 16\) must be"),
        ({"shard": (1, 0)}, ValueError, r"shard=\(1, 0\) must be"),
        ({"dtype": "float64"}, ValueError, "dtype=float64 must be float32 or float16"),
        ({"fingerprint": {"model": object()}}, TypeError, "must hold text, numbers, lists"),
        ({"fingerprint": {"dim": 3}}, ValueError, r"has the entries \['dim'\]"),
    ],
)
def test_settings_that_cannot_be(tmp_path, options, error, complaint):
    with pytest.raises(error, match=complaint):
        write(tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


def test_a_result_of_unknown_origin_is_not_overwritten(tmp_path):
    np.save(tmp_path / "embeddings.npy", np.zeros(3))
    with pytest.raises(ValueError, match=r"without a run\.json that describes it"):
        write(tmp_path)


def test_a_record_that_cannot_be_read_is_an_error(tmp_path):
    write(tmp_path)
    (tmp_path / "run.json").write_text("{")
    with pytest.raises(ValueError, match=r"run\.json cannot be read"):
        write(tmp_path)


def test_a_part_that_another_process_owes_is_named(tmp_path):
    with pytest.raises(RuntimeError, match=r"lacks 2 shards, the first 00001\.npy"):
        write(tmp_path, rank=0, world_size=2)


def run_of(shard, out, log=None, **options):
    notes = []
    write(out, embedding(log=log), shard=shard, note=notes.append, **options)
    return notes


@pytest.mark.parametrize("n", [1, 2, 3, 7])
def test_shares_embed_each_shard_once_and_the_call_without_one_joins_what_one_process_writes(tmp_path, n):
    whole, log = write(tmp_path / "whole").read_bytes(), []
    threads = [threading.Thread(target=run_of, args=((i, n), tmp_path / "out", log)) for i in range(1, n + 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(row for rows in log for row in rows) == list(range(COUNT))
    assert not (tmp_path / "out" / "embeddings.npy").exists()
    np.save(tmp_path / "numpy.npy", vectors(range(5, 10)))
    assert (tmp_path / "out/parts/00001.npy").read_bytes() == (tmp_path / "numpy.npy").read_bytes()
    assert run_of(None, tmp_path / "out") == [f"{tmp_path / 'out'}: 5 of 5 shards were there, 0 computed now, joined."]
    assert (tmp_path / "out" / "embeddings.npy").read_bytes() == whole
    assert sorted(file.name for file in (tmp_path / "out").iterdir()) == [".lock", "embeddings.npy", "run.json"]


def test_the_call_without_a_share_computes_what_no_share_did(tmp_path):
    log = []
    assert run_of((2, 3), tmp_path) == [f"{tmp_path}: 0 of 2 shards of 2/3 were there, 2 computed now."]
    assert run_of((2, 3), tmp_path, log) == [f"{tmp_path}: 2 of 2 shards of 2/3 were there, 0 computed now."]
    assert run_of((9, 9), tmp_path, log) == [f"{tmp_path}: 0 of 0 shards of 9/9 were there, 0 computed now."]
    assert log == []
    assert run_of(None, tmp_path, log) == [f"{tmp_path}: 2 of 5 shards were there, 3 computed now, joined."]
    assert log == [[*range(5), *range(10, 20)]]
    np.testing.assert_array_equal(np.load(tmp_path / "embeddings.npy"), vectors(np.arange(COUNT)))
    assert run_of(None, tmp_path) == run_of((1, 2), tmp_path) == []
    assert sorted(file.name for file in tmp_path.iterdir()) == [".lock", "embeddings.npy", "run.json"]


def test_a_share_that_was_interrupted_goes_on(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        write(tmp_path, embedding(5, fail_after=1), shard=(1, 2))
    log = []
    assert run_of((1, 2), tmp_path, log) == [f"{tmp_path}: 1 of 3 shards of 1/2 were there, 2 computed now."]
    assert log == [[*range(10, 15), *range(20, 23)]]


def test_several_processes_of_a_torchrun_embed_a_share(tmp_path):
    log = []
    in_ranks(2, tmp_path, embedding(log=log), shard=(1, 2))
    assert sorted(log) == [[*range(5), *range(20, 23)], [*range(10, 15)]]
    run_of((2, 2), tmp_path)
    assert write(tmp_path).read_bytes() == write(tmp_path / "whole").read_bytes()


def while_embedding(out, then, **options):
    """Call `then` when a process has embedded one shard and is about to embed the next."""

    def embed_rows(shards):
        rows = list(shards)
        yield vectors(rows[0])
        then()
        yield from map(vectors, rows[1:])

    write(out, embed_rows, **options)


def test_one_share_is_embedded_by_one_process_at_a_time_and_nobody_joins_meanwhile(tmp_path):
    def refused():
        with pytest.raises(BlockingIOError, match=r"process \d+ on .* is embedding shard 1/2 into .*; wait for it to end"):
            run_of((1, 2), tmp_path)
        with pytest.raises(BlockingIOError, match=r"is embedding a share of the shards into .*; wait for it to end, or choose"):
            run_of(None, tmp_path)
        run_of((2, 2), tmp_path)

    while_embedding(tmp_path, refused, shard=(1, 2))
    assert write(tmp_path).read_bytes() == write(tmp_path / "whole").read_bytes()


def test_no_share_is_embedded_while_one_process_embeds_all(tmp_path, monkeypatch):
    monkeypatch.setattr(shards, "_SECONDS", 0.1)

    def refused():
        with pytest.raises(BlockingIOError, match="is embedding into .*; wait for it to end, or choose another folder"):
            run_of((1, 2), tmp_path)

    while_embedding(tmp_path, refused)
    np.testing.assert_array_equal(np.load(tmp_path / "embeddings.npy"), vectors(np.arange(COUNT)))


def test_a_share_of_another_run_is_refused_also_before_the_first_shard_is_there(tmp_path):
    def other():
        for shard in ((2, 2), (1, 3)):
            with pytest.raises((ValueError, BlockingIOError), match="another run: model|is embedding a share of the shards"):
                run_of(shard, tmp_path, fingerprint={"model": "xyz"})

    def embed_rows(shards):
        rows = list(shards)
        other()
        yield from map(vectors, rows)

    write(tmp_path, embed_rows, shard=(1, 2))
    other()


def test_a_share_that_failed_before_its_first_shard_leaves_the_folder_to_any_other_run(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        write(tmp_path, embedding(fail_after=0), shard=(1, 2))
    run_of((1, 2), tmp_path, fingerprint={"model": "xyz"})
    run_of(None, tmp_path, fingerprint={"model": "xyz"})
    assert json.loads((tmp_path / "run.json").read_text())["model"] == "xyz"


def test_nothing_is_written_into_what_became_the_folder_of_another_run(tmp_path):
    def becomes_another():
        (tmp_path / "run.json").write_text('{"model": "xyz"}')

    with pytest.raises(ValueError, match="of another run: .*model is 'abc' and was 'xyz'"):
        while_embedding(tmp_path, becomes_another, shard=(1, 2))
    assert [file.name for file in (tmp_path / "parts").glob("*.npy")] == ["00000.npy"]


def test_shards_of_unknown_origin_are_refused(tmp_path):
    run_of((1, 2), tmp_path)
    for record in (tmp_path / "run.json", tmp_path / "parts/1-of-2.json"):
        record.unlink()
    with pytest.raises(ValueError, match=r"without a run\.json that describes it"):
        write(tmp_path)


def test_shards_are_tasks_which_are_done_in_any_order_and_by_whoever(tmp_path, caplog):
    whole, steps = write(tmp_path / "whole").read_bytes(), []

    def run_tasks(function, tasks):
        for task in reversed(tasks):
            copy = pickle.loads(pickle.dumps(function))
            copy(*task.arguments)
            written = part_file(copy, *task.arguments).stat().st_mtime_ns
            assert copy(*task.arguments) == [], "a task that died after it was saved is done again, to no effect"
            assert part_file(copy, *task.arguments).stat().st_mtime_ns == written
            yield task, Answer(["a warning of another machine"])

    def part_file(function, shard):
        return function.run.part(shard)

    found = write(tmp_path / "out", vectors_of, run_tasks=run_tasks, progress=lambda done, total: steps.append(done))
    assert found.read_bytes() == whole
    assert steps == [0, 3, 8, 13, 18, 23]
    assert [record.getMessage() for record in caplog.records].count("a warning of another machine") == 5


def vectors_of(shards):
    """`embed_rows` that another machine could be sent."""
    yield from map(vectors, shards)


@pytest.mark.parametrize(
    ("error", "raised", "message"),
    [
        (ZeroDivisionError("by zero"), ZeroDivisionError, "by zero"),
        (Crashed(-9), ChildProcessError, "the task of shard 00000.npy was ended by SIGKILL"),
        (ExperimentStopped(signal.SIGINT), KeyboardInterrupt, "^$"),
    ],
)
def test_a_task_that_fails_ends_it_with_its_own_error_and_ctrl_c_is_ctrl_c(tmp_path, error, raised, message):
    def run_tasks(function, tasks):
        if isinstance(error, ExperimentStopped):
            raise error
        yield tasks[0], Answer(error=error)

    with pytest.raises(raised, match=message):
        write(tmp_path, vectors_of, run_tasks=run_tasks)
    assert write(tmp_path).exists(), "the next one goes on"


def test_a_machine_that_does_not_see_the_folder_says_so(tmp_path):
    def run_tasks(function, tasks):
        (tmp_path / "run.json").rename(tmp_path / "elsewhere.json")
        yield tasks[0], Answer(function(*tasks[0].arguments))

    with pytest.raises(FileNotFoundError, match="does not see .*; choose a folder that all machines see under one name"):
        write(tmp_path, vectors_of, run_tasks=run_tasks)


def test_files_that_other_machines_have_written_may_take_a_moment_to_be_seen(tmp_path, monkeypatch):
    hidden = []

    def run_tasks(function, tasks):
        for task in tasks:
            yield task, Answer(function(*task.arguments))
        hidden.append((tmp_path / "parts/00002.npy").rename(tmp_path / "hidden"))

    monkeypatch.setattr(shards.time, "sleep", lambda seconds: hidden.pop().rename(tmp_path / "parts/00002.npy"))
    write(tmp_path, vectors_of, run_tasks=run_tasks)
    assert hidden == []
