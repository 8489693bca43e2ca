"""`reading`: one sentence that names the file, whatever a parser raises."""

import zlib

import pytest

from suprank.files.reading import reading


@pytest.mark.parametrize("error", [RecursionError("too deep\nmore lines"), OverflowError(), zlib.error("Error -3"), EOFError()])
def test_a_failure_is_one_sentence_with_the_file(tmp_path, error):
    with pytest.raises(ValueError, match=r"a\.json is not a readable list: ") as found, reading(tmp_path / "a.json", "list"):
        raise error
    assert len(str(found.value).splitlines()) == 1
    assert found.value.__cause__ is error


def test_what_names_the_file_already_passes_as_it_is(tmp_path):
    with pytest.raises(KeyError, match="has no column"), reading(tmp_path / "a.csv", "table"):
        raise KeyError(f"{tmp_path / 'a.csv'} has no column 'x'")


def test_a_missing_file_is_no_fault_of_its_content(tmp_path):
    with pytest.raises(FileNotFoundError), reading(tmp_path / "missing", "table"):
        (tmp_path / "missing").read_bytes()


@pytest.mark.parametrize("error", [MemoryError, ModuleNotFoundError])
def test_neither_is_a_lack_of_memory_or_of_a_package(tmp_path, error):
    with pytest.raises(error), reading(tmp_path / "a.csv", "table"):
        raise error("for lack of something")
