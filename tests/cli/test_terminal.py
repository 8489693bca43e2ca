"""What the verbs share: errors without tracebacks, help that flows, bars that begin with the first step."""

import pytest
import torch
import typer
from torch._utils import ExceptionWrapper

from suprank.cli import help_text, terminal


def read():
    error = ValueError("a/b.png: is not an image.")
    error.add_note("Image 0 under photos; on_broken='skip' leaves such images out and counts them.")
    raise error


def read_in_a_worker():
    """As a DataLoader does: the worker sends what it caught, with the traceback in its text, and the loader raises it here."""
    try:
        read()
    except ValueError:
        sent = ExceptionWrapper(where="in DataLoader worker process 0")
    sent.reraise()


@pytest.mark.parametrize("reading", [read, read_in_a_worker])
def test_an_error_says_the_same_in_a_worker_process_as_in_this_one(reading):
    with pytest.raises(typer.BadParameter) as refusal, terminal.plain_errors("less"):
        reading()
    assert refusal.value.message == (
        "a/b.png: is not an image.\nImage 0 under photos; on_broken='skip' leaves such images out and counts them."
    )


def test_memory_that_runs_out_names_what_to_give():
    with (
        pytest.raises(typer.BadParameter, match="out of memory Give a smaller --size."),
        terminal.plain_errors("a smaller --size"),
    ):
        raise MemoryError


def allocate(*, exhausted):
    if exhausted:
        raise MemoryError
    torch.empty(2**60, dtype=torch.uint8)  # torch's own error, a RuntimeError


def allocate_in_a_worker(*, exhausted):
    try:
        allocate(exhausted=exhausted)
    except (MemoryError, RuntimeError):
        sent = ExceptionWrapper(where="in DataLoader worker process 0")
    sent.reraise()


@pytest.mark.parametrize("exhausted", [True, False])
@pytest.mark.parametrize("allocating", [allocate, allocate_in_a_worker])
def test_memory_that_runs_out_in_a_worker_is_said_in_a_line_too(allocating, exhausted):
    with pytest.raises(typer.BadParameter) as refusal, terminal.plain_errors("less"):
        allocating(exhausted=exhausted)
    message = refusal.value.message
    assert message == "out of memory Give less." if exhausted else "can't allocate memory" in message
    assert message.endswith(" Give less.")
    assert "Traceback" not in message
    assert len(message.splitlines()) == 1


@pytest.mark.parametrize("ours", [RuntimeError("a bug"), KeyError("a bug"), ModuleNotFoundError("a bug")])
def test_other_errors_keep_their_tracebacks(ours):
    with pytest.raises(type(ours)), terminal.plain_errors("less"):
        raise ours


def test_paragraphs_flow_but_for_those_that_are_laid_out():
    text = "First\n    line.\n\n    Second\n    paragraph.\n\n    \b\n    one\n    two\n"
    assert help_text.flowing(text) == "First line.\n\nSecond paragraph.\n\n\b\none\ntwo"


def test_a_bar_is_shown_once_there_is_something_to_count(capsys):
    with terminal.progress("counting", quiet=False):
        pass
    with terminal.progress("counting", quiet=True) as advance:
        advance(1, 2)
    assert capsys.readouterr().err == ""
    with terminal.progress("counting", quiet=False) as advance:
        advance(2, 2)
    assert "2/2" in capsys.readouterr().err


def test_a_folder_to_write_is_no_file_and_is_not_made_yet(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError, match="file is a file; name a folder."):
        terminal.check_folder(tmp_path / "file")
    terminal.check_folder(tmp_path)
    terminal.check_folder(tmp_path / "new/folder")
    assert (tmp_path / "new").is_dir()
    assert not (tmp_path / "new/folder").exists()


def test_a_reader_that_has_gone_is_left_to_typer():
    with pytest.raises(BrokenPipeError), terminal.plain_errors("less"):
        raise BrokenPipeError(32, "Broken pipe")
