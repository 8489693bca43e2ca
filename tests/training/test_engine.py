"""Devices, processes and precision as a recipe asks for them; and, on a GPU, that training works in each."""

import gc
import io
import math
import os

import pytest
import torch

from suprank.models import Embedder
from suprank.training import engine
from suprank.training.config import EngineConfig
from suprank.training.engine import build_fabric, launched_processes
from tests.training.worker import BATCH, RESNET, VIT, batch, config, learned, learner, steps

SLURM = (
    "SLURM_NTASKS",
    "SLURM_JOB_NUM_NODES",
    "SLURM_NNODES",
    "SLURM_JOB_NAME",
    "SLURM_PROCID",
    "SLURM_LOCALID",
    "SLURM_NODEID",
)
TORCHRUN = ("TORCHELASTIC_RUN_ID", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "RANK", "LOCAL_RANK")
ADAM = {"name": "adam", "lr": 1e-3}


@pytest.fixture(autouse=True)
def nobody_started_us(monkeypatch):
    for name in SLURM + TORCHRUN:
        monkeypatch.delenv(name, raising=False)


def with_variables(monkeypatch, **values):
    for name, value in values.items():
        monkeypatch.setenv(name, str(value))


# Which process is which


def test_nobody_started_a_plain_process():
    assert launched_processes() is None


@pytest.mark.parametrize(("here", "all_of_them", "expected"), [(4, 4, (4, 1)), (8, 16, (8, 2)), (1, 3, (1, 3)), (1, 1, (1, 1))])
def test_torchrun_says_how_many_processes_and_machines_there_are(monkeypatch, here, all_of_them, expected):
    with_variables(monkeypatch, TORCHELASTIC_RUN_ID="x", LOCAL_WORLD_SIZE=here, WORLD_SIZE=all_of_them)
    assert launched_processes() == expected


@pytest.mark.filterwarnings("ignore:The `srun` command is available")
@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"SLURM_NTASKS": 8, "SLURM_JOB_NUM_NODES": 2}, (4, 2)),
        ({"SLURM_NTASKS": 8, "SLURM_NNODES": 1}, (8, 1)),
        ({"SLURM_NTASKS": 2}, (2, 1)),
        ({"SLURM_NTASKS": 1, "SLURM_JOB_NUM_NODES": 1}, None),  # a job of an array, on one device or as the recipe says
        ({"SLURM_NTASKS": 8, "SLURM_JOB_NUM_NODES": 2, "SLURM_JOB_NAME": "interactive"}, None),
        ({"SLURM_NTASKS": 8, "SLURM_JOB_NUM_NODES": 2, "SLURM_JOB_NAME": "bash"}, None),
    ],
)
def test_srun_says_how_many_tasks_and_machines_there_are(monkeypatch, variables, expected):
    with_variables(monkeypatch, **{"SLURM_JOB_NAME": "train", **variables})
    assert launched_processes() == expected


def test_torchrun_within_a_slurm_job_is_what_counts(monkeypatch):
    with_variables(monkeypatch, TORCHELASTIC_RUN_ID="x", LOCAL_WORLD_SIZE=4, WORLD_SIZE=8, SLURM_NTASKS=2, SLURM_NNODES=2)
    assert launched_processes() == (4, 2)


# What is refused


def test_a_gpu_that_is_not_there_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match="engine.accelerator='cuda', but torch finds no CUDA GPU here; use 'cpu' or 'auto'"):
        build_fabric(EngineConfig(accelerator="cuda"))


def test_more_gpus_than_there_are_are_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(ValueError, match="4 devices are requested, but this machine has 2 GPUs; set engine.devices"):
        build_fabric(EngineConfig(accelerator="cuda", devices=4))
    with_variables(monkeypatch, TORCHELASTIC_RUN_ID="x", LOCAL_WORLD_SIZE=3, WORLD_SIZE=3)
    with pytest.raises(ValueError, match="3 devices are requested"):
        build_fabric(EngineConfig(accelerator="auto"))


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"strategy": "fsdp"}, "engine.strategy='fsdp' shards a network over GPUs, and this runs on the CPU; use 'auto'"),
        ({"precision": "fp16"}, "engine.precision='fp16' is for GPUs; on a CPU use 'fp32', or 'bf16'"),
        ({"sync_batchnorm": True, "devices": 2}, "engine.sync_batchnorm=true is for GPUs; on CPUs freeze BatchNorm"),
        ({"sync_batchnorm": True, "nodes": 2}, "engine.sync_batchnorm=true is for GPUs"),
    ],
)
def test_what_needs_gpus_is_refused_on_a_cpu(settings, told):
    with pytest.raises(ValueError, match=told):
        build_fabric(EngineConfig(accelerator="cpu", **settings))


# One process on a CPU


@pytest.mark.parametrize(("precision", "name"), [("fp32", "32-true"), ("bf16", "bf16-mixed")])
def test_one_process_on_a_cpu(precision, name):
    fabric = build_fabric(EngineConfig(accelerator="cpu", precision=precision))
    assert (fabric.world_size, fabric.global_rank, fabric.device.type) == (1, 0, "cpu")
    assert fabric.strategy.precision.precision == name
    assert not torch.distributed.is_initialized()


def test_the_cpu_is_taken_where_there_is_no_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert build_fabric(EngineConfig()).device.type == "cpu"


def test_synchronized_batchnorm_is_plain_batchnorm_in_one_process():
    model = {**RESNET, "freeze_batchnorm": False}
    values = [
        steps(learner(config(model=model, engine={"accelerator": "cpu", "sync_batchnorm": wanted}))) for wanted in (False, True)
    ]
    for one, other in zip(*values, strict=True):
        assert one == pytest.approx(other, rel=1e-4)


# On a GPU


SHARDED = pytest.mark.filterwarnings("ignore")  # torch has some on one GPU, and on its own older names
CALM = {"name": "roadmap", "tau": 0.1, "decomposability": "pairs"}  # ranks that 16 bits do not turn over


def on_gpu(precision="fp32", strategy="auto", **tables):
    return config(
        tables.pop("loss", "happier"),
        optimizer=tables.pop("optimizer", ADAM),
        engine={"accelerator": "cuda", "precision": precision, "strategy": strategy},
        **tables,
    )


@pytest.fixture
def one_process_group():
    """FSDP wants a process group, also for one device; it is closed again, so that later tests are alone."""
    before = dict(os.environ)
    yield
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
    for name in os.environ.keys() - before.keys():
        del os.environ[name]


def with_low_scale(learning):
    """The scale begins so high that the first steps in fp16 are skipped; here each one is to count."""
    if learning.config.engine.precision == "fp16":
        learning.fabric.strategy.precision.scaler = torch.amp.GradScaler("cuda", init_scale=64.0)
    return learning


def reopened(learning):
    file = io.BytesIO()
    torch.save(learning.state_dict(), file)
    file.seek(0)
    return torch.load(file, map_location="cpu", weights_only=True)


@pytest.mark.gpu
@pytest.mark.parametrize("model", [RESNET, VIT], ids=["resnet", "vit"])
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_each_precision_learns_on_a_gpu_and_stays_finite(precision, model):
    learning = with_low_scale(learner(on_gpu(precision, model=model, memory={"size": 30})))
    values = steps(learning, 12, per_epoch=3)
    assert all(math.isfinite(step["loss"]) for step in values)
    assert all(value.isfinite().all() for value in learned(learning).values())
    assert all(parameter.dtype == torch.float32 for parameter in learning.embedder.parameters())
    assert sum(step["loss"] for step in values[-3:]) < sum(step["loss"] for step in values[:3])
    reference = steps(learner(config("happier", model=model, memory={"size": 30}, optimizer=ADAM)), 1)
    assert values[0]["loss"] == pytest.approx(reference[0]["loss"], rel=0.02 if precision == "fp32" else 0.1)


@pytest.mark.gpu
def test_a_gradient_that_overflows_half_precision_is_skipped_and_the_scale_lowered():
    learning = with_low_scale(learner(on_gpu("fp16", loss=CALM)))
    scaler = learning.fabric.strategy.precision.scaler
    steps(learning, 1)
    before, scale = learned(learning), scaler.get_scale()
    hook = learning.embedder.projection.weight.register_hook(lambda gradient: gradient * torch.inf)
    steps(learning, 1, first=1)
    after = learned(learning)
    assert all(torch.equal(before[name], value) for name, value in after.items())
    assert scaler.get_scale() < scale
    hook.remove()
    steps(learning, 1, first=2)
    assert not torch.equal(learned(learning)["model projection.weight"], before["model projection.weight"])


@pytest.mark.gpu
def test_a_frozen_network_without_a_head_is_no_trouble_to_half_precision():
    learning = with_low_scale(learner(on_gpu("fp16", model={**RESNET, "dim": None}, run={"epochs": 4, "frozen_epochs": 1})))
    before = learned(learning)
    values = steps(learning, 4)  # two frozen, two not
    assert [step["gradient norm"] > 0 for step in values] == [False, False, True, True]
    assert not torch.equal(learned(learning)["model backbone.net.conv1.0.weight"], before["model backbone.net.conv1.0.weight"])


@pytest.mark.gpu
@pytest.mark.parametrize(("precision", "tolerance"), [("fp32", 1e-3), ("bf16", 0.3), ("fp16", 0.1)])
def test_chunks_take_the_step_of_the_whole_batch_on_a_gpu(precision, tolerance, monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    plain = {"name": "sgd", "lr": 1e-2, "momentum": 0.0, "schedule": "constant"}
    moves = []
    for chunk in (None, 5):
        sizes = {"size": BATCH, "images_per_class": 2, "chunk": chunk}
        learning = with_low_scale(learner(on_gpu(precision, loss=CALM, optimizer=plain, batch=sizes)))
        before = learned(learning)
        steps(learning, 1)
        after = learned(learning)
        moves.append(torch.cat([(after[name] - before[name]).flatten().double() for name in before if name.endswith("weight")]))
    assert moves[0].norm() > 0
    assert (moves[0] - moves[1]).norm() < tolerance * moves[0].norm()


@pytest.mark.gpu
def test_dropout_is_the_same_both_times_on_a_gpu():
    """The first pass's embeddings are those of the second, whose gradients are taken."""
    learning = learner(on_gpu(model=VIT, batch={"size": BATCH, "images_per_class": 2, "chunk": 5}))
    for block in learning.embedder.backbone.net.blocks:
        block.mlp.drop1.p = 0.5
    seen = []
    learning.model.register_forward_hook(lambda module, given, output: seen.append(output.detach().clone()))
    steps(learning, 1)
    assert len(seen) == 6
    for first, second in zip(seen[:3], seen[3:], strict=True):
        torch.testing.assert_close(first, second, rtol=0, atol=1e-6)
    assert not torch.allclose(seen[0], seen[1])


@pytest.mark.gpu
@SHARDED
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("tables", [{}, {"batch": {"size": BATCH, "images_per_class": 2, "chunk": 5, "accumulate": 2}}])
def test_sharded_training_is_that_of_one_gpu(one_process_group, monkeypatch, precision, tables):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    tables = {"loss": CALM, "memory": {"size": 30}, **tables}
    expected = steps(with_low_scale(learner(on_gpu(precision, **tables))))
    learning = learner(on_gpu(precision, "fsdp", **tables))
    before = learned(learning)
    values = steps(learning)
    after = learned(learning)
    assert all(math.isfinite(one["loss"]) for one in values)
    # Only the first step begins with the same weights to the last bit; Adam makes as much of a small difference as of a large.
    assert values[0]["loss"] == pytest.approx(expected[0]["loss"], rel=1e-4 if precision == "fp32" else 0.1)
    if precision == "fp16":
        return  # its first steps may be skipped
    assert not torch.equal(after["model projection.weight"], before["model projection.weight"])
    # BatchNorm is frozen: its statistics must come back with every bit, whatever the network computes in.
    for wrapped, buffer in learning.embedder.named_buffers():
        name = wrapped.replace("_fsdp_wrapped_module.", "")
        assert torch.equal(after[f"model {name}"], before[f"model {name}"]), name
        assert buffer.dtype not in (torch.bfloat16, torch.float16)


@pytest.mark.gpu
@SHARDED
@pytest.mark.parametrize("together", [10**6, 20_000])  # with the second, parts of the network are sharded on their own
def test_a_sharded_state_is_that_of_a_plain_embedder_and_training_goes_on_from_it(
    one_process_group, monkeypatch, tmp_path, together
):
    monkeypatch.setattr(engine, "MIN_SHARDED_PARAMETERS", together)
    settings = on_gpu("fp32", "fsdp", memory={"size": 30})
    learning = learner(settings)
    plain = Embedder(settings.embedder)
    assert list(learning.state_dict()["model"]) == list(plain.state_dict())
    steps(learning, 2)
    saved = reopened(learning)
    for name, value in plain.state_dict().items():
        assert saved["model"][name].shape == value.shape
        assert saved["model"][name].dtype == value.dtype
    learning.save_model(tmp_path)
    loaded = Embedder.load(tmp_path).state_dict()
    assert all(torch.equal(loaded[name], value) for name, value in saved["model"].items())
    values = steps(learning, 2, first=2)
    other = learner(settings)
    other.load_state_dict(saved)
    check = other.state_dict()
    assert all(torch.equal(check["model"][name], value) for name, value in saved["model"].items())
    assert check["optimizer"]["state"].keys() == saved["optimizer"]["state"].keys()
    again = steps(other, 2, first=2)
    for one, two in zip(again, values, strict=True):
        assert one == pytest.approx(two, rel=1e-4)


@pytest.mark.gpu
@SHARDED
def test_a_sharded_network_is_frozen_and_clipped_too(one_process_group):
    learning = learner(on_gpu("fp32", "fsdp", run={"epochs": 4, "frozen_epochs": 1, "clip_grad_norm": 0.1}))
    before = learned(learning)
    steps(learning, 2)
    after = learned(learning)
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert moved == {"model projection.weight", "model projection.bias", "loss loss.decomposability.proxies"}
    steps(learning, 1, first=2)
    assert not torch.equal(learned(learning)["model backbone.net.conv1.0.weight"], before["model backbone.net.conv1.0.weight"])
    learning.eval()
    assert learning.forward(batch(5).images).isfinite().all()


@pytest.mark.gpu
def test_chunks_bound_the_memory_of_a_large_batch():
    """4,096 images of 64 pixels in chunks of 256 need a fraction of what the batch needs at once."""
    most = {}
    for chunk in (None, 256):
        learning = learner(
            on_gpu(
                model={**RESNET, "backbone": "resnet18"},
                loss="roadmap",
                batch={"size": 4096, "images_per_class": 2, "chunk": chunk},
            )
        )
        given = batch(0, size=4096, side=64)
        gc.collect()
        torch.cuda.empty_cache()
        learning.step([given], 0, 0, 0, 2)  # the first one makes the optimizer's state, and workspaces
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        values = learning.step([given], 1, 0, 1, 2)
        assert math.isfinite(values["loss"])
        most[chunk] = torch.cuda.max_memory_allocated() - before
        del learning
    assert most[256] < most[None] / 3, {chunk: f"{bytes_ / 2**20:.0f} MiB" for chunk, bytes_ in most.items()}
