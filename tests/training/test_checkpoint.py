"""Checkpoints: what was saved comes back, whatever happens to the newest file, and nothing in a file is ever run."""

import os
import pickle
import zipfile
from collections import OrderedDict

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from suprank.training.checkpoint import FORMAT, CheckpointError, load_newest, newest_step, save
from tests.disks import disk_of
from tests.training.runs import start_process
from tests.waiting import wait_until


def state(step):
    model = torch.nn.Linear(3, 2, bias=False)
    torch.nn.init.constant_(model.weight, step)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0)
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    return {"step": step, "name": "ü", "model": model.state_dict(), "optimizer": optimizer.state_dict(), "scaler": None}


def check_same(found, expected):
    assert type(found) is type(expected)
    if isinstance(expected, dict):
        assert list(found) == list(expected)
        for key, value in expected.items():
            check_same(found[key], value)
    elif isinstance(expected, torch.Tensor):
        assert torch.equal(found, expected)
    else:
        assert found == expected


def saved(folder, *steps, keep=2):
    return [save(folder, step, state(step), keep=keep) for step in steps]


def silent(text):
    raise AssertionError(text)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_what_was_saved_comes_back_with_its_optimizer(tmp_path):
    (path,) = saved(tmp_path / "made", 123)
    assert path == tmp_path / "made/step-00000123.pt"
    found, source = load_newest(tmp_path / "made", silent)
    assert source == path
    check_same(found, state(123))
    model = torch.nn.Linear(3, 2, bias=False)
    torch.optim.AdamW(model.parameters()).load_state_dict(found["optimizer"])


def test_only_the_newest_are_kept_by_number_rather_than_by_name_or_age(tmp_path):
    saved(tmp_path, 99_999_999, 100_000_000, 100_000_001)
    assert names(tmp_path) == ["step-100000000.pt", "step-100000001.pt"]
    assert newest_step(tmp_path) == 100_000_001


def test_other_files_in_the_folder_are_left_alone(tmp_path):
    for name in ("step-best.pt", "notes.txt"):
        (tmp_path / name).touch()
    saved(tmp_path, 1, 2, 3, keep=1)
    assert names(tmp_path) == ["notes.txt", "step-00000003.pt", "step-best.pt"]


def test_a_folder_without_checkpoints_has_no_newest(tmp_path):
    assert load_newest(tmp_path, silent) is None
    assert load_newest(tmp_path / "missing", silent) is None
    assert newest_step(tmp_path / "missing") is None


def test_a_damaged_one_is_told_and_the_one_before_it_taken(tmp_path):
    _, last = saved(tmp_path, 100, 200)
    data = bytearray(last.read_bytes())
    data[data.index(np.full(3, 200, np.float32).tobytes())] ^= 1
    last.write_bytes(data)
    assert torch.load(last, weights_only=True)["step"] == 200, "torch itself does not notice"
    output = []
    found, path = load_newest(tmp_path, output.append)
    assert (found["step"], path.name) == (100, "step-00000100.pt")
    (text,) = output
    assert text.startswith(f"{last} is damaged (the checksum of archive/data/")
    assert text.endswith("); resuming from step-00000100.pt")


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_no_flipped_byte_or_truncation_changes_what_is_loaded(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("damaged")
    first, last = saved(folder, 1, 2)
    whole = last.read_bytes()
    if data.draw(st.booleans(), "truncated"):
        last.write_bytes(whole[: data.draw(st.integers(0, len(whole) - 1), "length")])
    else:
        place = data.draw(st.integers(0, len(whole) - 1), "place")
        last.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << data.draw(st.integers(0, 7), "bit")]) + whole[place + 1 :])
    output = []
    found, path = load_newest(folder, output.append)
    assert (path == first) == bool(output), "a flipped bit of padding or of a date harms nobody"
    check_same(found, state(1 if path == first else 2))


def test_where_none_is_whole_the_error_names_them_all(tmp_path):
    for path in saved(tmp_path, 1, 2):
        path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(CheckpointError, match=r"step-00000002.pt: File is not a zip file; step-00000001.pt: .*delete them"):
        load_newest(tmp_path, silent)


def test_a_run_that_went_on_from_an_earlier_step_gets_rid_of_the_damaged_later_one(tmp_path):
    _, last = saved(tmp_path, 100, 200)
    last.write_bytes(b"torn")
    saved(tmp_path, 150)
    assert names(tmp_path) == ["step-00000100.pt", "step-00000150.pt"]


def test_what_a_killed_writer_left_behind_is_removed(tmp_path):
    saved(tmp_path, 1)
    (tmp_path / ".step-00000002.pt.4711.tmp").write_bytes(b"half")
    load_newest(tmp_path, silent)
    assert names(tmp_path) == ["step-00000001.pt"]


@pytest.mark.parametrize("limit", [0, 300, 3000, 300_000])  # bytes: within the header, the pickle, a tensor
def test_a_disk_that_fills_leaves_the_older_ones_and_nothing_half_written(tmp_path, limit):
    saved(tmp_path, 1, 2)
    with disk_of(limit), pytest.raises(OSError, match="File too large"):
        save(tmp_path, 3, {**state(3), "memory": torch.zeros(100_000)}, keep=1)
    assert names(tmp_path) == ["step-00000001.pt", "step-00000002.pt"]
    assert load_newest(tmp_path, silent)[0]["step"] == 2


class Trap:
    """Makes a file where it is unpickled."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return os.mkdir, (self.path,)


@pytest.mark.parametrize("way", ["torch", "pickle", "legacy"])
def test_a_file_that_would_run_code_is_refused_and_does_not(tmp_path, way):
    trap, path = Trap(tmp_path / "sprung"), tmp_path / "step-00000001.pt"
    with path.open("wb") as file:
        if way == "pickle":
            pickle.dump(trap, file)
        else:
            torch.save({"step": trap}, file, _use_new_zipfile_serialization=way == "torch")
    reason = "more than tensors, numbers and text" if way == "torch" else "not a zip file"
    with pytest.raises(CheckpointError, match=reason):
        load_newest(tmp_path, silent)
    assert not (tmp_path / "sprung").exists()


def test_a_checkpoint_of_another_version_is_refused_with_the_way_out(tmp_path):
    (path,) = saved(tmp_path, 1)
    torch.save(state(1), path)  # as versions before `format` did
    with pytest.raises(
        CheckpointError, match=f"format 1, written by an older suprank, and this one reads format {FORMAT}. Resume"
    ):
        load_newest(tmp_path, silent)
    torch.save({**state(1), "format": FORMAT + 1}, path)
    with pytest.raises(CheckpointError, match="written by a newer suprank"):
        load_newest(tmp_path, silent)


def test_a_zip_file_of_something_else_is_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "step-00000001.pt", "w") as archive:
        archive.writestr("a.txt", "hello")
    torch.save([1, 2], tmp_path / "step-00000000.pt")
    with pytest.raises(CheckpointError, match="step-00000000.pt: it holds a list instead of a dict"):
        load_newest(tmp_path, silent)


@pytest.mark.parametrize(
    ("entry", "where"),
    [
        ({"lr": np.float64(0.1)}, r"state\['lr'\] is a numpy.float64"),
        ({"a": [1, {"b": (2, object())}]}, r"state\['a'\]\[1\]\['b'\]\[1\] is a builtins.object"),
        ({"model": OrderedDict(weight=np.zeros(2))}, r"state\['model'\]\['weight'\] is a numpy.ndarray"),
        ({"a": {(0, 1): 2}}, r"state\['a'\] has a key \(0, 1\)"),
    ],
)
def test_what_could_not_be_loaded_is_refused_when_it_is_saved(tmp_path, entry, where):
    saved(tmp_path, 1)
    with pytest.raises(TypeError, match=where):
        save(tmp_path, 2, entry, keep=2)
    assert names(tmp_path) == ["step-00000001.pt"]


@pytest.mark.parametrize(("step", "keep", "message"), [(1, 0, "keep=0"), (-1, 2, "step=-1")])
def test_a_step_and_a_number_to_keep_that_make_no_sense_are_refused(tmp_path, step, keep, message):
    with pytest.raises(ValueError, match=message):
        save(tmp_path, step, {}, keep=keep)


def write_for_ever(folder):
    """Save checkpoints, and note each step when it is saved."""
    with (folder / "steps").open("w") as steps:
        for step in range(1, 100_000):
            save(folder / "checkpoints", step, {"step": step, "memory": torch.full((300_000,), float(step))}, keep=2)
            print(step, file=steps, flush=True)


def test_a_writer_killed_at_any_time_leaves_a_whole_checkpoint(forked, tmp_path):
    """It says a step when that is saved; after the kill, the newest is that or a later one."""
    (tmp_path / "checkpoints").mkdir()
    writer = start_process(forked, write_for_ever, tmp_path)
    wait_until(lambda: (tmp_path / "steps").exists() and (tmp_path / "steps").read_text().count("\n") >= 20)
    writer.kill()
    writer.join()
    output = [int(line) for line in (tmp_path / "steps").read_text().splitlines()]
    found, _ = load_newest(tmp_path / "checkpoints", silent)
    assert found["step"] in (output[-1], output[-1] + 1)
    assert (found["memory"] == found["step"]).all()
    assert all(name.startswith("step-") for name in names(tmp_path / "checkpoints"))
