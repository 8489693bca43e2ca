"""Load pickles of plain data (containers, numbers, text and numpy arrays of them) without running code.

A pickle is a program, and datasets are downloaded. This loader builds containers, numbers, text and arrays from their bytes,
and refuses a file that asks for anything else.
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


def load_plain_pickle(path: str | PathLike[str]) -> Any:
    """Load a pickle of dictionaries, lists, values and numpy arrays. Tuples and sets become lists.

    Any protocol works, and so do pickles of Python 2, whose text and arrays are read as Latin-1. A file that asks for anything
    else (a class, a function, an array of objects), or is truncated or forged, raises a ValueError that names it.
    """
    path = Path(path)
    with path.open("rb") as file:
        try:
            return _plain(_Unpickler(file, encoding="latin1").load())  # latin1: how Python 2 and numpy wrote bytes
        except _Refused as refusal:
            raise ValueError(f"{path} was not loaded: {refusal}") from None
        except Exception as error:  # a truncated or forged pickle can raise anything
            raise ValueError(f"{path} is not a readable pickle ({type(error).__name__}: {error}); download it again.") from None


def explain_load_error(error: Exception) -> str:
    """Why `torch.load` refused a file or failed on it. torch's own messages advise to load it in a way that runs its code."""
    text = str(error)
    if found := re.search(r"GLOBAL (\S+)", text):
        return f"it holds {found[1]}, and building that could run code, so it was not loaded"
    if isinstance(error, pickle.UnpicklingError) or "weights_only" in text:
        return "it holds more than tensors, numbers and text, or is damaged, and was not loaded"
    if "mmap" in text or "_use_new_zipfile_serialization" in text:
        return "it was not written by torch.save, or by torch 1.5 or older; save it again with a newer torch"
    return text.splitlines()[0].split(". ")[0].rstrip(".") if text else type(error).__name__


class _Refused(Exception):  # noqa: N818
    """The pickle asks for something that is not plain data."""


class _Unpickler(pickle.Unpickler):
    """Resolves the few names below. numpy's are replaced by stand-ins, because numpy's own trust the bytes they are given."""

    def find_class(self, module: str, name: str) -> Any:
        try:
            return _ALLOWED[module.replace("numpy._core", "numpy.core").replace("__builtin__", "builtins"), name]
        except KeyError:
            raise _Refused(
                f"it asks for {module}.{name}, and only containers, numbers, text and numpy arrays of them are allowed, "
                f"because a pickle can run code. If you trust the file, convert it to JSON yourself."
            ) from None


class _Dtype:
    """Stand-in for numpy.dtype: a code such as `f8`, then a state that holds the byte order."""

    def __init__(self, code: Any, *_: Any) -> None:
        if not isinstance(code, str) or code[:1] not in set("biufUS"):
            raise _Refused(f"it holds an array of dtype {code!r}, where only numbers and text are read.")
        self.dtype = np.dtype(code)

    def __setstate__(self, state: Any) -> None:
        self.dtype = self.dtype.newbyteorder(state[1])


class _Array:
    """Stand-in for numpy.ndarray: created empty, then given (version, shape, dtype, order, bytes)."""

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


_ALLOWED: dict[tuple[str, str], Any] = {
    ("builtins", "set"): set,
    ("builtins", "frozenset"): frozenset,
    ("builtins", "bytes"): lambda: b"",  # how the oldest pickles write empty bytes; bytes(n) would allocate them
    ("numpy", "dtype"): _Dtype,
    ("numpy", "ndarray"): _Array,
    ("numpy.core.multiarray", "_reconstruct"): lambda *_: _Array(),
    ("numpy.core.multiarray", "scalar"): _scalar,
    ("numpy.core.numeric", "_frombuffer"): _buffer,
    ("_codecs", "encode"): _latin1,
}


def _plain(content: Any, done: dict[int, Any] | None = None) -> Any:
    """The content with arrays in place of their stand-ins, and lists in place of tuples and sets.

    An object that is referenced many times stays one object (`done`): copied each time, 200 bytes could fill any memory.
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
