"""A step of training: what moves, what stays, and that it is the step of a plain loop."""

import copy
import math
from types import SimpleNamespace

import pytest
import torch

from suprank import losses
from suprank.training import learner as learners
from suprank.training.learner import NonFiniteError
from tests.losses.test_replay import Again
from tests.models import tiny
from tests.training import worker
from tests.training.worker import BATCH, RESNET, SGD, VIT, batch, config, learned, learner, steps

ADAM = {"name": "adam", "lr": 1e-3, "head_lr": 3e-3, "warmup_epochs": 0.5}
TWO = {"size": BATCH, "images_per_class": 2, "accumulate": 2}


def check_same(found, expected):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.equal(found[name], value), name


def changed(before, after):
    return {name for name, value in after.items() if not torch.equal(before[name], value)}


def flat(value, prefix=""):
    """All tensors and numbers in a nested state, by their path."""
    if isinstance(value, dict | list | tuple):
        entries = value.items() if isinstance(value, dict) else enumerate(value)
        return {key: entry for name, inner in entries for key, entry in flat(inner, f"{prefix}/{name}").items()}
    return {prefix: value if isinstance(value, torch.Tensor) else torch.tensor(hash(str(value)))}


def state(learning):
    return flat(copy.deepcopy(learning.state_dict()))


# A plain loop


def plain_loop(learning, loss, count, *, together=1, proxies=None):
    """The steps as one writes them with torch alone; the parameters it ends with."""
    embedder = copy.deepcopy(learning.embedder).train()
    options = {"lr": 1e-3, "momentum": 0.9, "nesterov": True}
    optimizers = [torch.optim.SGD(embedder.parameters(), **options)]
    if proxies is not None:
        optimizers.append(torch.optim.SGD([proxies], **options))
    mean, std = (torch.tensor(colors).view(3, 1, 1) for colors in (embedder.input.mean, embedder.input.std))
    for number in range(count):
        for place in range(together):
            given = batch(number * together + place)
            embeddings = embedder((given.images.float() / 255 - mean) / std)
            (loss(embeddings, given.labels) / together).backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    return dict(embedder.named_parameters())


def check_close(learning, expected):
    for name, parameter in learning.embedder.named_parameters():
        torch.testing.assert_close(
            parameter, expected[name], rtol=1e-6, atol=1e-6, msg=lambda message, name=name: f"{name}: {message}"
        )


@pytest.mark.parametrize("model", [RESNET, VIT], ids=["resnet", "vit"])
@pytest.mark.parametrize("together", [1, 2])
def test_roadmap_takes_the_steps_of_a_plain_loop(model, together):
    learning = learner(config(worker.PAIRS, model=model, batch={**TWO, "accumulate": together}))
    expected = plain_loop(learning, losses.Combined(losses.SupAP(), losses.PairCalibration()), 3, together=together)
    before = learned(learning)
    steps(learning)
    for name in ("projection.weight", "backbone.net." + ("conv1.0.weight" if model is RESNET else "patch_embed.proj.weight")):
        assert (expected[name] - before[f"model {name}"]).norm() > 1e-3, name
    check_close(learning, expected)


@pytest.mark.parametrize("together", [1, 2])
def test_happier_takes_the_steps_of_a_plain_loop_and_its_proxies_too(together):
    learning = learner(config("happier", proxies=SGD, batch={**TWO, "accumulate": together}))
    softmax = losses.ProxySoftmax(worker.CLASSES, 16)
    with torch.no_grad():
        softmax.proxies.copy_(learning.proxies[0])
    loss = losses.happier(decomposability=softmax)
    expected = plain_loop(learning, loss, 3, together=together, proxies=softmax.proxies)
    steps(learning)
    check_close(learning, expected)
    torch.testing.assert_close(learning.proxies[0], softmax.proxies, rtol=1e-6, atol=1e-6)


def test_values_are_those_of_the_loss_and_the_mean_of_accumulated_ones():
    learning = learner(config("happier", batch=TWO))
    loss = learning.loss.loss
    expected = []
    for number in (0, 1):
        given = batch(number)
        with torch.no_grad():
            expected.append(loss(learning.embedder.train()(learning.normalize(given.images)), given.labels).item())
    (values,) = steps(learning, 1)
    assert values["loss"] == pytest.approx(sum(expected) / 2, rel=1e-5)
    assert list(values) == [
        "loss",
        "queries_without_positives",
        "SupHAP",
        "ProxySoftmax",
        "gradient norm",
        "gradient norm of proxies",
    ]
    assert values["loss"] == pytest.approx(0.9 * values["SupHAP"] + 0.1 * values["ProxySoftmax"], rel=1e-5)


def test_loss_falls_and_chunks_change_nothing():
    whole = learner(config("happier", proxies=SGD))
    parts = learner(config("happier", proxies=SGD, batch={"size": BATCH, "images_per_class": 2, "chunk": 5}))
    values = [steps(learning, 6) for learning in (whole, parts)]
    assert values[0][-1]["loss"] < values[0][0]["loss"]
    for one, other in zip(*values, strict=True):
        assert one == pytest.approx(other, rel=1e-3)


def test_a_single_number_cannot_be_sharded():
    fabric = worker.learner(config()).fabric
    with pytest.raises(ValueError, match="engine.strategy='fsdp' cannot shard pooling.p, .* model.pooling='gem-fixed'"):
        learner(config(model={**RESNET, "pooling": "gem"}, engine={"strategy": "fsdp"}), fabric)


# What moves and what stays


@pytest.mark.parametrize("freeze_batchnorm", [True, False])
def test_a_frozen_backbone_keeps_every_bit_while_the_head_moves(freeze_batchnorm):
    model = {**RESNET, "freeze_batchnorm": freeze_batchnorm, "pooling": "gem"}
    learning = learner(config("happier", model=model, run={"epochs": 4, "frozen_epochs": 1}, optimizer=ADAM))
    before = learned(learning)
    for number in (0, 1):
        learning.step([batch(number, side=64)], number, 0, number, 2)  # of 32 pixels GeM sees one place, and learns nothing
    frozen = learned(learning)
    head = {"model pooling.p", "model projection.weight", "model projection.bias"}
    assert changed(before, frozen) == head | {"loss loss.decomposability.proxies"}
    learning.step([batch(2, side=64)], 2, 1, 0, 2)
    moved = changed(frozen, learned(learning))
    assert "model backbone.net.conv1.0.weight" in moved
    statistics = {f"model {name}" for name, _ in learning.embedder.named_buffers()}
    assert moved & statistics == (set() if freeze_batchnorm else statistics)


def test_a_frozen_network_without_a_head_leaves_the_learning_to_the_proxies():
    model = {**RESNET, "dim": None}
    learning = learner(config("happier", model=model, run={"epochs": 4, "frozen_epochs": 1}))
    before = learned(learning)
    values = steps(learning, 1)
    assert values[0]["gradient norm"] == 0
    assert changed(before, learned(learning)) == {"loss loss.decomposability.proxies"}
    steps(learning, 1, first=2)
    assert "model backbone.net.conv1.0.weight" in changed(before, learned(learning))


def test_a_parameter_that_its_network_fixes_is_never_made_to_learn(monkeypatch):
    def fixed(settings):
        embedder = build_embedder(settings)
        embedder.backbone.net.pos_embed.requires_grad_(False)
        return embedder

    build_embedder = learners.build_embedder
    monkeypatch.setattr(learners, "build_embedder", fixed)
    learning = learner(config(worker.PAIRS, model=VIT, run={"epochs": 4, "frozen_epochs": 1}))
    before = learned(learning)
    steps(learning, 3)
    assert before.keys() - changed(before, learned(learning)) == {"model backbone.net.pos_embed"}
    assert learning.embedder.backbone.net.pos_embed.grad is None


def test_long_gradients_are_shortened_and_short_ones_left():
    plain = {"name": "sgd", "lr": 0.1, "momentum": 0.0, "schedule": "constant"}
    lengths, norms = {}, {}
    for clip in (None, 1e-3, 1e6):
        learning = learner(config(run={"epochs": 4, "clip_grad_norm": clip}, optimizer=plain))
        before = learned(learning)
        norms[clip] = steps(learning, 1)[0]["gradient norm"]
        after = learned(learning)
        lengths[clip] = math.sqrt(sum(float((after[name] - before[name]).square().sum()) for name in before))
    assert norms[None] == norms[1e-3] == norms[1e6] > 1e-3, "the norm that is told is the one before"
    assert lengths[1e-3] == pytest.approx(0.1 * 1e-3, rel=1e-2)
    assert lengths[None] == lengths[1e6] == pytest.approx(0.1 * norms[None], rel=1e-2)


def test_rates_follow_the_position_and_have_names():
    schedule = {"name": "adam", "lr": 0.1, "head_lr": 0.2, "warmup_epochs": 1}
    learning = learner(config("happier", optimizer=schedule, proxies={"lr": 0.3, "schedule": "constant"}, batch=TWO))
    learning.step([batch(0), batch(1)], 0, 0, 0, 8)
    assert learning.rates == pytest.approx({"backbone": 0.025, "head": 0.05, "proxies": 0.3})
    learning.step([batch(0), batch(1)], 0, 0, 6, 8)
    assert learning.rates == pytest.approx({"backbone": 0.1, "head": 0.2, "proxies": 0.3})
    learning.step([batch(0)], 0, 2, 4, 8)
    assert learning.rates == pytest.approx({"backbone": 0.05, "head": 0.1, "proxies": 0.3})


def test_a_memory_is_filled_with_the_images_that_were_seen_and_looked_at_from_its_epoch_on():
    learning = learner(config(memory={"size": 20, "start_epoch": 1}))
    values = steps(learning, 3)
    assert ["against memory" in step for step in values] == [False, False, True]
    seen = torch.cat([batch(number).ids for number in range(3)])[-20:]
    memory = learning.loss.memory
    assert sorted(memory.contents().ids.tolist()) == sorted(seen.tolist())
    assert torch.equal(memory.contents().labels, worker.BATCHES.labels[memory.contents().ids])


def test_a_memory_of_all_has_as_many_places_as_there_are_images():
    memory = learner(config(memory={"size": "all", "per_item": True})).loss.memory
    assert (memory.size, memory.per_item) == (len(worker.BATCHES.labels), True)


# What is no number


def spoil_weights(learning):
    with torch.no_grad():
        learning.embedder.projection.weight[0, 0] = torch.nan
    return rf"the embeddings of ({BATCH}|{2 * BATCH}) of \1 images are not finite"


def spoil_loss(learning):
    with torch.no_grad():
        learning.proxies[0][0, 0] = torch.nan
    return "the loss is nan"


def spoil_gradient(learning):
    learning.embedder.projection.weight.register_hook(lambda gradient: gradient * torch.inf)
    return "the gradient norm is (inf|nan)"


def spoil_proxies(learning):
    learning.proxies[0].register_hook(lambda gradient: gradient * torch.nan)
    return "the gradient norm of proxies is nan"


@pytest.mark.parametrize("spoil", [spoil_weights, spoil_loss, spoil_gradient, spoil_proxies])
@pytest.mark.parametrize("tables", [{}, {"batch": TWO}, {"batch": {**TWO, "chunk": 5}}], ids=["once", "twice", "in chunks"])
def test_what_is_no_number_raises_and_nothing_is_learned(spoil, tables):
    learning = learner(config("happier", optimizer=ADAM, **tables))
    steps(learning, 1)
    output = spoil(learning)
    before = {name: value.nan_to_num(-7) for name, value in state(learning).items()}
    with pytest.raises(NonFiniteError, match=f"^{output}$"):
        steps(learning, 1, first=1)
    check_same({name: value.nan_to_num(-7) for name, value in state(learning).items()}, before)
    parameters = [*learning.embedder.parameters(), *learning.proxies]
    assert all(parameter.grad is None for parameter in parameters)


@pytest.mark.parametrize("chunk", [None, 5])
def test_the_gradients_before_a_bad_batch_do_not_leak_into_the_next_step(chunk):
    tables = {"optimizer": ADAM, "batch": {**TWO, "chunk": chunk}}
    learning, undisturbed = (learner(config("happier", **tables)) for _ in range(2))
    good, seen = learning.normalize, []

    def bad_at_second(images):
        seen.append(len(images))
        return good(images) * (torch.nan if sum(seen) > (2 if chunk else 1) * BATCH else 1)

    learning.normalize = bad_at_second
    with pytest.raises(NonFiniteError):
        steps(learning, 1)
    learning.normalize = good
    steps(learning, 2)
    steps(undisturbed, 2)
    check_same(state(learning), state(undisturbed))


# What is saved


def test_the_seed_decides_about_weights_and_proxies():
    def started(seed):
        return learned(learner(config("happier", run={"epochs": 4, "seed": seed})))

    first = started(0)
    check_same(started(0), first)
    assert {"model projection.weight", "loss loss.decomposability.proxies"} <= changed(first, started(1))


def noisy(**tables):
    learning = learner(config(model=VIT, **tables))
    for block in learning.embedder.backbone.net.blocks:
        block.mlp.drop1.p = 0.5
    return learning


def test_dropout_depends_on_the_step_and_on_nothing_that_was_before():
    one, other = noisy(), noisy()
    values = steps(one, 2)
    other.load_state_dict(noisy().state_dict())
    torch.rand(1000)
    assert steps(other, 1) == values[:1]
    torch.manual_seed(12345)
    assert steps(other, 1, first=1) == values[1:]


def test_dropout_differs_between_steps_accumulated_batches_and_seeds():
    given = batch(0)
    first = noisy().step([given], 0, 0, 0, 2)["loss"]
    assert noisy().step([given], 0, 0, 0, 2)["loss"] == first
    assert noisy().step([given], 1, 0, 0, 2)["loss"] != first
    assert noisy(batch=TWO).step([given, given], 0, 0, 0, 2)["loss"] != first
    twin = noisy()
    twin.load_state_dict(noisy().state_dict())
    twin.config = config(model=VIT, run={"epochs": 4, "seed": 1})
    assert twin.step([given], 0, 0, 0, 2)["loss"] != first


def test_test_images_leave_no_graph_and_no_trace():
    learning = learner(config(model={**RESNET, "freeze_batchnorm": False}))
    before = learned(learning)
    learning.eval()
    embeddings = learning.forward(batch(5).images)
    assert embeddings.dtype == torch.float32
    assert not embeddings.requires_grad
    torch.testing.assert_close(embeddings.norm(dim=-1), torch.ones(BATCH))
    check_same(learned(learning), before)


@pytest.mark.parametrize("freeze_batchnorm", [True, False])
def test_training_can_start_from_a_folder(tmp_path, freeze_batchnorm):
    saved = tiny.embedder(dim=8, pooling="gem", seed=3)
    saved.save(tmp_path)
    recipe = config(model={"start": str(tmp_path), "freeze_batchnorm": freeze_batchnorm})
    learning = learner(recipe)
    expected = {"freeze_batchnorm": freeze_batchnorm, **recipe.evaluation_input}  # it is saved as the run reads
    assert learning.embedder.config == saved.config.model_copy(update=expected)
    check_same({name: value.clone() for name, value in learning.embedder.state_dict().items()}, saved.state_dict())
    steps(learning, 1)
    now = learning.embedder.state_dict()
    assert not torch.equal(now["projection.weight"], saved.projection.weight)
    name = "backbone.net.conv1.1.running_mean"
    assert torch.equal(now[name], saved.state_dict()[name]) == freeze_batchnorm
    assert saved.config.freeze_batchnorm is False


# A loss that is replayed


@pytest.mark.parametrize("tables", [{}, {"memory": {"size": 20}, "batch": TWO}], ids=["once", "a memory, twice"])
def test_a_replayed_loss_takes_the_same_steps_and_a_nan_is_found(tables):
    plain, replayed = (learner(config("happier", optimizer=ADAM, **tables)) for _ in range(2))
    assert replayed.loss.replayed is None, "on a CPU there is nothing to gain"
    recorder = Again()
    replayed.loss.replayed = losses.ReplayedLoss(replayed.loss.loss, recorder=recorder)
    names = replayed.loss.state_dict().keys()
    assert steps(replayed, 6) == [pytest.approx(values) for values in steps(plain, 6)]
    assert recorder.replays >= 4
    assert names == plain.loss.state_dict().keys()
    for one, other in zip(replayed.embedder.parameters(), plain.embedder.parameters(), strict=True):
        torch.testing.assert_close(one, other)
    with pytest.raises(NonFiniteError, match=spoil_loss(replayed)):
        steps(replayed, 1, first=6)


def test_a_loss_of_ones_own_is_replayed_only_if_asked_for():
    def replays(loss, wanted=None, device="cuda", world_size=1):
        fabric = SimpleNamespace(device=torch.device(device), world_size=world_size)
        return learners.replays_loss(loss, config(engine={"replay_loss": wanted}), fabric)

    ours, own = losses.SupAP(), learners.CustomLoss(losses.SupAP(), "mine.py:Mine")
    assert [replays(ours), replays(ours, False), replays(own), replays(own, True)] == [True, False, False, True]
    assert not replays(ours, device="cpu")
    assert not replays(ours, world_size=2)
    assert not replays(losses.SimilarityMixup(ours))  # it reads values, and would only warn


@pytest.mark.parametrize(("wanted", "warnings"), [(None, 0), (False, 0), (True, 1)])
def test_without_a_gpu_a_wish_to_replay_the_loss_is_answered_by_a_warning(wanted, warnings, caplog):
    fabric = SimpleNamespace(device=torch.device("cpu"), world_size=1, is_global_zero=True)
    assert not learners.replays_loss(losses.SupAP(), config(engine={"accelerator": "auto", "replay_loss": wanted}), fabric)
    assert caplog.text.count("engine.replay_loss=true has no effect") == warnings


@pytest.mark.gpu
@pytest.mark.parametrize("tables", [{}, {"memory": {"size": 20}, "batch": TWO}], ids=["once", "a memory, twice"])
@pytest.mark.parametrize("loss", ["roadmap", "happier", "rod-recall", "rod-ndcg"])
def test_a_loss_replayed_on_a_gpu_takes_the_same_steps(loss, tables):
    def trained(replay):
        made = learner(config(loss, model=VIT, engine={"accelerator": "cuda", "replay_loss": replay}, **tables))
        return steps(made, 8), made

    (found, replayed), (wanted, _) = trained(True), trained(False)
    assert replayed.loss.replayed._recordings
    assert found == [pytest.approx(values, rel=1e-4, abs=1e-6) for values in wanted]


def test_half_precision_learns_on_the_cpu():
    learning = learner(config("happier", engine={"accelerator": "cpu", "precision": "bf16"}, optimizer=ADAM))
    values = steps(learning, 4)
    assert all(math.isfinite(value) for step in values for value in step.values())
    assert all(parameter.dtype == torch.float32 for parameter in learning.embedder.parameters())
    learning.eval()
    assert learning.forward(batch(5).images).dtype == torch.float32
    single = learner(config("happier", optimizer=ADAM))
    assert values[0]["loss"] == pytest.approx(steps(single, 1)[0]["loss"], rel=0.1)
    assert values[0]["loss"] != steps(learner(config("happier", optimizer=ADAM)), 1)[0]["loss"], "it is another precision"
