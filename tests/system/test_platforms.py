"""Systems without Linux's calls: every module imports there, and what is missing is done without, or said."""

import json
import os
import shutil
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from bench import timing
from bench.settings import BenchmarkSettings

import suprank
from suprank.data import Manifest, archives, cached_images
from suprank.evaluation import evaluate
from suprank.executors import local
from suprank.losses import SupAP
from suprank.system import platforms
from tests.cli.collection import photographs
from tests.models.tiny import embedder
from tests.system.elsewhere import MISSING, MODULES


@pytest.fixture
def elsewhere(monkeypatch):
    """This process without fcntl, resource and what else Windows has not."""
    for name in MODULES:
        monkeypatch.setitem(sys.modules, name, None)
    for module, names in MISSING.items():
        for name in names:
            monkeypatch.delattr(module, name)


@pytest.mark.slow
def test_every_module_and_the_core_work_without_the_calls_of_unix(forked, tmp_path):
    photographs(tmp_path / "photos")
    shutil.make_archive(str(tmp_path / "photos"), "zip", tmp_path / "photos")
    embedder(dim=8).save(tmp_path / "model")
    code, output, errors = forked.start(cwd=tmp_path, call="tests.system.elsewhere:main").end(timeout=300)
    assert code == 0, errors
    found = json.loads(output.splitlines()[-1])
    assert found["modules"] > 400
    assert "\\u03a3" in output, "Σ, where stdout cannot encode it"
    assert (tmp_path / "r" / "model" / "embedder.json").is_file(), "a training with a spawned worker"
    assert found["refused"].startswith("process ")
    assert found["atomic"] == "second"

    suprank.embed(tmp_path / "model", tmp_path / "test.parquet", tmp_path / "here", size=32, resize=0, device="cpu", workers=0)
    files = [tmp_path / folder / "test" / "embeddings.npy" for folder in ("e", "here")]
    assert files[0].read_bytes() == files[1].read_bytes(), "decoded from the archive with os.pread, and without"
    embeddings, labels = torch.from_numpy(np.load(files[1])), torch.from_numpy(Manifest.read(tmp_path / "test.parquet").labels)
    assert found["again"] == labels.tolist()
    assert found["loss"] == pytest.approx(SupAP()(embeddings, labels[:, 0]).item())
    assert found["report"] == dict(evaluate(embeddings, labels))


def test_the_machine_says_its_cores_and_memory():
    assert 1 <= platforms.usable_cores() <= (os.cpu_count() or 1)
    assert 2**20 < platforms.memory_bytes("SC_AVPHYS_PAGES") <= platforms.memory_bytes() < 2**50


@pytest.mark.usefixtures("elsewhere")
def test_where_the_system_does_not_say_all_cores_count_and_memory_is_unknown(monkeypatch):
    assert platforms.usable_cores() == os.cpu_count()
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert local._environment(0, 2, ())["OMP_NUM_THREADS"] == str(max(1, os.cpu_count() // 2))
    assert platforms.memory_bytes() is None
    assert cached_images.free_memory() > 2**20
    monkeypatch.setattr(timing, "_LINUX", False)
    with pytest.raises(OSError, match="measure on Linux or macOS"):
        timing._peak_resident()
    with pytest.raises(ValueError, match="--max-memory"):
        _ = BenchmarkSettings(device=torch.device("cpu")).limit_bytes


def test_threads_read_the_same_members_without_pread(tmp_path, request):
    draw = np.random.default_rng(0)
    members = {f"{number}.bin": draw.bytes(draw.integers(1, 20_000)) for number in range(64)}
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)

    def read_all():
        opened = archives.Archive(tmp_path / "a.zip")
        with ThreadPoolExecutor(8) as threads:
            return list(threads.map(opened.read, [*members] * 4))

    assert read_all() == [*members.values()] * 4
    request.getfixturevalue("elsewhere")
    assert read_all() == [*members.values()] * 4


def test_without_a_home_the_cache_is_among_temporary_files(monkeypatch, tmp_path):
    def expanduser(self):
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("SUPRANK_CACHE", raising=False)
    assert platforms.default_cache() == Path.home() / ".cache" / "suprank"
    monkeypatch.setattr(Path, "expanduser", expanduser)
    monkeypatch.setattr(platforms.tempfile, "gettempdir", lambda: str(tmp_path))
    assert platforms.default_cache() == tmp_path / f"suprank-cache-{os.getuid()}"
