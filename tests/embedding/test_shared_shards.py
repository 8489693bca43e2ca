"""Machines that share a folder or a bucket write what one machine does, whoever of them is killed, silent or late."""

import json
import os
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest

from suprank.embedding import claims, shared_shards
from suprank.embedding.claims import Claims
from suprank.embedding.shards import ShardLayout, write_embeddings
from suprank.embedding.shared_shards import write_shared
from suprank.files.storage import open_storage
from tests.files import buckets
from tests.waiting import wait_until

LAYOUT = ShardLayout(23, 3, 2, np.dtype("float32"))
RUN = {"model": "abc"}
CLAIM = b'{"host": "elsewhere", "process": 7, "owner": "x", "renewed": 0}'


def vectors(rows):
    """An embedding that says which row it is of."""
    return np.stack([np.asarray(rows), np.asarray(rows) ** 2 / 7, np.full(len(rows), 0.1)], axis=1).astype(np.float32)


def embedding(log=None, seconds=0.0):
    def embed_rows(shards):
        for rows in shards:
            if log is not None:
                log.append(int(rows[0]) // 2)
            time.sleep(seconds)
            yield vectors(rows)

    return embed_rows


@pytest.fixture(params=["folder", "bucket"])
def storage(request, tmp_path):
    buckets.empty()
    return open_storage(tmp_path / "out" if request.param == "folder" else "bucket://b/run")


@pytest.fixture
def bucket():
    buckets.empty()
    return open_storage("bucket://b/run")


@pytest.fixture
def lease(monkeypatch):
    """A function that sets the seconds after which a silent machine is replaced."""
    return lambda seconds: monkeypatch.setattr(claims, "LEASE", seconds)


def share(storage, embed_rows=None, items=None, **options):
    def write_items(broken):
        storage.write("test/items.parquet", json.dumps(broken.tolist()).encode())
        if items is not None:
            items.append(broken.tolist())

    options = {"fingerprint": RUN, "write_items": write_items, **options}
    write_shared(embed_rows or embedding(), LAYOUT, storage, "test", **options)


def at_once(storage, machines):
    """Each machine with its options, in a thread."""
    threads = [threading.Thread(target=share, args=(storage,), kwargs=options) for options in machines]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def result(storage):
    names = sorted(storage.sizes("test/parts"))
    assert names == [LAYOUT.file_name(shard) for shard in range(LAYOUT.shards)]
    contents = [storage.read(f"test/parts/{name}") for name in names]
    return np.concatenate([np.frombuffer(content[128:], np.float32).reshape(-1, 3) for content in contents])


def test_three_machines_embed_each_shard_once_and_one_writes_the_items(storage):
    log, items, counts = [], [], [[], [], []]
    all_begun = threading.Barrier(3, timeout=120)  # one that comes when all is done writes the items again

    def together(shards):
        all_begun.wait()
        yield from embedding(log, 0.01)(shards)

    machines = [{"on_shard": lambda *numbers, to=to: to.append(numbers)} for to in counts]
    at_once(storage, [machine | {"items": items, "embed_rows": together} for machine in machines])
    np.testing.assert_array_equal(result(storage), vectors(np.arange(23)))
    assert sorted(log) == list(range(12))
    assert items == [[]]
    assert storage.sizes("test/claims") == {}
    assert sum(machine[-1][0] for machine in counts) == 12
    assert all(machine[-1][1:] == (12, 12) for machine in counts)


def test_the_shards_are_the_files_of_a_run_of_one_machine_which_joins_them(tmp_path):
    share(open_storage(tmp_path / "out"))
    whole = write_embeddings(embedding(), 23, 3, tmp_path / "alone", fingerprint=RUN, shard_rows=2)
    np.save(tmp_path / "numpy.npy", vectors([4, 5]))
    assert (tmp_path / "out/test/parts/00002.npy").read_bytes() == (tmp_path / "numpy.npy").read_bytes()
    log = []
    joined = write_embeddings(embedding(log), 23, 3, tmp_path / "out/test", fingerprint=RUN, shard_rows=2)
    assert joined.read_bytes() == whole.read_bytes()
    assert log == []


def test_one_machine_alone_does_not_join_what_others_work_on(tmp_path):
    open_storage(tmp_path).write("test/claims/00003.json", CLAIM)
    with pytest.raises(BlockingIOError, match="other machines are embedding into .*test: it has claims"):
        write_embeddings(embedding(), 23, 3, tmp_path / "test", fingerprint=RUN, shard_rows=2)


def test_the_shard_of_a_machine_that_is_silent_is_taken_over_and_not_earlier(storage, caplog, lease):
    lease(0.3)
    caplog.set_level("INFO")
    storage.write("test/claims/00003.json", CLAIM)
    log, begun = [], time.monotonic()
    share(storage, embedding(log))
    assert time.monotonic() - begun > claims.LEASE
    assert log[-1] == 3
    assert sorted(log) == list(range(12))
    assert "waiting for 1 shard of process 7 on elsewhere" in caplog.text
    assert "00003 is taken over from process 7 on elsewhere, which is silent" in caplog.text
    assert storage.sizes("test/claims") == {}


def test_the_shard_of_a_machine_that_is_slow_is_left_to_it(storage, lease, monkeypatch):
    """A lease is the time of ten renewals by the slow one: the clock shows their number, however busy this machine is."""
    lease(0.2)
    started, renewals, start, renew = [], [], Claims.__enter__, Claims._renew
    monkeypatch.setattr(claims, "time", SimpleNamespace(monotonic=lambda: len(renewals) * claims.LEASE / 10))
    monkeypatch.setattr(Claims, "__enter__", lambda self: started.append(self) or start(self))
    monkeypatch.setattr(Claims, "_renew", lambda self: renew(self) or (self is started[0] and renewals.append(self)))
    slow, fast = [], []

    def for_two_leases(shards):
        for rows in shards:
            slow.append(int(rows[0]) // 2)
            wait_until(lambda: len(fast) == 11)
            end = len(renewals) + 20
            wait_until(lambda end=end: len(renewals) > end)
            yield vectors(rows)

    one = threading.Thread(target=share, args=(storage, for_two_leases))
    one.start()
    wait_until(lambda: slow)
    share(storage, embedding(fast))
    one.join()
    assert len(slow) == 1
    assert sorted(slow + fast) == list(range(12))


def test_images_are_loaded_ahead_into_the_next_shard(bucket):
    log = []

    def ahead(shards):
        before = next(shards)
        for rows in shards:
            log.append(len(bucket.sizes("test/claims")))
            yield vectors(before)
            before = rows
        yield vectors(before)

    share(bucket, ahead)
    assert log == [2] * 11
    np.testing.assert_array_equal(result(bucket), vectors(np.arange(23)))


def test_a_store_that_lets_two_claim_one_shard_costs_time_and_nothing_else(bucket, monkeypatch):
    monkeypatch.setattr(buckets.Bucket, "creates_over", True)
    storage = bucket
    monkeypatch.setattr(type(storage), "create", lambda self, name, content: self.write(name, content) or True)
    monkeypatch.setattr(shared_shards._SharedRun, "begin", lambda self, fingerprint: self.refresh())
    log = []
    at_once(storage, [{"embed_rows": embedding(log, 0.02)}] * 2)
    assert set(log) == set(range(12))
    np.testing.assert_array_equal(result(storage), vectors(np.arange(23)))


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError("no route to host")])
def test_a_run_that_ends_early_gives_its_claims_back(storage, error):
    def stops(shards):
        yield vectors(next(shards))
        next(shards)
        raise error

    with pytest.raises(type(error) if isinstance(error, Exception) else error):
        share(storage, stops)
    assert storage.sizes("test/claims") == {}
    assert len(storage.sizes("test/parts")) == 1
    log = []
    share(storage, embedding(log))
    assert len(log) == 11
    np.testing.assert_array_equal(result(storage), vectors(np.arange(23)))


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("operation", ["create", "delete"])
def test_a_signal_while_a_claim_is_written_or_deleted_leaves_no_claim(storage, monkeypatch, operation, when):
    original, calls = getattr(storage, operation), []

    def interrupted(name, *content):
        if "/claims/" not in name or len(calls) == 3:
            return original(name, *content)
        calls.append(name)
        if len(calls) < 3:
            return original(name, *content)
        if when == "after":
            original(name, *content)
        raise KeyboardInterrupt

    monkeypatch.setattr(storage, operation, interrupted)
    with pytest.raises(KeyboardInterrupt):
        share(storage)
    assert len(calls) == 3
    assert storage.sizes("test/claims") == {}


def test_a_store_that_fails_for_a_moment_does_not_end_the_renewal_of_claims(bucket, caplog, lease):
    lease(0.3)

    def fails(shards):
        for number, rows in enumerate(shards):
            if number == 0:
                buckets.Bucket.failures.append(OSError("503 slow down"))
                wait_until(lambda: not buckets.Bucket.failures)  # a renewal fails
            yield vectors(rows)

    share(bucket, fails)
    assert "claims cannot be renewed now (503 slow down); trying again" in caplog.text
    np.testing.assert_array_equal(result(bucket), vectors(np.arange(23)))


def test_a_store_that_refuses_a_shard_ends_the_run(bucket):
    def fails(shards):
        next(shards)
        buckets.Bucket.failures.extend([OSError("403 forbidden")] * 2)
        yield vectors([0, 1])

    with pytest.raises(OSError, match="403"):
        share(bucket, fails)
    assert not bucket.sizes("test/parts")


def test_a_shard_that_was_cut_off_is_embedded_again(storage):
    share(storage)
    storage.write("test/parts/00004.npy", storage.read("test/parts/00004.npy")[:-1])
    storage.delete("test/parts/00007.npy")
    log = []
    share(storage, embedding(log))
    assert sorted(log) == [4, 7]
    np.testing.assert_array_equal(result(storage), vectors(np.arange(23)))


def test_broken_rows_are_found_without_reading_the_other_shards(storage, monkeypatch):
    def with_broken(shards):
        for rows in shards:
            found = vectors(rows)
            found[np.isin(rows, [3, 12, 22])] = np.nan
            yield found

    items, read = [], []
    real = type(storage).read
    monkeypatch.setattr(type(storage), "read", lambda self, name: read.append(name) or real(self, name))
    share(storage, with_broken, items)
    assert items == [[3, 12, 22]]
    assert [name for name in read if name.endswith(".npy")] == [f"test/parts/000{shard}.npy" for shard in ("01", "06", "11")]


def test_another_run_is_refused_and_a_finished_one_writes_its_items_again(storage):
    items, log = [], []
    share(storage, items=items)
    with pytest.raises(ValueError, match=r"test has the embeddings of another run: model is 'xyz' and was 'abc'"):
        share(storage, fingerprint={"model": "xyz"})
    share(storage, embedding(log), items)
    assert log == []
    assert len(items) == 2  # its labels may have changed
    storage.write("test/run.json", b"{")
    with pytest.raises(ValueError, match=r"run\.json cannot be read"):
        share(storage)


def test_a_run_that_failed_before_its_first_shard_leaves_the_folder_to_any_other(storage):
    def fails(shards):
        next(shards)
        raise OSError("out of memory")

    with pytest.raises(OSError, match="memory"):
        share(storage, fails)
    storage.write("test/claims/00003.json", CLAIM)
    with pytest.raises(ValueError, match="another run"):  # somebody embeds
        share(storage, fingerprint={"model": "xyz"})
    storage.delete("test/claims/00003.json")
    share(storage, fingerprint={"model": "xyz"})
    assert json.loads(storage.read("test/run.json"))["model"] == "xyz"
    np.testing.assert_array_equal(result(storage), vectors(np.arange(23)))


def test_nothing_is_written_into_what_became_the_folder_of_another_run(storage):
    def overtaken(shards):
        for number, rows in enumerate(shards):
            if number == 1:
                storage.write("test/run.json", b'{"model": "xyz"}')
            yield vectors(rows)

    with pytest.raises(ValueError, match=r"run\.json was deleted or is of another run"):
        share(storage, overtaken)
    assert len(storage.sizes("test/parts")) == 1
    assert storage.sizes("test/claims") == {}


def test_images_that_became_broken_are_known_when_a_lost_shard_is_embedded_again(storage):
    def broken(shards):
        yield from (np.full((len(rows), 3), np.nan, np.float32) for rows in shards)

    items = []
    share(storage, items=items)
    storage.delete("test/parts/00004.npy")
    share(storage, broken, items)
    assert items == [[], [8, 9]]


def test_what_a_killed_process_left_half_written_is_deleted_at_the_end(tmp_path):
    old, young = tmp_path / "test/parts/.00001.npy.77.tmp", tmp_path / "test/parts/.00002.npy.78.tmp"
    old.parent.mkdir(parents=True)
    old.write_bytes(b"half")
    young.write_bytes(b"half")  # somebody may be writing it
    os.utime(old, (0, 0))
    share(open_storage(tmp_path))
    assert (old.exists(), young.exists()) == (False, True)


def test_embeddings_of_unknown_origin_are_refused(storage):
    storage.write("test/embeddings.npy", b"")
    with pytest.raises(ValueError, match=r"without a run\.json that describes it"):
        share(storage)
    assert storage.read("test/run.json") is None


def test_progress_counts_the_rows_of_all(bucket):
    seen = []
    share(bucket, progress=lambda done, total: seen.append(done))
    assert seen[0] == 0
    assert seen == sorted(seen)
    assert seen[-1] == 23


def test_machines_go_on_with_the_run_of_one_and_know_its_broken_images(tmp_path):
    def stops(shards):
        found = vectors(next(shards))
        found[1] = np.nan
        yield found
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_embeddings(stops, 23, 3, tmp_path / "test", fingerprint=RUN, shard_rows=2)
    items, log = [], []
    share(open_storage(tmp_path), embedding(log), items)
    assert sorted(log) == list(range(1, 12))
    assert items == [[1]]
