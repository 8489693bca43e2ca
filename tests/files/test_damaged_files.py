"""Readers of binary files, given files with random damage, read them or refuse them by one sentence with their name."""

import io

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from suprank.data import Manifest
from suprank.data.importers.hf import import_hf
from suprank.evaluation.embedding_files import open_embeddings
from suprank.files.binary import open_npy, read_npz
from tests.attacks import attack, damage
from tests.data.pictures import encoded

VECTORS = np.random.default_rng(0).random((20, 8), np.float32)
PICTURE = encoded(Image.effect_noise((16, 12), 80))
IMAGES = pa.table({"image": [{"bytes": PICTURE, "path": f"{row}.png"} for row in range(5)], "label": list("aabbb")})
EMBEDDED = pa.table({"embedding": list(VECTORS), "label": ["a", "b"] * 10})
MANIFEST = pa.table({"path": [f"{row}.jpg" for row in range(20)], "split": ["test"] * 20, "label_kind": ["a", "b"] * 10})


def plain(table, file):
    pq.write_table(table, file, compression="none", use_dictionary=False, data_page_version="2.0")


def write_arrow(file):
    with pa.ipc.new_stream(file, IMAGES.schema) as writer:
        writer.write_table(IMAGES)


def read_in_order(path):
    open_embeddings(path, str(path), None, sequential=True)[:]


CASES = {
    "npy": (lambda file: np.save(file, VECTORS), open_npy),
    "npz": (lambda file: np.savez_compressed(file, embeddings=VECTORS), read_npz),
    "manifest.parquet": (lambda file: pq.write_table(MANIFEST, file), Manifest.read),
    "embeddings.parquet": (lambda file: plain(EMBEDDED, file), read_in_order),
    "images.parquet": (lambda file: pq.write_table(IMAGES, file), import_hf),
    "arrow": (write_arrow, import_hf),
}


@pytest.mark.parametrize("case", CASES)
def test_damaged_files_are_read_or_refused_by_one_sentence_with_their_name(tmp_path, monkeypatch, case):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    write, read = CASES[case]
    whole = io.BytesIO()
    write(whole)
    for seed in range(-1, 60):
        path = tmp_path / f"{seed}.{case}"
        path.write_bytes(whole.getvalue() if seed < 0 else damage(whole.getvalue(), seed))
        said = attack(lambda path=path: read(path), megabytes=1500)
        assert not said or (said.startswith(("Value", "Type", "Unreadable")) and str(path) in said and "\n" not in said), seed
        assert not said or seed >= 0
