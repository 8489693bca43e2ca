"""Folders from a stranger: no link in them leads us to another file, and no pipe makes us wait for ever."""

import os
import signal
from functools import cache

import pytest
import torch

from suprank import open_data
from suprank.data import Manifest
from suprank.embedding.shards import write_embeddings
from suprank.evaluation import Report, evaluate
from suprank.evaluation.checkpoint import Checkpoint
from suprank.explorer.findings.training_run import read_log
from suprank.explorer.tags import TagFile
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


OPENED = {
    "tags.csv": [lambda run: TagFile(run / "tags.csv").row_tags(IMAGES), tag],
    ".tags.csv.lock": [tag],
    "recipe.toml": [open_data, read_run_config, resume],
    "metrics.jsonl": [lambda run: read_log(open_data(run)), resume],
    "environment.json": [resume],
    "result.json": [lambda run: RunFolder(run).result],
    "reports/test-epoch-0002.json": [
        lambda run: open_data(run).origin.training,
        lambda run: RunFolder(run).report_file("test", 2),
    ],
    "checkpoints/step-00000007.pt": [
        lambda run: checkpoint.load_newest(run / "checkpoints", warn=lambda text: None),
        lambda run: checkpoint.save(run / "checkpoints", 7, {}, keep=2),
    ],
    "embeddings/test/items.parquet": [open_data],
    "embeddings/test/embeddings.npy": [open_data, embed],
    "embeddings/test/run.json": [lambda run: record_values(run / "embeddings", "model"), embed],
    "embeddings/test/parts/00001.npy": [embed],
    "embeddings/test/parts/3-of-16.json": [embed],
    "evaluation/values-0-0.npz": [lambda run: Checkpoint(run / "evaluation").begin({})],
    "report.queries.npz": [lambda run: Report.load(run / "report.json")],
}
for _name in ("best/embedder.json", "best/model.safetensors"):
    OPENED[_name] = [lambda run: Embedder.load(run / "best"), lambda run: model().save(run / "best")]
for _name in ("head/head.json", "head/head.safetensors"):
    OPENED[_name] = [lambda run: Head.load(run / "head"), lambda run: head().save(run / "head")]


@pytest.fixture
def run(tmp_path):
    """A run with a model, a head, a report and the checkpoint of a training; every file of it can be read."""
    run = runs.run(tmp_path / "run", runs.collection(tmp_path / "images"))
    model().save(run / "best")
    head().save(run / "head")
    evaluate(torch.eye(4), torch.tensor([0, 0, 1, 1]), per_query=True, progress=False).save(run / "report.json")
    checkpoint.save(run / "checkpoints", 7, {}, keep=2)
    return run


@pytest.fixture
def time_limit():
    before = signal.signal(signal.SIGALRM, lambda *_: pytest.fail("waits for a pipe"))
    signal.alarm(20)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.usefixtures("time_limit")
@pytest.mark.parametrize("name", OPENED)
def test_a_link_that_leaves_the_folder_and_a_pipe_are_refused_by_name(run, tmp_path, name):
    file, other = run / name, tmp_path / "somebody else's"
    content = file.read_bytes() if file.exists() else b"private"
    other.write_bytes(content)
    file.parent.mkdir(parents=True, exist_ok=True)
    for make, said in ((lambda: file.symlink_to(other), "a link that leaves"), (lambda: os.mkfifo(file), "a pipe or a device")):
        for action in OPENED[name]:
            file.unlink(missing_ok=True)
            make()
            with pytest.raises((OSError, ValueError), match=f"(?s){file.name}.* is {said}"):
                action(run)
            assert not file.is_symlink() or other.read_bytes() == content


def test_links_that_stay_in_the_folder_the_folder_itself_and_the_hubs_cache_are_fine(run, tmp_path):
    (run / "metrics.jsonl").rename(run / "log.jsonl")
    (run / "metrics.jsonl").symlink_to("log.jsonl")
    (tmp_path / "link").symlink_to(run)
    assert read_log(open_data(tmp_path / "link")) == read_log(open_data(run)) != []
    blobs, snapshot = tmp_path / "cache/blobs", tmp_path / "cache/snapshots/0f/sub"
    snapshot.mkdir(parents=True)
    (run / "best").rename(blobs)
    (run / "best").symlink_to(snapshot)
    for file in blobs.iterdir():
        (snapshot / file.name).symlink_to(f"../../../blobs/{file.name}")
    assert Embedder.load(run / "best").fingerprint() == model().fingerprint()
