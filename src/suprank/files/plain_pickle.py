"""Pickles of plain data, read without running code: lists, dictionaries, numbers, text, and numpy arrays of these.

A pickle is a program, and datasets are downloaded. This reader builds containers, numbers and text, and arrays of numbers or
text from their bytes, and refuses a file that names anything else.
"""

from __future__ import annotations

import pickle
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from os import PathLike

    from numpy.typing import NDArray


def unpickled(path: str | PathLike[str]) -> Any:
    """What the pickle holds: dictionaries, lists, values and numpy arrays. Tuples and sets become lists.

    Pickles of any protocol, of Python 2 too, whose text and arrays are read as Latin-1. A file that asks for anything else
    (a class, a function, an array of objects), or is cut or forged, is a ValueError that names it.
    """
    path = Path(path)
    with path.open("rb") as file:
        try:
            return _plain(_Unpickler(file, encoding="latin1").load())  # latin1: what Python 2 and numpy wrote into text
        except _Refused as refusal:
            raise ValueError(f"{path} was not read: {refusal}") from None
        except Exception as error:  # a pickle that is cut or forged fails in any way it likes
            raise ValueError(f"{path} is not a readable pickle ({type(error).__name__}: {error}); download it again.") from None


def why_unread(error: Exception) -> str:
    """Why `torch.load` refused a file, or failed on it, in our words: torch's advise to load it in a way that runs its code."""
    text = str(error)
    if named := re.search(r"GLOBAL (\S+)", text):
        return f"it holds {named[1]}, and building that could run code, so that it was not loaded"
    if isinstance(error, pickle.UnpicklingError) or "weights_only" in text:
        return "it holds more than tensors, numbers and text, or is damaged, and was not loaded"
    if "mmap" in text or "_use_new_zipfile_serialization" in text:
        return "it is no file of torch.save, or one in the format of torch 1.5 and before; save it again with a newer torch"
    return text.splitlines()[0].split(". ")[0].rstrip(".") if text else type(error).__name__


class _Refused(Exception):  # noqa: N818
    """What a pickle asked for and may not have."""


class _Unpickler(pickle.Unpickler):
    """Finds the few names below and nothing else. Numpy's are stand-ins: numpy's own trust the bytes they are given."""

    def find_class(self, module: str, name: str) -> Any:
        try:
            return _FOUND[module.replace("numpy._core", "numpy.core").replace("__builtin__", "builtins"), name]
        except KeyError:
            raise _Refused(
                f"it asks for {module}.{name}, and only containers, numbers, text and numpy arrays of them are built, because "
                f"a pickle can run code. If you trust the file, convert it to JSON yourself."
            ) from None


class _Dtype:
    """numpy.dtype as a pickle describes it: a code such as `f8`, then a state that holds the byte order."""

    def __init__(self, code: Any, *_: Any) -> None:
        if not isinstance(code, str) or code[:1] not in set("biufUS"):
            raise _Refused(f"it holds an array of dtype {code!r}, where only numbers and text are read.")
        self.dtype = np.dtype(code)

    def __setstate__(self, state: Any) -> None:
        self.dtype = self.dtype.newbyteorder(state[1])


class _Array:
    """numpy.ndarray as a pickle describes it: made empty, then given (version, shape, dtype, order, bytes)."""

    value: Any = None

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, fortran, content = state
        self.value = _from_bytes(content, dtype, shape, "F" if fortran else "C")


def _from_bytes(content: Any, dtype: Any, shape: Any, order: Any) -> NDArray[Any]:
    if not isinstance(dtype, _Dtype):
        raise _Refused("it holds an array without a dtype.")
    content = content.encode("latin1") if isinstance(content, str) else content
    return np.frombuffer(content, dtype.dtype).reshape(shape, order=order)


def _buffer(content: Any, dtype: Any, shape: Any, order: Any) -> _Array:
    array = _Array()
    array.value = _from_bytes(content, dtype, shape, order)
    return array


def _scalar(dtype: Any, content: Any) -> Any:
    return _from_bytes(content, dtype, (), "C").item()


def _latin1(text: Any, encoding: Any) -> bytes:
    if encoding not in ("latin1", "latin-1"):
        raise _Refused(f"it encodes text as {encoding!r}, which arrays do not need.")
    return str(text).encode("latin1")


_FOUND: dict[tuple[str, str], Any] = {
    ("builtins", "set"): set,
    ("builtins", "frozenset"): frozenset,
    ("builtins", "bytes"): lambda: b"",  # how the oldest pickles write no bytes; bytes(n) would allocate them
    ("numpy", "dtype"): _Dtype,
    ("numpy", "ndarray"): _Array,
    ("numpy.core.multiarray", "_reconstruct"): lambda *_: _Array(),
    ("numpy.core.multiarray", "scalar"): _scalar,
    ("numpy.core.numeric", "_frombuffer"): _buffer,
    ("_codecs", "encode"): _latin1,
}


def _plain(content: Any, done: dict[int, Any] | None = None) -> Any:
    """Dictionaries, lists and values, with the arrays in place of their stand-ins.

    What the pickle has once and names often stays one (`done`): written out, 200 bytes could fill any memory.
    """
    done = {} if done is None else done
    if isinstance(content, _Array):
        return content.value
    if id(content) in done:
        return done[id(content)]
    if isinstance(content, dict):
        done[id(content)] = {key: _plain(value, done) for key, value in content.items()}
    elif isinstance(content, list | tuple | set | frozenset):
        done[id(content)] = [_plain(value, done) for value in content]
    return done.get(id(content), content)
