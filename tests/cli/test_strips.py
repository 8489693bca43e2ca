"""An image of 500,000 × 1 pixels, 1.5 kB of PNG, in every command that reads images: in little memory."""

import json
import resource
from pathlib import Path

import pytest
import torch
from PIL import Image
from starlette.testclient import TestClient

from suprank.explorer.web import create_app
from suprank.training.loop import train
from suprank.workflows.explorers import open_explorer
from tests.cli.collection import done, photographs
from tests.models.tiny import embedder
from tests.training.runs import recipe


def in_little_memory():
    """In a process of its own: print by how many MB each way of reading raised the most memory that it took."""
    torch.set_num_threads(1)
    photographs(Path("photos"), images=3)
    strips = [Path("photos/group0/class00/0.png"), Path("photos/group0/class00/1.png"), Path("photos/group2/class22/0.png")]
    done("data", "import", "folder", "photos", "--holdout-classes", 0.3, "--out", "m.parquet")
    embedder(dim=8).save("model")
    embed = ("embed", "model", "m.parquet", "--split", "train", "--split", "test", "--workers", 0)
    settings = {"images": {"size": 32, "resize": 256, "test_resize": 256}, "run": {"epochs": 1}, "model": {"dim": 8}}
    settings["model"] |= {"backbone": "test_resnet", "pretrained": False}
    answers = {}

    def everything(name):
        done("data", "check", "m.parquet")
        yield "check"
        done("data", "show", "m.parquet", "--out", f"{name}.png")
        yield "show"
        done(*embed, "--out", name, "--size", 64, "--resize", 128)
        yield "embed"
        done(*embed, "--out", f"{name}-cropped", "--size", 64, "--resize", 0)
        yield "embed, only cropped"
        done(*embed, "--out", f"{name}-squashed", "--size", 64, "--resize", 64, "--squash")
        yield "embed, squashed"
        train(recipe("m.parquet", **settings, batch={"size": 8, "images_per_class": 2}), f"{name}-run")
        yield "train"
        explorer = open_explorer([name], model="model", device="cpu")
        data, app = explorer.runs[0].data, create_app(explorer)
        client = TestClient(app, base_url="http://127.0.0.1:8000")
        for strip in strips[:2]:
            answer = client.post("/upload", files={"image": ("a.png", strip.read_bytes(), "image/png")})
            assert answer.status_code == 200, answer.text
        yield "upload"
        for row in range(len(data.items)):
            assert client.get(f"/picture/small/a/gallery/{row}").status_code == 200
        yield "pictures"

    list(everything("ordinary"))  # what is imported and kept takes memory too
    for strip, size in zip(strips, ((500_000, 1), (1, 500_000), (1, 499_999)), strict=True):
        Image.new("RGB", size).save(strip)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for name in everything("strips"):
        before, peak = peak, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        answers[name] = (peak - before) // 1024
    print(json.dumps(answers))


@pytest.mark.slow
def test_a_strip_of_half_a_million_pixels_takes_little_memory_wherever_it_is_read(forked, tmp_path):
    started = forked.start(cwd=tmp_path, call="tests.cli.test_strips:in_little_memory", variables={"CUDA_VISIBLE_DEVICES": ""})
    code, output, errors = started.end(timeout=120)
    assert code == 0, errors
    more = json.loads(output.splitlines()[-1])
    assert list(more) == ["check", "show", "embed", "embed, only cropped", "embed, squashed", "train", "upload", "pictures"]
    assert max(more.values()) < 150, f"MB: {more}"
