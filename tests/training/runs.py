"""Small runs to interrupt: pictures, a recipe, a callback that records its calls, and training in a process of its own."""

from __future__ import annotations

import io
import json
import os
import signal
import sys
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import safetensors.torch
import torch
from PIL import Image

from suprank.data import Manifest
from suprank.evaluation import Report
from suprank.training import checkpoint
from suprank.training.callbacks import Callback, StepValues
from suprank.training.config import TrainConfig
from suprank.training.loop import train
from tests.ports import free_port
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

CLASSES, TRAIN, TEST = 8, 6, 3  # three batches of 16, two images of each class, are an epoch
DESCRIPTION = "roadmap on 48 images of 8 classes, cpu: test_resnet at 32 pixels, batches of 16 with 2 of each class"


def pictures(folder: Path, *, classes: int = CLASSES, tests: int = TEST, noise: int = 40) -> Path:
    """The file of a manifest: classes of noisy pictures, four to a group, of which the test images come first."""
    draw = np.random.default_rng(0)
    folder.mkdir(parents=True, exist_ok=True)
    columns: dict[str, list[str]] = {"path": [], "split": [], "label_fine": [], "label_coarse": []}
    for number in range(classes):
        colors = draw.uniform(0, 255, (3, 3, 3))
        for image in range(tests + TRAIN):
            name = f"{number}-{image}.png"
            noisy = np.clip(colors + draw.uniform(-noise, noise, colors.shape), 0, 255).astype(np.uint8)
            Image.fromarray(noisy).resize((40, 36)).save(folder / name)
            for column, value in zip(
                columns.values(), (name, "train" if image >= tests else "test", f"f{number}", f"c{number // 4}"), strict=True
            ):
                column.append(value)
    file = folder / "manifest.parquet"
    Manifest.from_columns(columns, root=folder).save(file)
    return file


def recipe(manifest: Path | str, **tables: dict[str, Any]) -> TrainConfig:
    """A run of nine steps, of about 0.02 s each; entries of tables that are given replace those here."""
    usual: dict[str, dict[str, Any]] = {
        "data": {"manifest": str(manifest), "workers": 0},
        "images": {"size": 32, "test_resize": 32, "crop_scale": (0.6, 1.0)},
        "model": {"backbone": "test_resnet", "pretrained": False, "dim": 8},
        "loss": {"name": "roadmap", "decomposability": "pairs"},
        "batch": {"size": 16, "images_per_class": 2},
        "optimizer": {"lr": 2e-3},
        "run": {"epochs": 3},
        "engine": {"accelerator": "cpu"},
        "evaluation": {"every": 2, "metrics": ("R@1", "AP", "H-AP")},
        "logging": {"every": 1, "tensorboard": False},
    }
    merged = {name: usual.get(name, {}) | tables.get(name, {}) for name in usual | tables}
    merged["loss"] = tables.get("loss", usual["loss"])  # the keys of one loss are no keys of another
    return TrainConfig.model_validate(merged)


class Recorder(Callback):
    """Records what it is called with, in order, and calls `acts` of the same names, which may do harm."""

    def __init__(self, **acts: Callable[..., None]) -> None:
        self.events: list[tuple[Any, ...]] = []
        self.acts = acts

    def on_train_start(self, done: int, steps: int, description: str) -> None:
        self._record("on_train_start", done, steps, description)

    def on_step_end(self, step: StepValues) -> None:
        self._record("on_step_end", step)

    def on_evaluation_progress(self, name: str, done: int, total: int) -> None:
        self._record("on_evaluation_progress", name, done, total)

    def on_evaluation_end(self, epoch: int, reports: Any) -> None:
        self._record("on_evaluation_end", epoch, reports)

    def on_message(self, text: str) -> None:
        self._record("on_message", text)

    def events_of(self, name: str) -> list[Any]:
        """The arguments of the calls of this method."""
        return [values[0] if len(values) == 1 else values for kind, *values in self.events if kind == name]

    def _record(self, name: str, *values: Any) -> None:
        self.events.append((name, *values))
        if name in self.acts:
            self.acts[name](*values)


def at_step(number: int, act: Callable[[], None]) -> Callable[[StepValues], None]:
    """Call `act` when this step ends."""
    return lambda step: act() if step.step == number else None


def signalled(number: int = signal.SIGTERM) -> None:
    """Send this process a signal."""
    os.kill(os.getpid(), number)


def fake_metrics(values: Iterable[float]) -> Callable[..., dict[str, Report]]:
    """A validator's call that returns these values of H-AP, one for each evaluation, and an R@1 below all of them."""
    left = iter(values)
    levels = ("fine", "coarse")
    counts: dict[str, Any] = {"n_queries": 1, "n_items": 1, "levels": levels, "without_positives": dict.fromkeys(levels, 0)}
    return lambda self, forward, *, device, progress, per_query: {"test": Report({"H-AP": next(left), "R@1": 0.01}, **counts)}


def weights(folder: Path, name: str = "model") -> dict[str, torch.Tensor]:
    return safetensors.torch.load((folder / name / "model.safetensors").read_bytes())


def everything(folder: Path) -> dict[str, Any]:
    """The last checkpoint, less the time that training took: weights, optimizers, memory, proxies, position."""
    found = checkpoint.load_newest(folder / "checkpoints", lambda text: None)
    assert found is not None
    state, _ = found
    state["position"].pop("seconds")
    return state


def same(one: Any, other: Any) -> bool:
    """Whether two states are equal, bit for bit."""
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(value, other[key]) for key, value in one.items())
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


def lines(folder: Path) -> list[dict[str, Any]]:
    """What metrics.jsonl says, without what depends on the clock."""
    found = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in line.items() if name not in ("time", "images per second")} for line in found]


# In a process of its own


class Process:
    """A child of the prepared process, with the names of `multiprocessing.Process`."""

    def __init__(self, child: Any) -> None:
        self._child, self.pid = child, child.pid

    @property
    def exitcode(self) -> int | None:
        return self._child.join(0)

    def join(self, timeout: float = 60) -> None:
        self._child.join(timeout)

    def is_alive(self) -> bool:
        return self.exitcode is None

    def terminate(self) -> None:
        self._child.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        if self.is_alive():
            self._child.send_signal(signal.SIGKILL)


def start_process(forked: Any, target: Callable[..., None], *arguments: Any, **named: Any) -> Process:
    """A process of its own, with a group of its own, that calls `target`, a function of a module of tests."""
    variables = {"CUDA_VISIBLE_DEVICES": "", "GLOO_SOCKET_IFNAME": "lo"}
    return Process(forked.function(partial(target, *arguments, **named), variables))


def started(forked: Any, folder: Path, config: TrainConfig, **settings: Any) -> Process:
    """A process that trains into the folder; what it writes to standard error is in a file beside, NAME.stderr."""
    return start_process(forked, _main, folder, config, **settings)


def stderr(folder: Path) -> str:
    return folder.with_suffix(".stderr").read_text()


def steps_done(folder: Path) -> list[int]:
    """The steps of all processes that trained into the folder, one after another."""
    file = folder.with_suffix(".steps")
    return [int(line) for line in file.read_text().splitlines()] if file.is_file() else []


def _main(
    folder: Path,
    config: TrainConfig,
    *,
    pause: float = 0.0,
    hold_at: int | None = None,
    slow_at: int | None = None,
    variables: dict[str, str] | None = None,
) -> None:
    """Train or go on, and end with the code of the signal that stopped it, as `suprank train` does.

    `NAME.steps` beside the folder has a line for each step, so that others may wait for one; a step is `pause` seconds longer,
    and step `hold_at` ends when there is a file `NAME.go`. The checkpoint of step `slow_at` is half written for a while.
    """
    with folder.with_suffix(".stderr").open("ab", buffering=0) as errors:
        os.dup2(errors.fileno(), sys.stderr.fileno())
    os.environ.update(variables or {})
    torch.set_num_threads(1)
    if slow_at is not None:
        checkpoint.torch = SimpleNamespace(**vars(torch) | {"save": partial(_saved_slowly, slow_at)})  # type: ignore[assignment]
    with folder.with_suffix(".steps").open("a") as steps:

        def note(at: StepValues) -> None:
            steps.write(f"{at.step}\n")
            steps.flush()
            time.sleep(pause)
            if at.step == hold_at:
                wait_until(folder.with_suffix(".go").exists)

        result = train(config, folder, resume=True, callbacks=Recorder(on_step_end=note))
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
    sys.exit(128 + result.stop_signal if result.stop_signal else 0)


def _saved_slowly(step: int, state: Any, file: Any) -> None:
    whole = io.BytesIO()
    torch.save(state, whole)
    half = len(whole.getvalue()) // 2
    file.write(whole.getvalue()[:half])
    if state["position"]["step"] == step:
        file.flush()
        time.sleep(150)
    file.write(whole.getvalue()[half:])


def two_ranks() -> list[dict[str, str]]:
    """What torchrun tells each of two processes."""
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": f"{free_port()}", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    common |= {"TORCHELASTIC_RUN_ID": "test", "GROUP_RANK": "0", "GLOO_SOCKET_IFNAME": "lo"}
    return [{**common, "RANK": f"{rank}", "LOCAL_RANK": f"{rank}"} for rank in range(2)]
