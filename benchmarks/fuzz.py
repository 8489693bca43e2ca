"""Damaged and forged files for every reader: each is read, or refused in one sentence that names it.

    python benchmarks/fuzz.py --inputs 6000 --seed 0            # mutants and the attacks below; writes cpu/fuzz.json
    python benchmarks/fuzz.py --kinds "ground truth, pickle"    # of one reader; writes nothing
    python benchmarks/fuzz.py --keep fuzz-findings              # keeps the files of the findings

A valid file of each kind is changed at random: bytes, numbers, words, lines, brackets, encodings, its end; compressed ones
inside too. Each mutant is read in a child of its own, forked from a process that has imported everything, with 1 GiB of memory
and ten seconds. `clean` counts mutants that were refused in one sentence that names the file, `correct` those that were read,
and hold what an independent reading of the file holds where there is one. Anything else is a finding: a crash by a signal, a
time-out, memory that is used up, an error that the command line would show as a traceback, a sentence without the file, several
lines, or a wrong reading. The same seed gives the same mutants.
"""

from __future__ import annotations

import argparse
import csv
import faulthandler
import gc
import gzip
import hashlib
import io
import json
import os
import pickle
import platform
import random
import re
import resource
import signal
import sys
import tarfile
import tempfile
import time
import warnings
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pages

ROOT = Path(__file__).parents[1]
RESULTS, PAGE = ROOT / "benchmarks" / "results" / "cpu" / "fuzz.json", ROOT / "docs" / "reliability.md"
MEMORY, SECONDS = 2**30, 10
USER_ERRORS = (ValueError, TypeError, OSError, ImportError)  # that the command line prints in one line

Files = dict[str, bytes]


class Kind(NamedTuple):
    """A reader, and a valid file for it. `name` is the file that is changed, `beside` others that it needs.

    `unpack` and `pack` give a content to change that is compressed or otherwise written in the file; `prepare` writes what
    must agree with the changed file, such as its hash. `check` raises AssertionError if a file was read wrongly.
    """

    name: str
    content: bytes
    read: Callable[[Path], Any]
    check: Callable[[Any, Path], None] = lambda found, path: None
    beside: Mapping[str, bytes] = MappingProxyType({})
    unpack: Callable[[bytes], bytes] | None = None
    pack: Callable[[bytes], bytes] = bytes
    prepare: Callable[[Path], None] = lambda path: None


csv.field_size_limit(2**30)


class Outcome(NamedTuple):
    """`clean`, `correct`, or what is wrong; and the sentence."""

    verdict: str
    message: str = ""


# Kinds


def _written(write: Callable[[Path], Any], name: str) -> Files:
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder) / name)
        return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


@cache
def kinds() -> dict[str, Kind]:
    """All of them, by name."""
    return {**_tables(), **_rankings(), **_records(), **_arrays(), **_images(), **_datasets()}


def _tables() -> dict[str, Kind]:
    from suprank.data.importers.landmark_files import train_photographs
    from suprank.data.manifest import Manifest
    from suprank.evaluation.labels import read_label_files
    from suprank.explorer.tags import with_tags
    from suprank.files.tables import column_names, read_lines, read_rows, read_table

    species = ["jay", "wren", "crow", "001", "1", "Göttingen", "jay", "crow"]
    columns = {
        "path": [f"{row}.jpg" for row in range(8)],
        "split": ["train"] * 4 + ["test"] * 4,
        "label_species": species,
        "label_family": ["b" if name == "wren" else "a" for name in species],
        "id": [f"i{row}" for row in range(8)],
    }
    manifest = Manifest.from_columns(columns, root=Path(), levels=("species", "family"))
    parquet = _written(lambda path: manifest.save(path), "m.parquet")["m.parquet"]
    text = _written(lambda path: manifest.save(path), "m.csv")
    labels = b"species,family,id\njay,a,001\nwren,b,1\ncrow,a,+1\nG\xc3\xb6ttingen,a,1e3\n"
    tags = b"id,path,box,tags\ni0,,,blurry;wrong label\ni3,,,blurry\n"
    train = b"landmark_id,images\n1,0123456789abcdef 0123456789abcde0\n007,00000000000000ff\n"

    def rows(path: Path) -> Any:
        return read_rows(path, column_names(path)[:2], lambda cells: None).rows

    def tagged(path: Path) -> Any:
        return with_tags(manifest, path).table["tags"].to_pylist()

    def whole_table(path: Path) -> Any:
        table = read_table(path)
        return [table.column(name).to_pylist() for name in table.names]

    def label_columns(path: Path) -> Any:
        return read_label_files([path], () if path.suffix == ".npy" else ["species", "family"]).labels

    def same_cells(found: Any, path: Path) -> None:
        delimiter = "\t" if path.suffix == ".tsv" else ","
        listed = csv.reader(io.StringIO(path.read_bytes().decode("utf-8-sig"), newline=""), delimiter=delimiter)
        cells = [row for row in listed if row][1:]
        assert [list(column) for column in zip(*cells, strict=True)] == found, "the cells are not those of the file"

    saved = {name: content for name, content in text.items() if name != "m.csv"}
    return {
        "manifest, Parquet": Kind("m.parquet", parquet, Manifest.read),
        "manifest, CSV": Kind("m.csv", text["m.csv"], Manifest.read, beside=saved),
        "manifest, CSV, its metadata": Kind(
            "m.csv.json",
            text["m.csv.json"],
            lambda path: Manifest.read(path.with_name("m.csv")),
            beside={"m.csv": text["m.csv"]},
        ),
        "table, CSV": Kind("t.csv", labels, whole_table, same_cells),
        "table, TSV": Kind("t.tsv", labels.replace(b",", b"\t"), whole_table, same_cells),
        "labels, CSV": Kind("l.csv", labels, label_columns),  # codes; "table, CSV" compares the cells
        "labels, Parquet": Kind("l.parquet", parquet, label_columns),
        "labels, .npy": Kind(
            "l.npy", _written(lambda path: np.save(path, np.arange(24).reshape(8, 3)), "l.npy")["l.npy"], label_columns
        ),
        "list of items, CSV": Kind("items.csv", labels, rows),
        "list of labels": Kind("labels.txt", "jay\nwren\nGöttingen\n".encode(), lambda path: read_lines(path).rows),
        "landmarks, CSV": Kind("train_clean.csv", train, lambda path: train_photographs({"train_clean.csv": path})),
        "tags.csv": Kind("tags.csv", tags, tagged),
    }


def _rankings() -> dict[str, Kind]:
    from suprank.data.importers import revisited
    from suprank.evaluation import Qrels, Report, Run, evaluate, read_ground_truth
    from suprank.evaluation.landmarks import read_predictions, read_solution
    from suprank.evaluation.revisited import protocol_lists

    run = b"".join(b"q%d Q0 i%d %d %.3f suprank\n" % (q, i, i + 1, 0.9 - i / 9) for q in range(3) for i in range(4))
    qrels = b"".join(b"q%d 0 i%d %d\n" % (q, i, i % 3) for q in range(3) for i in range(4))
    ranx = json.dumps({f"q{q}": {f"i{i}": 0.9 - i / 9 for i in range(3)} for q in range(3)}).encode()
    ranx_qrels = json.dumps({f"q{q}": {f"i{i}": i % 2 for i in range(3)} for q in range(3)}).encode()
    boxes = [[1.5, 2, 30, 40], [0, 0, 9.5, 8]]
    truth: dict[str, Any] = {
        "imlist": ["a", "b", "c", "d", "e"],
        "qimlist": ["p", "q"],
        "gnd": [{"bbx": box, "easy": [0, 1], "hard": [2], "junk": []} for box in boxes],
    }
    arrays = {**truth, "gnd": [{key: np.array(value) for key, value in row.items()} for row in truth["gnd"]]}
    rng = np.random.default_rng(0)
    evaluated = evaluate(rng.standard_normal((12, 4)), rng.integers(0, 3, 12), progress=False, per_query=True)
    report = _written(lambda path: evaluated.save(path), "r.json")
    packed = {"unpack": gzip.decompress, "pack": lambda content: gzip.compress(content, mtime=0)}

    def listed(path: Path) -> Any:
        return sorted((query, item, score) for query, items in Run.load(path) for item, score in items)

    def judged(path: Path) -> Any:
        return sorted((query, item, value) for query, items in Qrels.load(path) for item, value in items)

    def opened(path: Path) -> bytes:
        return gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()

    def lines(path: Path) -> list[list[str]]:
        split = [line.split() for line in io.StringIO(opened(path).decode("utf-8-sig"), newline=None)]
        return [fields for fields in split if fields and not fields[0].startswith("#")]

    def same_run(found: Any, path: Path) -> None:
        assert found == sorted((line[0], line[2], float(line[4])) for line in lines(path)), "the run is not that of the file"

    def same_qrels(found: Any, path: Path) -> None:
        assert found == sorted((line[0], line[2], int(line[3])) for line in lines(path)), (
            "the judgments are not those of the file"
        )

    def same_pairs(found: Any, path: Path) -> None:
        content = json.loads(opened(path).decode("utf-8-sig"))
        assert found == sorted((query, item, value) for query, items in content.items() for item, value in items.items())

    def ground_truth(path: Path) -> Any:
        found = read_ground_truth(path)
        revisited.read(path.parent, path.stem.removeprefix("gnd_"))
        return found, protocol_lists(found)

    def in_range(found: Any, path: Path) -> None:
        known, lists = found
        for indices in (one for protocol in lists.values() for side in protocol for one in side):
            assert all(0 <= index < len(known.items) for index in indices), "an image that is not in the gallery"
        assert known.boxes is None or (np.abs(known.boxes) < 2**31).all(), "a box that is not in an image"

    def rewrite_hash(path: Path) -> None:
        content = json.loads(path.with_name("r.json").read_bytes())
        content["queries_sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()
        path.with_name("r.json").write_text(json.dumps(content, indent=1))

    def whole_report(path: Path) -> Any:
        found = Report.load(path.with_name("r.json"))
        return found.means, str(found)

    zipped = gzip.compress(run, mtime=0), gzip.compress(qrels, mtime=0), gzip.compress(ranx, mtime=0)
    return {
        "run, TREC": Kind("run.trec", run, listed, same_run),
        "run, TREC, .gz": Kind("run.trec.gz", zipped[0], listed, same_run),
        "run, TREC, inside .gz": Kind("run.trec.gz", zipped[0], listed, same_run, **packed),
        "judgments, TREC": Kind("qrels.txt", qrels, judged, same_qrels),
        "judgments, TREC, .gz": Kind("qrels.txt.gz", zipped[1], judged, same_qrels),
        "judgments, TREC, inside .gz": Kind("qrels.txt.gz", zipped[1], judged, same_qrels, **packed),
        "run, ranx": Kind("run.json", ranx, listed, same_pairs),
        "run, ranx, .gz": Kind("run.json.gz", zipped[2], listed, same_pairs),
        "judgments, ranx": Kind("qrels.json", ranx_qrels, judged, same_pairs),
        "predictions, CSV": Kind(
            "p.csv", b"id,images\nq1,a b c\nq2,c a\n", lambda path: (read_predictions(path), listed(path))
        ),
        "solution, CSV": Kind("s.csv", b"id,images,Usage\nq1,a b,Public\nq2,c,Private\nq3,None,Ignored\n", read_solution),
        "ground truth, pickle": Kind("gnd_x.pkl", pickle.dumps(arrays, 2), ground_truth, in_range),
        "ground truth, pickle of lists": Kind("gnd_x.pkl", pickle.dumps(truth, 0), ground_truth, in_range),
        "ground truth, JSON": Kind("gnd_x.json", json.dumps(truth).encode(), ground_truth, in_range),
        "report, JSON": Kind("r.json", report["r.json"], whole_report, beside=report),
        "report, values per query": Kind(
            "r.queries.npz", report["r.queries.npz"], whole_report, beside=report, prepare=rewrite_hash
        ),
    }


def _records() -> dict[str, Kind]:
    from suprank.data.tree import LabelTree
    from suprank.hierarchy.recipe import read_recipe as read_hierarchy
    from suprank.models import Head, HeadConfig
    from suprank.models.config import EmbedderConfig
    from suprank.models.model_folder import read_model, write_model
    from suprank.training.recipe import read_recipe
    from suprank.training.run_folder import RunFolder

    names, counts = (("jay", "wren"), ("birds",)), (np.array([2, 3]), np.array([5]))
    tree = LabelTree(("species", "family"), names, (np.array([0, 0]),), counts).to_json().encode()
    recipe = (
        b'extends = "base.toml"\n[loss]\nname = "roadmap"\nweight = 0.3\n[run]\nseed = 1\nepochs = 5\n[batch]\nsize = 64\n'
        b'[images]\ncrop_scale = [0.4, 1]\n[data]\nmanifest = "m.parquet"\n'
    )
    base = b'[data]\nmanifest = "m.parquet"\nlevels = ["x"]\n[model]\nbackbone = "resnet50"\n'
    hierarchy = (
        b'title = "Landmarks"\nlevels = ["landmark", "kind", "group"]\ntop = ["nature"]\n[items]\nid = "landmark_id"\n'
        b'whole_numbers = true\n[[clean.stop]]\nqid = "Q5"\nreason = "no type"\n[cluster]\nk = 5\n'
    )
    head = _written(lambda path: Head(HeadConfig(in_features=4, out_features=2, hidden=3)).save(path.parent), "head")
    state = {"weight": _torch().arange(6.0).reshape(2, 3), "bias": _torch().zeros(2)}
    model = _written(lambda path: write_model(path.parent, EmbedderConfig(backbone="resnet50", dim=8), state), "model")

    def rewrite_hash(settings: str) -> Callable[[Path], None]:
        def rewrite(path: Path) -> None:
            beside = path.with_name(settings)
            record = json.loads(beside.read_bytes())
            record["weights_sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()
            beside.write_text(json.dumps(record))

        return rewrite

    def load_head(path: Path) -> Any:
        return Head.load(path.parent).transform(np.ones((2, 4), np.float32))

    return {
        "recipe, TOML": Kind("r.toml", recipe, read_recipe, beside={"base.toml": base}),
        "recipe that another extends, TOML": Kind(
            "base.toml", base, lambda path: read_recipe(path.with_name("r.toml")), beside={"r.toml": recipe}
        ),
        "recipe of a hierarchy, TOML": Kind("h.toml", hierarchy, lambda path: read_hierarchy(str(path))),
        "result of a run, JSON": Kind(
            "result.json", b'{"AP": 0.5, "epoch": 3, "test": {"R@1": 0.9}}', lambda path: RunFolder(path.parent).result
        ),
        "label tree": Kind("tree.json", tree, lambda path: LabelTree.read(path).text()),
        "head, safetensors": Kind(
            "head.safetensors", head["head.safetensors"], load_head, beside=head, prepare=rewrite_hash("head.json")
        ),
        "head, settings": Kind("head.json", head["head.json"], load_head, beside=head),
        "model, safetensors": Kind(
            "model.safetensors",
            model["model.safetensors"],
            lambda path: read_model(path.parent),
            beside=model,
            prepare=rewrite_hash("embedder.json"),
        ),
        "model, settings": Kind("embedder.json", model["embedder.json"], lambda path: read_model(path.parent), beside=model),
    }


def _torch() -> Any:
    import torch

    torch.set_num_threads(1)
    return torch


def _arrays() -> dict[str, Kind]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    from suprank.evaluation.embeddings import Embeddings
    from suprank.hierarchy.precomputed import PrecomputedVectors

    matrix = np.random.default_rng(0).standard_normal((6, 4)).astype(np.float32)
    table = pa.table({"id": [f"i{row}" for row in range(6)], "embedding": pa.array(matrix.tolist(), pa.list_(pa.float32()))})
    names = np.array([f"label {row}" for row in range(6)])

    def rows(path: Path) -> Any:
        found = Embeddings.from_source(path)
        return found.rows(slice(0, len(found)))

    def rows_in_order(path: Path) -> Any:
        found = Embeddings.from_source(path, sequential=True)
        return found.rows(slice(0, len(found)))

    def written(write: Callable[[Path], Any], name: str) -> bytes:
        return _written(write, name)[name]

    parquet = written(lambda path: pq.write_table(table, path), "e.parquet")
    vectors = written(lambda path: np.savez(path, labels=names, embeddings=matrix), "v.npz")
    return {
        "embeddings, .npy": Kind("e.npy", written(lambda path: np.save(path, matrix), "e.npy"), rows),
        "embeddings, .pt": Kind("e.pt", written(lambda path: _torch().save(_torch().from_numpy(matrix), path), "e.pt"), rows),
        "embeddings, Parquet": Kind("e.parquet", parquet, rows),
        "embeddings, Parquet, in order": Kind("e.parquet", parquet, rows_in_order),
        "vectors of labels, .npz": Kind("v.npz", vectors, PrecomputedVectors),
    }


def _images() -> dict[str, Kind]:
    from PIL import Image

    from suprank.data.archives import Archive
    from suprank.data.image_files import ImageFiles
    from suprank.data.images import decode_image

    picture = Image.fromarray(np.random.default_rng(0).integers(0, 255, (9, 11, 3), np.uint8))

    def encoded(kind: str) -> bytes:
        stream = io.BytesIO()
        picture.save(stream, kind)
        return stream.getvalue()

    def zipped(method: int) -> bytes:
        stream = io.BytesIO()
        with zipfile.ZipFile(stream, "w", method) as archive:
            for name in ("a.png", "b/c.png"):
                archive.writestr(name, encoded("PNG"))
        return stream.getvalue()

    def tarred() -> bytes:
        stream = io.BytesIO()
        with tarfile.open(fileobj=stream, mode="w") as archive:
            for name in ("a.png", "b/c.png"):
                member = tarfile.TarInfo(name)
                member.size = len(encoded("PNG"))
                archive.addfile(member, io.BytesIO(encoded("PNG")))
        return stream.getvalue()

    def members(path: Path) -> Any:
        archive = Archive(path)
        return [archive.read(name) for name in list(archive.members)[:10]]

    def image(path: Path) -> Any:
        return decode_image(ImageFiles(path.parent).read(path.name), path.name)

    def same_members(found: Any, path: Path) -> None:
        assert all(isinstance(content, bytes) for content in found)

    return {
        "archive, .zip": Kind("a.zip", zipped(zipfile.ZIP_DEFLATED), members, same_members),
        "archive, .zip, stored": Kind("a.zip", zipped(zipfile.ZIP_STORED), members, same_members),
        "archive, .tar": Kind("a.tar", tarred(), members, same_members),
        **{
            f"image, {kind}": Kind(f"x.{kind.lower()}", encoded(kind), image)
            for kind in ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF")
        },
    }


def _datasets() -> dict[str, Kind]:
    import datasets
    import pyarrow as pa
    import pyarrow.parquet as pq

    from suprank.data.image_files import ImageFiles
    from suprank.data.importers import import_hf

    rows = pa.table({"image": [b"first", b"second", b"third"], "label": ["jay", "wren", "jay"]})
    card = b"---\nconfigs:\n- config_name: default\n  data_files:\n  - split: train\n    path: train-*.parquet\n---\n# Birds\n"

    def images(path: Path) -> list[bytes]:
        datasets.disable_progress_bars()
        datasets.config.HF_DATASETS_CACHE = path.parent / "cache"
        manifest = import_hf(path.parent).manifests[""]
        return [ImageFiles(manifest.root).read(one) for one in manifest.paths.to_pylist()]

    parquet = _written(lambda path: pq.write_table(rows, path), "train-0.parquet")
    return {"dataset card": Kind("README.md", card, images, beside=parquet)}


# Mutants

# Numbers, names, brackets, quotes, ends of lines, bytes that are no UTF-8, and the beginnings of binary formats.
WORDS = (
    *rb"-1 0 007 1e300 -1e300 1e999 Infinity -Infinity NaN nan inf 2147483648 0x10 9223372036854775808 1_000 1. .5 +7".split(),
    *rb"""-9223372036854775809 true null None "" " ' {} [] [[[ }}} { ] , ,, \ \u0000 \ud800 # = =1+1 .. ../..""".split(),
    *b"/dev/zero extends q1 ; :: ( ) . \xff \xe9 \xc3 \xed\xa0\x80 \xef\xbb\xbf \xe2\x80\xa8 \xc2\xa0 \x80\x04 PAR1".split(
        b" "
    ),
    *b"PK\x03\x04 \x93NUMPY \x1f\x8b \xff\xff\xff\xff \xff\xff\xff\x7f".split(b" "),
    *(b"\t", b"\r", b"\n", b"\r\n", b"\n\n", b"\0", b" ", b"  ", b"a" * 3000, b"9" * 400, b"9" * 5000),
)
_TOKEN = re.compile(rb"-?\d+(?:\.\d+)?(?:e[+-]?\d+)?|[A-Za-z_]+|\"[^\"\n]*\"|[\[\]{},:=]")
_BRACKETS = ((b"[", b"]"), (b'{"a":', b"}"), (b"(", b")"), (b"a.", b""), (b"\x85", b""))


def mutate(content: bytes, rng: random.Random) -> bytes:
    """The content with one change or a few."""
    for _ in range(rng.choice((1, 1, 1, 2, 3, 8))):
        content = _change(content, rng)
    return content


def _change(content: bytes, rng: random.Random) -> bytes:
    at, word = rng.randrange(len(content) + 1), rng.choice(WORDS)
    before, after = content[:at], content[at:]
    tokens, lines = list(_TOKEN.finditer(content)), content.split(b"\n")
    one, other = (rng.randrange(len(lines)) for _ in range(2))
    match rng.choice((*2 * ("bit", "token"), "bytes", "word", "insert", "cut", "remove", "repeat", "line", "code", "nest")):
        case "bit" if after:
            return before + bytes([after[0] ^ 1 << rng.randrange(8)]) + after[1:]
        case "bytes":
            new = rng.randbytes(rng.choice((1, 2, 4, 8)))
            return before + new + after[len(new) :]
        case "word":
            return before + word + after[len(word) :]
        case "cut":
            return before
        case "remove":
            return before + after[rng.choice((1, 1, 2, 4, 16, 64)) :]
        case "repeat":
            return before + after[: rng.choice((1, 4, 16, 64))] * rng.choice((1, 1, 2, 100, 2000)) + after
        case "token" if tokens:
            old, new = rng.choice(tokens), rng.choice(tokens)
            return content[: old.start()] + rng.choice((word, new[0])) + content[old.end() :]
        case "line":
            more = rng.choice((b",", b"\t", b" x", b"\r", b",a,b"))
            changed = rng.choice(([], [lines[other]], [lines[one], lines[other]], [lines[one] + more]))
            return b"\n".join([*lines[:one], *changed, *lines[one + 1 :]])
        case "code":
            text = content.decode("utf-8", "replace")
            latin, utf16 = text.replace("e", "é").encode("latin-1", "replace"), text.encode("utf-16")
            ends = [content.replace(b"\n", end) for end in (b"\r\n", b"\r")]
            return rng.choice((latin, utf16, b"\xef\xbb\xbf" + content, text.replace("a", "é").encode(), *ends))
        case "nest":
            (left, right), depth = rng.choice(_BRACKETS), rng.choice((3, 1_000, 100_000))
            return before + left * depth + rng.choice((b"", b"1", b"a")) + right * depth + after
    return before + word + after


def mutant(kind: str, number: int, seed: int) -> bytes:
    """The file of a number; number 0 is the valid one."""
    one, rng = kinds()[kind], random.Random(f"{seed} {kind} {number}")
    if number == 0:
        return one.content
    if one.unpack is None:
        return mutate(one.content, rng)
    return one.pack(mutate(one.unpack(one.content), rng))


# Attacks made by hand


def _deep(left: bytes, right: bytes, depth: int = 100_000) -> bytes:
    return left * depth + b"1" + right * depth


def _laughs(two: Callable[[Any], Any]) -> bytes:
    """A pickle, without its header and its end, of two of two of two ... of them: 2^60 values in 500 bytes."""
    laughs: Any = "ha"
    for _ in range(60):
        laughs = two(laughs)
    return pickle.dumps(laughs, 2)[2:-1]


def _truth(**changed: Any) -> bytes:
    row = {"bbx": [1, 2, 30, 40], "easy": [0], "hard": [1], "junk": [], **changed}
    return json.dumps({"imlist": ["a", "b", "c"], "qimlist": ["q"], "gnd": [row]}).encode()


def attacks(*, large: bool = True) -> Iterator[tuple[str, str, bytes, bool]]:
    """The reader, what is done to it, the file, and whether it must be refused. `large`: those that take seconds, too."""
    for kind in ("run, ranx", "judgments, ranx", "report, JSON", "label tree", "ground truth, JSON", "result of a run, JSON"):
        yield kind, "nested 100,000 deep", _deep(b"[", b"]"), True
        yield kind, "objects nested 100,000 deep", _deep(b'{"a":', b"}"), True
        yield kind, "a number of a million digits", b'{"a": ' + b"9" * 10**6 + b"}", True
    for kind in ("head, settings", "model, settings", "manifest, CSV, its metadata"):
        yield kind, "nested 100,000 deep", _deep(b'{"a":', b"}"), True
    for kind in ("recipe, TOML", "recipe that another extends, TOML", "recipe of a hierarchy, TOML"):
        yield kind, "nested 100,000 deep", b"a = " + _deep(b"[", b"]"), True
        yield kind, "tables nested 100,000 deep", b"a = " + _deep(b"{a=", b"}"), True
        yield kind, "a name of 10,000 parts", b"a." * 10_000 + b"a = 1", True
    yield "recipe, TOML", "extends itself", b'extends = "r.toml"', True
    yield "recipe, TOML", "extends one file a million times", b'extends = ["base.toml"' + b', "base.toml"' * 10**6 + b"]", True
    expanding = [("run, ranx, .gz", "run", "blanks", b" ")]
    for name, kind, line in (("run", "run, TREC, .gz", b"q Q0 i 1 1 t\n"), ("qrels", "judgments, TREC, .gz", b"q 0 i 1\n")):
        expanding += [
            (kind, name, what, content) for what, content in (("lines", line), ("one line", b"q"), ("blank lines", b"\n"))
        ]
        yield kind, f"a {name} that is cut", gzip.compress(line * 1000)[:-9], True
        yield kind, f"a {name} with a wrong checksum", gzip.compress(line)[:-8] + bytes(8), True
    for kind in ("table, CSV", "labels, CSV", "manifest, CSV", "tags.csv", "list of items, CSV"):
        header = ",".join(["path", "split", "id", "box", "tags", *(f"label_{i}" for i in range(20_000))])
        yield kind, "20,000 columns", f"{header}\na.jpg,train,1,,b{',x' * 20_000}\n".encode(), False
        latin = "path,split,id,box,tags,label_espèce\na,train,1,,x,007\nb,train,2,,x,7\n".encode("latin-1")
        yield kind, "a Latin-1 header", latin, kind != "list of items, CSV"  # which takes no types, and two columns
        yield kind, "a cell of 20 MB", b"path,split,id,box,tags,label_x\na,train,1,,x," + b"x" * 20_000_000 + b"\n", False
        yield kind, "a quote that is never closed", b'path,split,id,box,tags,label_x\na,train,1,,x,"' + b"x\n" * 200_000, True
    for value in (-1, 1e300, float("inf"), float("nan"), 3, 0.5, 2**63, 10**400, True, None, "0", [0], {}):
        yield "ground truth, JSON", f"an image number {value!r:.20}", _truth(easy=[value]), value != [0]
    for value in (float("inf"), float("nan"), 1e300, None, "x", [1]):
        yield "ground truth, JSON", f"a box of {value!r}", _truth(bbx=[1, 2, value, 40]), True
    tuples, lists = _laughs(lambda one: (one, one)), _laughs(lambda one: [one, one])
    rows = {"bbx": [0, 0, 1, 1], "easy": [*range(10_000)], "hard": [], "junk": []}
    shared = {"imlist": [str(i) for i in range(10_000)], "qimlist": [str(i) for i in range(10_000)], "gnd": [rows] * 10_000}
    for what, content in {
        "a memo of 4 GB": b"\x80\x04Nr\xff\xff\xff\x3f.",
        "a memo of 4 GB, in text": b"Np1073741823\n.",
        "2^60 values of shared lists": b"\x80\x02" + lists + b".",
        "2^60 values of shared tuples as a key": b"\x80\x02}" + tuples + b"Ns.",
        "2^60 values of doubled tuples as a key": b"\x80\x02}K\x01" + b"2\x86" * 60 + b"Ns.",
        "2^60 values of shared tuples in a set": b"\x80\x04\x8f(" + tuples + b"\x90.",
        "2^60 values as a dtype": b"\x80\x02cnumpy\ndtype\n" + lists + b"\x85R.",
        "2^60 values as text to encode": b"\x80\x02c_codecs\nencode\n" + lists + b"X\x06\0\0\0latin1\x86R.",
        "2^60 values as an encoding": b"\x80\x02c_codecs\nencode\nX\x01\0\0\0a" + lists + b"\x86R.",
        "tuples 200,000 deep as a key": b"\x80\x02}K\x01" + b"\x85" * 200_000 + b"Ns.",
        "lists 200,000 deep": b"\x80\x02" + b"]" * 200_000 + b"a" * 199_999 + b".",
        "a list of 10,000 values that 10,000 queries share": pickle.dumps(shared),
        "a length of 8 exabytes": b"\x80\x05\x96" + b"\xff" * 7 + b"\x0f.",
        "code": b"cos\nsystem\n(S'exit 3'\ntR.",
    }.items():
        yield "ground truth, pickle", what, content, True
    if large:
        for kind, name, what, content in expanding:
            megabytes = gzip.compress(content * (2**24 // len(content))) * 64
            yield kind, f"a {name} of 1 MB that expands to 1 GB of {what}", megabytes, True
        yield "run, TREC", "one line of 30 MB", b"q " * 15_000_000, True


# Judging


def judge(kind: Kind, content: bytes, folder: Path, *, refused: bool = False) -> Outcome:
    """Read the content in a child, in a folder that is used for nothing else. `refused`: it must be."""
    path = folder / kind.name
    for name, one in {**kind.beside, kind.name: content}.items():
        path.with_name(name).write_bytes(one)
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks in processes with threads, which read nothing here
        child = os.fork()
    if not child:
        os.close(reading)
        try:
            _limit()
            outcome = _read(kind, path, refused)
            os.write(writing, json.dumps([one[:1000] for one in outcome]).encode())
        finally:
            os._exit(0)  # nothing of the parent is ended or flushed here
    os.close(writing)
    answer = b"".join(iter(lambda: os.read(reading, 2**16), b""))
    os.close(reading)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status in (-signal.SIGALRM, -signal.SIGXCPU):
        return Outcome("time-out", f"more than {SECONDS} seconds")
    return Outcome(*json.loads(answer)) if answer else Outcome("crash", f"exit status {status}")


def _limit() -> None:
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    faulthandler.disable()  # that of pytest
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS + 5))  # of its own work, on a busy machine too
    signal.alarm(6 * SECONDS)
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    warnings.simplefilter("ignore")


def _read(kind: Kind, path: Path, refused: bool) -> Outcome:
    try:
        kind.prepare(path)
        found = kind.read(path)
    except MemoryError:
        return Outcome("memory", f"more than {MEMORY >> 20} MiB")
    except BaseException as error:
        message = str(error)
        if not isinstance(error, USER_ERRORS):
            return Outcome("traceback", f"{type(error).__name__}: {message}")
        if not any(one.name in message for one in path.parent.iterdir()) and str(path.parent) not in message:
            return Outcome("no name", f"{type(error).__name__}: {message}")
        return Outcome("several lines" if "\n" in message.strip() else "clean", message)
    if refused:
        return Outcome("accepted", "it must be refused")
    try:
        kind.check(found, path)
    except Exception as error:
        return Outcome("wrong", f"{type(error).__name__}: {error}")
    return Outcome("correct")


# Running


def warm() -> None:
    """Read every valid file once, so that children find imported what readers import, and free the collector of it all."""
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for number, kind in enumerate(kinds().values()):
            path = Path(folder) / str(number) / kind.name
            path.parent.mkdir()
            for name, content in {**kind.beside, kind.name: kind.content}.items():
                path.with_name(name).write_bytes(content)
            kind.read(path)
    gc.collect()
    gc.freeze()  # or else each child would copy what the collector touches


class Found(NamedTuple):
    """One that was judged: the number of a mutant, or what an attack does."""

    kind: str
    what: int | str
    content: bytes
    outcome: Outcome


def fuzz(numbers: dict[str, range], seed: int, jobs: int = 1) -> Iterator[Found]:
    """Judge the mutants of these numbers of each kind, in several processes, which have imported what this one has."""
    tasks = [(kind, number, seed) for kind, these in numbers.items() for number in these]
    if jobs == 1:
        yield from map(_judge_number, tasks)
        return
    with ProcessPoolExecutor(jobs, mp_context=get_context("fork")) as pool:
        yield from pool.map(_judge_number, tasks, chunksize=8)


def _judge_number(task: tuple[str, int, int]) -> Found:
    content = mutant(*task)
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        return Found(*task[:2], content, judge(kinds()[task[0]], content, Path(folder)))


def attack(only: Sequence[str], *, large: bool = True) -> Iterator[Found]:
    """Judge the attacks on these kinds."""
    for kind, what, content, refused in attacks(large=large):
        if kind in only:
            with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
                yield Found(kind, what, content, judge(kinds()[kind], content, Path(folder), refused=refused))


def table(found: Sequence[Found]) -> list[dict[str, Any]]:
    """A row for each kind, and one for the sum."""
    rows = []
    for name in (*dict.fromkeys(one.kind for one in found), "all"):
        counts = Counter(one.outcome.verdict for one in found if name in (one.kind, "all"))
        clean, correct = counts.pop("clean", 0), counts.pop("correct", 0)
        inputs = clean + correct + counts.total()
        rows.append({"kind": name, "inputs": inputs, "clean": clean, "correct": correct, "findings": dict(counts)})
    return rows


def markdown(rows: Sequence[dict[str, Any]]) -> str:
    """The table as the documentation has it."""
    lines = ["| kind | inputs | clean | correct | findings |", "| --- | ---: | ---: | ---: | ---: |"]
    for row in rows:
        findings = ", ".join(f"{count} {verdict}" for verdict, count in row["findings"].items()) or "0"
        lines.append(f"| {row['kind']} | {row['inputs']} | {row['clean']} | {row['correct']} | {findings} |")
    return "\n".join(lines) + "\n"


def spread(inputs: int, names: Sequence[str]) -> dict[str, range]:
    """As many inputs of each kind, or one more of the first."""
    each, more = divmod(inputs, len(names))
    return {name: range(each + (place < more)) for place, name in enumerate(names)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=6000, help="mutants, of all kinds together")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kinds", help="those whose name contains this; nothing is written")
    parser.add_argument("--keep", type=Path, help="a folder for the files of the findings")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    known, start = kinds(), time.monotonic()
    chosen = [name for name in known if options.kinds is None or options.kinds in name]
    warm()
    numbers = spread(options.inputs, chosen)
    found = [*fuzz(numbers, options.seed, options.jobs), *attack(chosen)]
    seconds = time.monotonic() - start
    findings = [one for one in found if one.outcome.verdict not in ("clean", "correct")]
    for one in findings:
        print(f"{one.kind} {one.what}: {one.outcome.verdict}: {one.outcome.message[:300]!r}", file=sys.stderr)
        if options.keep is not None:
            folder = options.keep / re.sub(r"\W+", "-", f"{one.kind} {one.what}")
            folder.mkdir(parents=True, exist_ok=True)
            (folder / known[one.kind].name).write_bytes(one.content)
    rows = table(found)
    print(markdown(rows) + f"\n{len(found) / seconds:.0f} a second, {seconds:.0f} s")
    if options.kinds is None:
        content = {
            "command": f"python benchmarks/fuzz.py --inputs {options.inputs} --seed {options.seed}",
            "date": datetime.now(UTC).strftime("%Y-%m-%d"),
            "environment": _environment(),
            "seconds": round(seconds),
            "rows": rows,
            "findings": [[one.kind, one.what, *one.outcome] for one in findings],
        }
        RESULTS.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        pages.update(PAGE, {"fuzz": markdown(rows)})
    sys.exit(bool(findings))


def _environment() -> dict[str, str]:
    from importlib.metadata import version

    packages = ("numpy", "pyarrow", "torch", "pillow", "safetensors", "pydantic")
    return {"python": platform.python_version(), **{name: version(name) for name in packages}, "system": platform.platform()}


if __name__ == "__main__":
    main()
