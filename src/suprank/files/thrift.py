"""Read structures in Thrift's compact protocol, in which Parquet files describe themselves."""

from __future__ import annotations

from typing import Any

_WIDTHS = {1: 1, 2: 1, 3: 1, 7: 8}  # bytes of truth values in lists, bytes and floats


def read_struct(data: bytes, at: int) -> tuple[dict[int, Any], int]:
    """The fields of the structure at an offset, by number, and where it ends. Text, bytes and floats are skipped: None.

    Raises IndexError or ValueError for bytes that are no structure, or not a whole one.
    """
    fields: dict[int, Any] = {}
    number = 0
    while data[at]:
        step, kind = data[at] >> 4, data[at] & 15
        if not step:
            raise ValueError("a number of a field is not that of the next ones")
        number, at = number + step, at + 1
        fields[number], at = (kind == 1, at) if kind in (1, 2) else _value(data, at, kind)
    return fields, at + 1


def _value(data: bytes, at: int, kind: int) -> tuple[Any, int]:
    if kind in _WIDTHS:
        return None, at + _WIDTHS[kind]
    if kind in (4, 5, 6):
        value, at = _varint(data, at)
        return value >> 1 ^ -(value & 1), at
    if kind == 8:
        length, at = _varint(data, at)
        return None, at + length
    if kind == 12:
        return read_struct(data, at)
    if kind != 9:
        raise ValueError(f"there is no kind {kind} of values")
    count, inner = data[at] >> 4, data[at] & 15
    count, at = _varint(data, at + 1) if count == 15 else (count, at + 1)
    values = []
    for _ in range(count):
        value, at = _value(data, at, inner)
        values.append(value)
    return values, at


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while data[at] & 0x80:
        value |= (data[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
    return value | data[at] << shift, at + 1
