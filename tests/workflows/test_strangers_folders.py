"""Folders from a stranger: no link in them leads us to another file, and no pipe makes us wait for ever."""

import os
import signal
import stat
from functools import cache

import pytest
import torch

from suprank.data import Manifest
from suprank.embedding.shards import write_embeddings
from suprank.evaluation import Report, evaluate
from suprank.evaluation.checkpoint import Checkpoint
from suprank.explorer import Source
from suprank.explorer.tags import TagFile
from suprank.explorer.web.saved_selections import SavedSelections
from suprank.files.storage import FolderStorage
from suprank.models import Embedder, Head
from suprank.models.head import HeadConfig
from suprank.training import TrainConfig, checkpoint
from suprank.training.run_folder import RunFolder
from suprank.workflows.run_embeddings import read_run_config, record_values
from tests.embedding.test_shards import embedding
from tests.explorer import runs
from tests.models import tiny

pytestmark = pytest.mark.skipif(os.name == "nt", reason="Windows has no such pipes, and links need a privilege")

IMAGES = Manifest.from_columns({"path": ["a.jpg", "b.jpg"], "split": ["test"] * 2}, root=".", levels=())
model = cache(tiny.embedder)


def head():
    return Head(HeadConfig(in_features=4, out_features=2))


def tag(run):
    TagFile(run / "tags.csv").change(IMAGES, [0], add="blurry")


def resume(run):
    config = {"data": {"manifest": "m.parquet"}, "loss": {"name": "roadmap"}}
    RunFolder.open(run, TrainConfig.model_validate(config), resume=True).close()


def embed(run):
    write_embeddings(embedding(), 23, 7, run / "embeddings/test", fingerprint={}, shard_rows=5)


def load_checkpoint(run):
    checkpoint.load_newest(run / "checkpoints", warn=lambda text: None)


def begin_evaluation(run):
    Checkpoint(run / "evaluation").begin({})


OPENED = {
    "tags.csv": [lambda run: TagFile(run / "tags.csv").row_tags(IMAGES), tag],
    "selections.csv": [
        lambda run: SavedSelections(run / "selections.csv").all(),
        lambda run: SavedSelections(run / "selections.csv").save("all", ""),
    ],
    ".tags.csv.lock": [tag],
    "recipe.toml": [Source.read, read_run_config, resume],
    "metrics.jsonl": [Source.read, resume],
    "environment.json": [resume],
    "result.json": [lambda run: RunFolder(run).result, resume],
    "reports/test-epoch-0002.json": [
        lambda run: Source.read(run).training,
        lambda run: RunFolder(run).report_file("test", 2),
    ],
    "checkpoints/step-00000007.pt": [load_checkpoint, lambda run: checkpoint.save(run / "checkpoints", 7, {}, keep=2)],
    "embeddings/test/items.parquet": [Source.read],
    "embeddings/test/embeddings.npy": [Source.read, embed],
    "embeddings/test/run.json": [lambda run: record_values(run / "embeddings", "model"), embed],
    "embeddings/test/parts/00001.npy": [embed],
    "embeddings/claim.json": [
        lambda run: FolderStorage(run).read("embeddings/claim.json"),
        lambda run: FolderStorage(run).write("embeddings/claim.json", b"mine"),
    ],
    "best/embedder.json": [lambda run: Embedder.load(run / "best"), lambda run: model().save(run / "best")],
    "best/model.safetensors": [lambda run: Embedder.load(run / "best"), lambda run: model().save(run / "best")],
    "head/head.json": [lambda run: Head.load(run / "head"), lambda run: head().save(run / "head")],
    "head/head.safetensors": [lambda run: Head.load(run / "head"), lambda run: head().save(run / "head")],
    "evaluation/run.json": [begin_evaluation],
    "evaluation/values-0-0.npz": [begin_evaluation],
    "report.queries.npz": [lambda run: Report.load(run / "report.json")],
}
CASES = [pytest.param(name, action, id=f"{name}-{number}") for name in OPENED for number, action in enumerate(OPENED[name])]


@pytest.fixture
def run(tmp_path):
    """A run with a model, a head, a report and the checkpoint of a training; every file of it can be read."""
    images = runs.collection(tmp_path / "images")
    run = runs.run(tmp_path / "run", images)
    model().save(run / "best")
    head().save(run / "head")
    evaluate(torch.eye(4), torch.tensor([0, 0, 1, 1]), per_query=True, progress=False).save(run / "report.json")
    checkpoint.save(run / "checkpoints", 7, {}, keep=2)
    return run


@pytest.mark.parametrize(("name", "action"), CASES)
def test_a_link_that_leaves_the_folder_is_refused_by_name_and_what_it_leads_to_stays(run, tmp_path, name, action):
    file, other = run / name, tmp_path / "somebody else's"
    other.write_bytes(file.read_bytes() if file.exists() else b"private")
    before = other.read_bytes()
    file.parent.mkdir(parents=True, exist_ok=True)
    file.unlink(missing_ok=True)
    file.symlink_to(other)
    with pytest.raises((OSError, ValueError), match=f"(?s){file.name}.* is a link that leaves its folder"):
        action(run)
    assert other.read_bytes() == before
    assert file.is_symlink()


@pytest.mark.parametrize(("name", "action"), CASES)
def test_a_pipe_is_not_waited_for(run, name, action):
    file = run / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.unlink(missing_ok=True)
    os.mkfifo(file)

    def expired(*_):
        pytest.fail(f"waits for {name}")

    before = signal.signal(signal.SIGALRM, expired)
    signal.alarm(20)
    try:
        with pytest.raises((OSError, ValueError), match="is a pipe or a device"):
            action(run)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    assert stat.S_ISFIFO(file.stat().st_mode)


def test_a_folder_that_is_a_link_and_links_that_stay_in_it_are_fine(run, tmp_path):
    (run / "best").rename(tmp_path / "disk")
    (run / "best").symlink_to(tmp_path / "disk")
    (run / "metrics.jsonl").rename(run / "log.jsonl")
    (run / "metrics.jsonl").symlink_to("log.jsonl")
    (tmp_path / "link").symlink_to(run)
    assert Source.read(tmp_path / "link").metrics_log == Source.read(run).metrics_log != []
    assert Embedder.load(tmp_path / "link/best").fingerprint() == model().fingerprint()


def test_files_in_the_hubs_cache_are_links_to_its_blobs(run, tmp_path):
    cache = tmp_path / "models--me--bird"
    (cache / "blobs").mkdir(parents=True)
    (cache / "snapshots/0f/sub").mkdir(parents=True)
    for name in ("embedder.json", "model.safetensors"):
        (run / "best" / name).rename(cache / "blobs" / name[::-1])
        (cache / "snapshots/0f/sub" / name).symlink_to(f"../../../blobs/{name[::-1]}")
    assert Embedder.load(cache / "snapshots/0f/sub").fingerprint() == model().fingerprint()
