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


@pytest.mark.parametrize("error", [FileNotFoundError, MemoryError, ModuleNotFoundError])
def test_a_missing_file_memory_and_packages_are_no_fault_of_the_content(tmp_path, error):
    with pytest.raises(error), reading(tmp_path / "missing", "table"):
        if error is FileNotFoundError:
            (tmp_path / "missing").read_bytes()
        raise error("for lack of something")
