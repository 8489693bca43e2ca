"""Load pickles of plain data (containers, numbers, text and numpy arrays of them) without running code.

A pickle is a program, and datasets are downloaded. This loader builds containers, numbers, text and arrays from their bytes,
and refuses a file that asks for anything else, or for far more than its size holds.
"""

from __future__ import annotations

import io
import pickle
import pickletools
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from suprank.files.reading import reading

if TYPE_CHECKING:
    from os import PathLike

    from numpy.typing import NDArray


_MOST_VALUES = 10_000_000  # of a file, each counted as often as it is reached: revisited Oxford has 200,000


def load_plain_pickle(path: str | PathLike[str]) -> Any:
    """Load a pickle of dictionaries, lists, values and numpy arrays. Tuples and sets become lists.

    Any protocol works, and so do pickles of Python 2, whose text and arrays are read as Latin-1. A file that asks for anything
    else (a class, a function, an array of objects), or is truncated or forged, raises a ValueError that names it.
    """
    path = Path(path)
    content = path.read_bytes()
    with reading(path, "pickle"):
        try:
            _check_operations(content)
            loaded = _Unpickler(io.BytesIO(content), encoding="latin1").load()  # latin1: how Python 2 and numpy wrote bytes
            plain, values = _plain(loaded, {})
            _check_number(values)
            return plain
        except _Refused as refusal:
            raise ValueError(f"{path} was not loaded: {refusal}") from None


def _check_operations(content: bytes) -> None:
    """Refuse operations that take far more memory, stack or time than the file has bytes, before any is carried out.

    The memo is allocated up to its highest number. A tuple is hashed with all that it holds, in C's recursion and as often as
    it is named; lists and dictionaries cannot be hashed, and a set keeps the hashes of its members.
    """
    stack: list[int] = []  # how many values are hashed with each object
    marks: list[int] = []
    memo: dict[int, int] = {}
    handled = 0
    for operation, argument, place in pickletools.genops(content):
        name, before = operation.name, operation.stack_before
        if name == "MARK":
            marks.append(len(stack))
        elif name == "POP" and marks[-1:] == [len(stack)]:
            marks.pop()
        elif name.endswith("PUT") or name == "MEMOIZE":
            number = len(memo) if argument is None else int(argument)
            if number > (place or 0):
                raise _Refused(f"it numbers an object {number:,} after {place:,} bytes, which would fill the memory.")
            memo[number] = stack[-1]
        elif name.endswith("GET"):
            stack.append(memo[int(argument or 0)])
        else:
            marked = pickletools.markobject in before
            first = marks.pop() - before.index(pickletools.markobject) if marked else len(stack) - len(before)
            held = sum(stack[first:])
            del stack[first:]
            stack += [1 + held if name.startswith("TUPLE") or name == "DUP" else 1] * len(operation.stack_after)
            _check_number(handled := handled + held)


def _check_number(values: int) -> None:
    if values > _MOST_VALUES:
        raise _Refused(
            f"it names the same values again and again, {values:.3g} in all, where {_MOST_VALUES:,} are read at most."
        )


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
            shown = repr(code) if isinstance(code, str) else type(code).__name__
            raise _Refused(f"it holds an array of dtype {shown}, where only numbers and text are read.")
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
    if not isinstance(text, str) or encoding not in ("latin1", "latin-1"):
        raise _Refused("it encodes something else than text as Latin-1, which arrays do not need.")
    return text.encode("latin1")


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


def _plain(content: Any, done: dict[int, tuple[Any, int]]) -> tuple[Any, int]:
    """The content with arrays in place of their stand-ins, and lists in place of tuples and sets; and the number of its values.

    An object that is named many times stays one object (`done`), whose values count each time: whoever goes through them all
    takes that long. Copied each time, 200 bytes could fill any memory.
    """
    if isinstance(content, _Array):
        return content.value, max(1, np.size(content.value))
    if id(content) in done:
        return done[id(content)]
    plain, values = content, 1
    if isinstance(content, dict):
        found = {key: _plain(value, done) for key, value in content.items()}
        plain, values = {key: one for key, (one, _) in found.items()}, 1 + sum(count for _, count in found.values())
    elif isinstance(content, list | tuple | set | frozenset):
        members = [_plain(value, done) for value in content]
        plain, values = [one for one, _ in members], 1 + sum(count for _, count in members)
    done[id(content)] = plain, values
    return plain, values
