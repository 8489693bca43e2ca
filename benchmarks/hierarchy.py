"""Costs of embedding and clustering labels: 6,000 vectors of 768 dimensions, and 20,000 labels by their spelling.

python benchmarks/hierarchy.py --out benchmarks/results/cpu/hierarchy.json
python benchmarks/hierarchy.py --case vectors --no-peers

Labels are drawn from made-up words, heads common and rare. Vectors are drawn around the label's head, in 64 dimensions, with
noise in all. `embed_s` and `cluster_s` are whole steps on a fresh project, with the five further seeds, all figures, names and
the write. The peers give clusters and nothing else, at the same k: scikit-learn's KMeans with ten starts, and faiss's where it
is installed. A group that is opened in the review asks for names and for a split: their times are the medians of ten.

`pages` are those of the review, asked for over HTTP: `first_s` the first time after the server began, `then_s` the median of
five more. What a browser takes to draw them is not in it.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import resource
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
from numpy.typing import NDArray

from suprank.hierarchy import Project, read_recipe
from suprank.hierarchy.clustering import WordCounts, cluster_labels, suggested_names, suggested_split
from suprank.hierarchy.embedding import embed_labels, read_embedding
from suprank.hierarchy.project import record_step
from suprank.hierarchy.review import open_branch
from suprank.hierarchy.review.web import create_app
from suprank.web.serving import bind_socket, make_server, server_url

CASES = {"vectors": 6_000, "spelling": 20_000}
DIM, LATENT, GROUP = 768, 64, 300


def main() -> None:
    arguments = _arguments()
    rows = []
    for case in arguments.case or list(CASES):
        with tempfile.TemporaryDirectory(prefix="hierarchy", dir=arguments.folder) as name:
            rows.append(_row(Path(name), case, arguments.labels or CASES[case], arguments.peers))
            print(json.dumps(rows[-1]), flush=True)
    if arguments.out:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps(_report(rows), indent=1) + "\n")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--case", action="append", choices=tuple(CASES))
    parser.add_argument("--labels", type=int, help="other than 6,000 vectors and 20,000 spellings")
    parser.add_argument("--no-peers", dest="peers", action="store_false")
    parser.add_argument("--folder", type=Path, help="where the projects are made, and deleted")
    parser.add_argument("--out", type=Path, help="a JSON file for all numbers")
    return parser.parse_args()


def _row(folder: Path, case: str, many: int, peers: bool) -> dict[str, Any]:
    texts, heads = _labels(many)
    project = _project(folder / "project", texts)
    encoder = "tfidf"
    if case == "vectors":
        np.savez(folder / "vectors.npz", labels=np.array(texts), embeddings=_vectors(heads))
        encoder = f"precomputed:{folder / 'vectors.npz'}"
    began = time.perf_counter()
    embedded = embed_labels(project, encoder)
    embed_s = time.perf_counter() - began
    began, cpu = time.perf_counter(), time.process_time()
    outcome = cluster_labels(project)
    cluster_s, cluster_cpu_s = time.perf_counter() - began, time.process_time() - cpu
    row = {
        "case": case,
        "labels": many,
        "dim": embedded.dim,
        "k": outcome.settings["k"],
        "seeds": outcome.settings["seeds"],
        "embed_s": round(embed_s, 2),
        "cluster_s": round(cluster_s, 2),
        "cluster_cpu_s": round(cluster_cpu_s, 2),
        "most_memory_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        "figures": outcome.statistics,
    }
    row["pages"] = _pages(project)
    vectors = read_embedding(project).vectors
    row |= _of_a_group(texts, vectors, outcome.settings["k"])
    return row | (_peers(vectors, outcome.settings["k"]) if peers else {})


def _labels(many: int) -> tuple[list[str], NDArray[np.int64]]:
    """Different texts such as `lomi tave` and `lomi tave of suru`, and which head word each has."""
    rng = np.random.default_rng(0)
    parts = [first + second for first in "bdfgklmnprstvz" for second in "aeiou"]
    word = lambda: "".join(rng.choice(parts, rng.integers(2, 5)))  # noqa: E731
    heads, others = [word() for _ in range(max(1, many // 60))], [word() for _ in range(max(2, many // 10))]
    share = 1 / np.arange(3, len(heads) + 3)
    texts: dict[str, int] = {}
    while len(texts) < many:
        head = int(rng.choice(len(heads), p=share / share.sum()))
        text = f"{rng.choice(others)} {heads[head]}"
        texts.setdefault(f"{text} of {rng.choice(others)}" if rng.random() < 0.3 else text, head)
    return list(texts), np.array(list(texts.values()))


def _vectors(heads: NDArray[np.int64]) -> NDArray[np.float32]:
    rng = np.random.default_rng(1)
    centers = rng.normal(size=(int(heads.max()) + 1, LATENT))
    latent = centers[heads] + 0.9 * rng.normal(size=(len(heads), LATENT))
    return (latent @ rng.normal(size=(LATENT, DIM)) / 8 + 0.7 * rng.normal(size=(len(heads), DIM))).astype(np.float32)


def _project(folder: Path, texts: list[str]) -> Project:
    project = Project.create(folder, read_recipe("plain"))
    weights = np.random.default_rng(2).zipf(1.6, len(texts)).clip(max=20_000)
    with project.transaction() as db:
        rows = ((text, text, int(weight)) for text, weight in zip(texts, weights, strict=True))
        db.executemany("INSERT INTO label (key, text, weight, state) VALUES (?, ?, ?, 'active')", rows)
        record_step(db, "new", {}, inputs="", result={}, digest="drawn")
    return project


def _of_a_group(texts: list[str], vectors: NDArray[np.float32], k: int) -> dict[str, Any]:
    counts, some = WordCounts.from_texts(texts, k), list(range(GROUP))
    chosen, rows = [texts[at] for at in some], vectors[some]
    return {
        "group": GROUP,
        "names_ms": _median_ms(lambda: suggested_names(chosen, counts, rows, some)),
        "split_ms": _median_ms(lambda: suggested_split(rows)),
        "split_of_2000_ms": _median_ms(lambda: suggested_split(vectors[:2_000]), 3),
    }


def _pages(project: Project) -> dict[str, dict[str, float]]:
    """Seconds for pages of the review: the list, the largest group, a search, the log."""
    branch = open_branch(project, "anna")
    with project.snapshot() as db:
        query = 'SELECT "group" FROM member WHERE branch = ? GROUP BY 1 ORDER BY count(*) DESC LIMIT 1'
        (largest,) = db.execute(query, (branch.id,)).fetchone()
    listening = bind_socket("127.0.0.1", 0)
    listening.listen()
    server = make_server(create_app(project, ["anna"]))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    found = {}
    with httpx2.Client(base_url=server_url(listening, "127.0.0.1"), timeout=60) as client:
        client.get(f"/anna/enter?token={branch.token}")
        paths = {"list": "", "group": f"group/{largest}", "split": f"group/{largest}?suggest=1", "search": "search?q=of"}
        for name, path in (paths | {"history": "history"}).items():
            times = [_seconds(lambda path=path: client.get(f"/anna/{path}").raise_for_status()) for _ in range(6)]  # type: ignore[misc]
            found[name] = {"first_s": round(times[0], 3), "then_s": round(statistics.median(times[1:]), 3)}
    server.should_exit = True
    thread.join()
    return found


def _seconds(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def _median_ms(call: Callable[[], object], times: int = 10) -> float:
    return round(1e3 * statistics.median(_seconds(call) for _ in range(times)), 2)


def _peers(vectors: NDArray[np.float32], k: int) -> dict[str, Any]:
    from sklearn.cluster import KMeans

    began = time.perf_counter()
    KMeans(k, n_init=10, random_state=0).fit(vectors)
    found = {"scikit_learn_10_starts_s": round(time.perf_counter() - began, 2)}
    if find_spec("faiss") is not None:
        import faiss

        began = time.perf_counter()
        faiss.Kmeans(vectors.shape[1], k, niter=25, nredo=5, seed=0, spherical=True).train(vectors)
        found["faiss_spherical_5_starts_s"] = round(time.perf_counter() - began, 2)
    return found


def _report(rows: list[dict[str, Any]]) -> dict[str, Any]:
    names = ("suprank", "numpy", "scikit-learn", "scipy", *(["faiss-cpu"] if find_spec("faiss") else []))
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": platform.platform(),
        "cores": os.cpu_count(),
        "threads": os.environ.get("OMP_NUM_THREADS", "all"),
        "load_at_the_end": os.getloadavg(),
        "versions": {name: importlib.metadata.version(name) for name in names},
        "rows": rows,
    }


if __name__ == "__main__":
    main()
