"""`engine.replay_network`: a recorded network takes the steps of one that is not."""

import gc
import weakref
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from suprank.training import learner as learners
from suprank.training.network_replay import Recording, ReplayedForward
from tests.training.worker import BATCH, PAIRS, RESNET, SGD, SIDE, VIT, batch, config, learned, learner, steps

BATCHNORM = {**RESNET, "freeze_batchnorm": False}
FROZEN = {"epochs": 4, "frozen_epochs": 1}
CASES = {
    "frozen statistics": {},
    "BatchNorm": {"model": BATCHNORM},
    "a transformer": {"model": VIT},
    "clipped": {"run": {"epochs": 4, "clip_grad_norm": 0.5}},
    "frozen at first": {"model": BATCHNORM, "run": FROZEN},
}


class Again:
    """Records a network by keeping it: like a CUDA graph, it runs while it is recorded, and replays overwrite one another."""

    def __init__(self):
        self.recordings = self.forwards = self.backwards = 0
        self.live = weakref.WeakSet()

    def __call__(self, forward, images, parameters):
        self.recordings += 1
        output = forward(images.clone())
        static, output = [torch.zeros_like(parameter) for parameter in parameters], output.detach().clone()
        graph = []

        def replay_forward(images):
            self.forwards += 1
            with torch.enable_grad():
                graph[:] = [forward(images)]
            return output.copy_(graph[0].detach())

        def replay_backward(gradient):
            self.backwards += 1
            found = torch.autograd.grad(graph.pop(), parameters, gradient, allow_unused=True)
            for place, value in zip(static, found, strict=True):
                place.copy_(torch.zeros_like(place) if value is None else value)
            return [None if value is None else place for place, value in zip(static, found, strict=True)]

        self.live.add(replay_forward)
        return Recording(replay_forward, replay_backward)


def replayed_learner(*arguments, **tables):
    """A learner on the CPU whose network is recorded by `Again`, and the recorder."""
    made, recorder = learner(config(*arguments, **tables)), Again()
    made.forward_batch = ReplayedForward(made.embedder, recorder)
    return made, recorder


def check_same_weights(one, other, **tolerance):
    expected = learned(other)
    for name, value in learned(one).items():
        torch.testing.assert_close(value, expected[name], msg=lambda text, name=name: f"{name}: {text}", **tolerance)


@pytest.mark.parametrize("tables", CASES.values(), ids=CASES)
def test_a_replayed_network_takes_the_same_steps(tables):
    (replayed, recorder), plain = replayed_learner(**tables), learner(config(**tables))
    assert steps(replayed, 4) == [pytest.approx(values) for values in steps(plain, 4)]
    assert recorder.recordings == (2 if "frozen_epochs" in tables.get("run", {}) else 1)
    assert recorder.forwards == 4
    check_same_weights(replayed, plain)


def test_half_precision_is_that_of_a_network_that_is_not_replayed():
    tables = {"engine": {"accelerator": "cpu", "precision": "bf16"}, "model": BATCHNORM}
    (replayed, recorder), plain = replayed_learner(**tables), learner(config(**tables))
    assert steps(replayed, 3) == [pytest.approx(values) for values in steps(plain, 3)]
    assert recorder.backwards == 3
    check_same_weights(replayed, plain)


def test_a_network_that_is_frozen_entirely_has_no_backward_pass():
    tables = {"model": {**BATCHNORM, "dim": None}, "run": FROZEN, "proxies": SGD}
    (replayed, recorder), plain = replayed_learner("happier", **tables), learner(config("happier", **tables))
    assert steps(replayed, 2) == [pytest.approx(values) for values in steps(plain, 2)]
    assert (recorder.forwards, recorder.backwards) == (2, 0)
    steps(plain, 2, first=2)
    steps(replayed, 2, first=2)
    assert (recorder.forwards, recorder.backwards) == (4, 2)
    check_same_weights(replayed, plain)


def test_recording_changes_neither_buffers_nor_random_numbers_nor_gradients():
    made, recorder = replayed_learner(model=BATCHNORM)
    made.model.train()
    before, state = {name: value.clone() for name, value in made.embedder.named_buffers()}, torch.get_rng_state()
    recorder_only = ReplayedForward(made.embedder, recorder)
    recorder_only._recorded(made.fabric, made._prepare(batch(0).images), list(made.embedder.parameters()))
    assert recorder.recordings == 1
    for name, value in made.embedder.named_buffers():
        assert torch.equal(value, before[name]), name
    assert torch.equal(torch.get_rng_state(), state)
    assert all(parameter.grad is None for parameter in made.embedder.parameters())


def test_evaluation_between_epochs_uses_no_recording_and_makes_no_new_one():
    (replayed, recorder), plain = replayed_learner(model=BATCHNORM), learner(config(model=BATCHNORM))
    for first in (0, 2, 4):
        found, expected = ([], [])
        for made, values in ((replayed, found), (plain, expected)):
            values += steps(made, 2, first=first)
            made.eval()
            values.append(made.forward(batch(99, size=8).images))
        torch.testing.assert_close(found.pop(), expected.pop())
        assert found == [pytest.approx(values) for values in expected]
    assert (recorder.recordings, recorder.forwards) == (1, 6)


def test_a_batch_of_another_shape_is_computed_without_recording_it():
    (replayed, recorder), plain = replayed_learner(), learner(config())
    sizes = [BATCH, 8, BATCH, 8, BATCH]
    for number, size in enumerate(sizes):
        values = [made.step([batch(number, size=size)], number, 0, number, len(sizes)) for made in (replayed, plain)]
        assert values[0] == pytest.approx(values[1])
    assert (recorder.recordings, recorder.forwards) == (1, 3)


def test_the_recording_of_a_frozen_network_is_released_when_it_is_unfrozen():
    made, recorder = replayed_learner(run=FROZEN)
    steps(made, 4)
    gc.collect()
    assert recorder.recordings == 2
    assert len(recorder.live) == 1


def test_parameters_that_are_moved_are_recorded_anew():
    made, recorder = replayed_learner()
    steps(made, 1)
    weight = made.embedder.projection.weight
    weight.data = weight.data.clone()
    steps(made, 1, first=1)
    assert recorder.recordings == 2


def test_a_parameter_without_gradient_stays_without():
    class Partly(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.unused = nn.Linear(3 * SIDE * SIDE, 4), nn.Linear(2, 2)

        def forward(self, images):
            return self.used(images.flatten(1))

    network, fabric = Partly(), learner(config()).fabric
    recorder = Again()
    forward = ReplayedForward(network, recorder)(fabric, network, batch(0).images, lambda images: images / 255)
    forward.backward(torch.ones_like(forward.embeddings))
    assert recorder.backwards == 1
    assert network.used.weight.grad is not None
    assert network.unused.weight.grad is None


def test_dropout_draws_the_numbers_of_the_step():
    tables = {"model": VIT}
    (replayed, _), plain = replayed_learner(**tables), learner(config(**tables))
    without = steps(learner(config(**tables)), 3)
    for made in (replayed, plain):
        made.embedder.head = nn.Dropout(0.5)
    expected = steps(plain, 3)
    assert expected != without
    assert steps(replayed, 3) == [pytest.approx(values) for values in expected]


def test_a_network_that_cannot_be_recorded_is_trained_without_after_one_warning(recwarn):
    calls = []

    def record(forward, images, parameters):
        forward(images)
        calls.append(images.shape)
        raise RuntimeError("it reads a value\nand more")

    made, plain = learner(config(model=BATCHNORM, run=FROZEN)), learner(config(model=BATCHNORM, run=FROZEN))
    made.forward_batch = ReplayedForward(made.embedder, record)
    assert steps(made, 4) == [pytest.approx(values) for values in steps(plain, 4)]
    assert len(calls) == 1
    texts = [str(warning.message) for warning in recwarn if "CUDA graph" in str(warning.message)]
    assert texts == ["the network cannot be recorded as a CUDA graph, and runs as without one: it reads a value"]
    check_same_weights(made, plain)


@pytest.mark.parametrize(
    ("device", "world_size", "strategy", "replays"),
    [("cuda", 1, "auto", True), ("cpu", 1, "auto", False), ("cuda", 2, "auto", False), ("cuda", 1, "fsdp", False)],
)
def test_where_a_network_cannot_be_replayed_a_warning_says_so(device, world_size, strategy, replays, caplog):
    fabric = SimpleNamespace(device=torch.device(device), world_size=world_size, is_global_zero=True)
    wanted, unwanted = (
        config(engine={"accelerator": "auto", "strategy": strategy, "replay_network": one}) for one in (True, False)
    )
    assert not learners.replays_network(unwanted, fabric)
    assert not caplog.text
    assert learners.replays_network(wanted, fabric) == replays
    assert caplog.text.count("engine.replay_network=true has no effect") == (not replays)


def test_on_a_cpu_the_network_runs_as_without_recording():
    made = learner(config(engine={"accelerator": "auto", "replay_network": True}))
    if made.fabric.device.type == "cpu":
        assert made.forward_batch is learners.forward_at_once


# On a GPU


def trained_on_gpu(replay, count=6, loss=PAIRS, precision="fp32", prepare=None, **tables):
    """A learner after some steps on a GPU, and their values; convolutions choose the same algorithms each time."""
    engine = {"accelerator": "cuda", "precision": precision, "replay_network": replay}
    made = learner(config(loss, engine=engine, **tables))
    if prepare is not None:
        prepare(made)
    with torch.backends.cudnn.flags(enabled=True, deterministic=True, benchmark=False, allow_tf32=False):
        values = steps(made, count)
    torch.cuda.synchronize()
    return made, values


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("tables", CASES.values(), ids=CASES)
def test_a_network_replayed_on_a_gpu_takes_the_same_steps(tables, precision):
    (replayed, found), (plain, expected) = (trained_on_gpu(replay, precision=precision, **tables) for replay in (True, False))
    assert isinstance(replayed.forward_batch, ReplayedForward)
    assert replayed.forward_batch._recording is not None
    exact = precision == "fp32"
    tolerance = {"rel": 1e-4, "abs": 1e-6} if exact else {"rel": 0.05, "abs": 2e-3}
    # In fp16 the first gradients of the transformer overflow, with and without replay, and the step is skipped.
    assert found == [pytest.approx(values, **tolerance, nan_ok=precision == "fp16") for values in expected]
    check_same_weights(replayed, plain, rtol=1e-4 if exact else 0.05, atol=1e-5 if exact else 2e-3)


@pytest.mark.gpu
def test_dropout_in_a_recorded_network_draws_the_numbers_of_the_step_and_others_in_the_next():
    def drop(made):
        made.embedder.head = nn.Dropout(0.5)

    runs = [trained_on_gpu(replay, model=VIT, prepare=drop) for replay in (True, False)]
    (replayed, found), (_, expected) = runs
    assert replayed.forward_batch._recording is not None
    assert found == [pytest.approx(values, rel=1e-4, abs=1e-6) for values in expected]
    images = batch(0).images
    torch.manual_seed(1)
    embeddings = [replayed.forward_batch(replayed.fabric, replayed.model, images, replayed._prepare).embeddings for _ in "ab"]
    assert not torch.equal(*embeddings)
    torch.manual_seed(1)
    again = replayed.forward_batch(replayed.fabric, replayed.model, images, replayed._prepare).embeddings
    torch.testing.assert_close(again, embeddings[0])


@pytest.mark.gpu
def test_recording_on_a_gpu_changes_neither_buffers_nor_random_numbers_nor_gradients():
    made, _ = trained_on_gpu(replay=True, count=1, model=BATCHNORM)
    made.model.train()
    before, state = {name: value.clone() for name, value in made.embedder.named_buffers()}, torch.cuda.get_rng_state()
    images, parameters = made._prepare(batch(1).images), list(made.embedder.parameters())
    assert ReplayedForward(made.embedder)._recorded(made.fabric, images, parameters) is not None
    for name, value in made.embedder.named_buffers():
        assert torch.equal(value, before[name]), name
    assert torch.equal(torch.cuda.get_rng_state(), state)
    assert all(parameter.grad is None for parameter in made.embedder.parameters())


@pytest.mark.gpu
@pytest.mark.parametrize("reads", ["a value on the GPU", "random numbers on the CPU"])
def test_a_network_that_reads_values_is_trained_without_recording_and_can_draw_random_numbers(reads):
    class Reading(nn.Module):
        def forward(self, features):
            scale = float(features.mean() > -10) if reads == "a value on the GPU" else 1 + 0 * float(torch.rand(()))
            return nn.functional.dropout(features * scale, 0.5)

    def read(made):
        made.embedder.head = Reading()

    with pytest.warns(UserWarning, match="the network cannot be recorded as a CUDA graph"):
        replayed, found = trained_on_gpu(replay=True, prepare=read)
    assert replayed.forward_batch._recording is None
    _, expected = trained_on_gpu(replay=False, prepare=read)
    assert found == [pytest.approx(values, rel=1e-4, abs=1e-6) for values in expected]
