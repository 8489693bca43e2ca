"""Values of the cases: compute, read, write and compare them."""

from __future__ import annotations

import json
import math
import tomllib
import warnings
from collections.abc import Callable, Iterable, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
FOLDER = HERE / "values"
DIGITS, DIGITS_OF_FLOAT32 = 10, 6  # that are stored
CLOSE, CLOSE_IN_FLOAT32 = 1e-9, 1e-4  # relative to the largest number of an array; above what CPUs differ by
ZERO = 1e-12
SHORT = (",", ":")


def compute(keys: Iterable[str] | None = None, *, errors: bool = False) -> dict[str, Any]:
    """The values of these cases, by default of all; of real data if they are there. With `errors`, those stand for values."""
    from tests.golden.cases import CASES, SHARED, SHARED_CASES

    cases = CASES | (SHARED_CASES if SHARED.is_dir() else {})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of labels that are no tree, of duplicates
        return {key: _plain(cases[key], errors) for key in (cases if keys is None else keys) if key in cases}


def read() -> dict[str, Any]:
    return {key: value for file in sorted(FOLDER.glob("*.json")) for key, value in json.loads(file.read_text()).items()}


def write(values: Mapping[str, Any]) -> None:
    """A file for each section, a line for each key."""
    FOLDER.mkdir(exist_ok=True)
    for section in sorted({key.partition("/")[0] for key in values}):
        own = {key: value for key, value in sorted(values.items()) if key.startswith(f"{section}/")}
        lines = [f"{json.dumps(key)}: {json.dumps(value, ensure_ascii=False, separators=SHORT)}" for key, value in own.items()]
        (FOLDER / f"{section}.json").write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def exceptions(folder: Path = HERE) -> tuple[dict[str, str], dict[str, str]]:
    """Patterns of keys whose values were changed, with the reason; and new names of keys."""
    file = folder / "exceptions.toml"
    listed = tomllib.loads(file.read_text(encoding="utf-8")) if file.is_file() else {"changed": {}, "renamed": {}}
    return listed["changed"], listed["renamed"]


def reason(key: str, changed: Mapping[str, str]) -> str | None:
    """Why the value of this key may differ from an older one; None if it may not."""
    return next((why for pattern, why in changed.items() if fnmatchcase(key, pattern)), None)


def under_new_names(values: Mapping[str, Any], renamed: Mapping[str, str]) -> dict[str, Any]:
    """Older values under the keys of today."""
    return {renamed.get(key, key): value for key, value in values.items()}


def compare(key: str, old: Any, new: Any) -> str:
    """Where and how the two differ by more than CPUs do; "" if they do not."""
    return _compare(old, new, CLOSE_IN_FLOAT32 if "float32" in key else CLOSE)


def rounded(key: str, value: Any) -> Any:
    """The value with as many digits as are stored."""
    digits = DIGITS_OF_FLOAT32 if "float32" in key else DIGITS
    return _with_floats(value, lambda number: float(f"{number:.{digits}g}"))


def in_bits(value: Any) -> Any:
    """The value with every float in hexadecimal digits."""
    return _with_floats(value, float.hex)


def _with_floats(value: Any, change: Callable[[float], Any]) -> Any:
    if isinstance(value, dict):
        return {name: _with_floats(inner, change) for name, inner in value.items()}
    if isinstance(value, list):
        return [_with_floats(inner, change) for inner in value]
    return change(value) if isinstance(value, float) else value


def _plain(case: Callable[[], Any], errors: bool) -> Any:
    """The value as it comes back from JSON."""
    try:
        return json.loads(json.dumps(case()))
    except Exception as error:
        if errors:
            return f"failed: {type(error).__name__}: {error}"
        raise


def _compare(old: Any, new: Any, close: float, largest: float | None = None) -> str:
    if isinstance(old, dict) and isinstance(new, dict):
        if old.keys() != new.keys():
            return f" has the keys {sorted(new.keys() - old.keys())} and lacks {sorted(old.keys() - new.keys())}"
        found = ((f"[{name!r}]", _compare(old[name], new[name], close)) for name in old)
    elif isinstance(old, list) and isinstance(new, list):
        if len(old) != len(new):
            return f" has {len(new)} elements, not {len(old)}"
        largest = max((abs(one) for one in old if isinstance(one, float) and math.isfinite(one)), default=0.0)
        found = ((f"[{place}]", _compare(*pair, close, largest)) for place, pair in enumerate(zip(old, new, strict=True)))
    elif isinstance(old, float) and isinstance(new, float):
        allowed = max(ZERO, close * (largest or abs(old)))
        return "" if abs(new - old) <= allowed or (math.isnan(old) and math.isnan(new)) else f" is {new!r}, not {old!r}"
    else:
        return "" if old == new and type(old) is type(new) else f" is {new!r}, not {old!r}"
    return next((place + text for place, text in found if text), "")
