"""Pickles that hold data are read, whatever wrote them; pickles that would run code are refused, and do not run it."""

import datetime
import os
import pickle

import numpy as np
import pytest

from suprank.files.plain_pickle import load_plain_pickle

CONTENT = {"names": ["a", "b"], "rows": [{"box": [1.5, 2, 30, 40], "easy": [4, 0]}, {"easy": []}], "none": None}


@pytest.mark.parametrize("protocol", range(6))
def test_containers_numbers_and_text_of_any_protocol_are_read(tmp_path, protocol):
    (tmp_path / "plain.pkl").write_bytes(pickle.dumps(CONTENT, protocol=protocol))
    assert load_plain_pickle(str(tmp_path / "plain.pkl")) == CONTENT


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize(
    "array",
    [
        np.arange(6).reshape(2, 3),
        np.asfortranarray(np.arange(6, dtype=">f4").reshape(2, 3)),
        np.array([True, False]),
        np.array(["Göttingen", "b"]),
        np.array([b"a", b"bc"]),
        np.zeros((0, 4), np.int32),
    ],
    ids=lambda array: array.dtype.str,
)
def test_arrays_keep_their_type_shape_and_values(tmp_path, array, protocol):
    (tmp_path / "plain.pkl").write_bytes(pickle.dumps([array], protocol=protocol))
    (found,) = load_plain_pickle(tmp_path / "plain.pkl")
    assert (found.dtype, found.shape) == (array.dtype, array.shape)
    assert found.tolist() == array.tolist()


def test_scalars_tuples_and_sets_become_plain(tmp_path):
    (tmp_path / "plain.pkl").write_bytes(pickle.dumps({"number": np.int64(7), "pair": (1, np.float32(0.5)), "one": {3}}))
    assert load_plain_pickle(tmp_path / "plain.pkl") == {"number": 7, "pair": [1, 0.5], "one": [3]}


def test_python_2_text_is_read_as_latin_1(tmp_path):
    (tmp_path / "plain.pkl").write_bytes(b"U\x05all_\xe9.")  # SHORT_BINSTRING, as Python 2 wrote its str
    assert load_plain_pickle(tmp_path / "plain.pkl") == "all_é"


class Payload:
    """Unpickles to the call of a function."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize("protocol", range(6))
def test_a_pickle_that_runs_code_is_refused_and_did_not_run_it(tmp_path, protocol):
    mark = tmp_path / "ran"
    for function, argument in [(os.mkdir, str(mark)), (eval, f"__import__('os').mkdir({str(mark)!r})")]:
        path = tmp_path / "plain.pkl"
        path.write_bytes(pickle.dumps(CONTENT | {"more": Payload(function, argument)}, protocol=protocol))
        with pytest.raises(ValueError, match=r"plain.pkl was not loaded: it asks for .*\.(mkdir|eval), and only containers"):
            load_plain_pickle(path)
        assert not mark.exists()
    pickle.loads(path.read_bytes())  # it would have
    assert mark.exists()


@pytest.mark.parametrize(
    ("harmful", "complaint"),
    [
        (datetime.date(2018, 6, 1), "asks for datetime.date"),
        (np.array([{}], object), "array of dtype 'O8'"),
        (np.zeros(2, [("index", int)]), "array of dtype 'V8'"),
        (Payload(getattr, [], "append"), "asks for (__builtin__|builtins).getattr"),
        (Payload(np.load, "some.npy"), "asks for numpy.load"),
    ],
)
def test_whatever_is_not_plain_is_refused(tmp_path, harmful, complaint):
    (tmp_path / "plain.pkl").write_bytes(pickle.dumps(CONTENT | {"more": harmful}))
    with pytest.raises(ValueError, match=complaint):
        load_plain_pickle(tmp_path / "plain.pkl")


def test_an_array_whose_bytes_do_not_fill_it_is_refused(tmp_path):
    whole = pickle.dumps(CONTENT | {"more": np.arange(6)}, protocol=3)
    assert whole.count(b"K\x06\x85") == 1  # its shape, (6,)
    (tmp_path / "plain.pkl").write_bytes(whole.replace(b"K\x06\x85", b"K\x60\x85"))
    with pytest.raises(ValueError, match="not a readable pickle"):
        load_plain_pickle(tmp_path / "plain.pkl")


@pytest.mark.parametrize("content", [b"", b"nothing", pickle.dumps(CONTENT)[:-40], b"(lp0\ng0\na."])
def test_a_file_that_is_cut_or_refers_to_itself_is_refused(tmp_path, content):
    (tmp_path / "plain.pkl").write_bytes(content)
    with pytest.raises(ValueError, match="plain.pkl is not a readable pickle"):
        load_plain_pickle(tmp_path / "plain.pkl")


def _laughs(times):
    """Two of two of two ... of them; written out, 2 to the power of `times`."""
    laughs = ["ha", "ha"]
    for _ in range(times):
        laughs = [laughs, laughs]
    return laughs


def test_what_is_named_often_is_built_once(tmp_path):
    (tmp_path / "laughs.pkl").write_bytes(pickle.dumps(_laughs(20)))
    found = load_plain_pickle(tmp_path / "laughs.pkl")
    assert found[0] is found[1]


@pytest.mark.parametrize(
    ("bomb", "complaint"),
    [
        (b"\x80\x04Nr\x00\x00\x01\x00.", "numbers an object 65,536 after 3 bytes"),
        (pickle.dumps(_laughs(60)), r"names the same values again and again, 4\.61e\+18 in all"),
        (b"\x80\x02K\x01" + b"\x85" * 5000 + b".", "names the same values again and again"),
        (b"\x80\x02c_codecs\nencode\n]X\x06\0\0\0latin1\x86R.", "encodes something else than text"),
        (b"\x80\x02cnumpy\ndtype\n]\x85R.", "holds an array of dtype list"),
    ],
)
def test_a_small_file_that_asks_for_much_is_refused(tmp_path, bomb, complaint):
    """The sizes that kill a process are in benchmarks/fuzz.py, and are tried in a child."""
    (tmp_path / "bomb.pkl").write_bytes(bomb)
    with pytest.raises(ValueError, match=f"bomb.pkl was not loaded: it {complaint}"):
        load_plain_pickle(tmp_path / "bomb.pkl")
