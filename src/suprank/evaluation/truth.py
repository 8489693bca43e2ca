"""What is relevant, where labels do not say it: judgments, or the ground truth of a benchmark, which its kind tells apart."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any, get_args

from suprank.evaluation.embedding_files import check_file
from suprank.evaluation.landmarks import USAGES, read_solution
from suprank.evaluation.revisited import GroundTruth, read_ground_truth
from suprank.evaluation.runs import Qrels, SelfMatch
from suprank.files.reading import reading

Solution = Mapping[Any, Collection[Any]]
Truth = Qrels | GroundTruth | Sequence[Mapping[str, Any]] | Solution
TruthSource = str | PathLike[str] | Truth | Mapping[Any, Mapping[Any, int]]
"""What `read_truth` takes."""

TASK = "task.json"
"""Beside the judgments of a task of mteb: its name, its k, its main score, and what it does about the query in its own list."""


def read_truth(given: TruthSource) -> Truth:
    """Judgments (`Qrels`), the ground truth of revisited Oxford and Paris, or GLDv2's solution `{query: relevant ids}`.

    Judgments may be `{query: {item: grade}}`, and the ground truth the list `gnd` of its file. Of a path, the extension says
    what it is: `.pkl` is a revisited ground truth, as is a `.json` with its keys; `.csv` is a solution; all else are judgments.
    `solution.csv:Public` chooses the queries of a usage, and `qrels.json:first` what is done about the query in its own list;
    by default that is what the task of mteb says that `suprank data import mteb` imported the judgments from.
    """
    if isinstance(given, Qrels | GroundTruth):
        return given
    if isinstance(given, str | PathLike):
        return _read(str(given))
    if isinstance(given, Mapping):
        grades = {query: one for query, one in given.items() if isinstance(one, Mapping)}
        return Qrels.from_dict(grades) if grades and len(grades) == len(given) else given
    if isinstance(given, list | tuple):
        return given
    raise TypeError(f"truth is {type(given).__name__}, but must be a path, Qrels, a GroundTruth, or a mapping of queries.")


def split_truth(given: str | PathLike[str]) -> tuple[Path, str]:
    """The path, and the word behind a colon, or "".

    Example:
        >>> split_truth("solution.csv:Public")
        (PosixPath('solution.csv'), 'Public')
    """
    name, colon, word = str(given).rpartition(":")
    known = (*USAGES, *get_args(SelfMatch))
    return (Path(name), word) if colon and word in known else (Path(given), "")


def _read(given: str) -> Truth:
    path, word = split_truth(given)
    check_file(path, str(path))
    kind = path.suffix.lower()
    if word and (word in USAGES) != (kind == ".csv"):
        right = "Public or Private, of a solution" if word not in USAGES else "first, id or keep, of judgments"
        raise ValueError(f"{given} ends in {word!r}, which {path} cannot have; write {right}, or the path alone.")
    if kind == ".csv":
        return read_solution(path, word or None)
    if kind == ".pkl" or (kind == ".json" and b'"imlist"' in path.read_bytes()):
        return read_ground_truth(path)
    qrels, task = Qrels.load(path), read_task(path)
    if task is None:
        return replace(qrels, self_match=next((rule for rule in get_args(SelfMatch) if rule == word), None))
    if word not in ("", task["self_match"]):
        raise ValueError(f"{given} is not what {task['name']} does, which is {task['self_match']!r}; write {path} alone.")
    return replace(qrels, self_match=task["self_match"], ks=tuple(task["ks"]))


def read_task(qrels: Any) -> dict[str, Any] | None:
    """What `suprank data import mteb` wrote about the task beside its judgments: `name`, `self_match`, `ks`, `main_score`."""
    file = Path(qrels).with_name(TASK) if isinstance(qrels, str | PathLike) else None
    if file is None or not file.is_file():
        return None
    with reading(file, "task"):
        task = json.loads(file.read_bytes())
    known = isinstance(task, dict) and {"name", "self_match", "ks", "main_score"} <= task.keys()
    return task if known else None  # else it is a file of somebody else's
