"""Chunks that go through the network twice give the gradients of the whole batch, whatever is random in the network."""

import weakref

import pytest
import torch
from torch import nn

from suprank.losses.memory import EmbeddingMemory
from suprank.training import engine, grad_cache
from suprank.training.config import EngineConfig
from suprank.training.grad_cache import forward_at_once, forward_in_chunks
from suprank.training.loss_specs import parse_loss
from suprank.training.memory_loss import LossWithMemory, gradients
from tests.models import tiny
from tests.training import worker

BATCH = worker.BATCH
CHUNKS = (1, 3, 5, 12, 40)  # 5 does not divide the batch, and the last two leave it whole

LOSSES = {
    **{name: {"name": name} for name in ("sup-ap", "sup-hap", "sup-ndcg", "smooth-ap", "happier")},
    "roadmap": worker.PAIRS,
    "sup-recall": {"name": "sup-recall", "rank_tau": 5.0},  # at 1 its gradient nearly vanishes in so small a batch
    "mixup": {"name": "sup-recall", "rank_tau": 5.0, "mixup": True},
    "roadmap with memory": worker.PAIRS,
    "happier with memory": {"name": "happier"},
}


@pytest.fixture(scope="module")
def exact():
    return engine.Fabric(accelerator="cpu", devices=1, precision="64-true")


@pytest.fixture(scope="module")
def single():
    return engine.build_fabric(EngineConfig(accelerator="cpu"))


class Noisy(nn.Module):
    """Dropout, and a layer that is left out at random for each image."""

    def __init__(self, share=0.4):
        super().__init__()
        self.first, self.second, self.last = nn.Linear(48, 24), nn.Linear(24, 24), nn.Linear(24, 16)
        self.dropout, self.share = nn.Dropout(share), share

    def forward(self, images):
        hidden = self.dropout(torch.tanh(self.first(images.flatten(1))))
        kept = torch.rand(len(images), 1) >= self.share
        hidden = hidden + kept * torch.tanh(self.second(hidden))
        return nn.functional.normalize(self.last(hidden), dim=-1)


def made(kind, fabric, *settings):
    torch.manual_seed(0)
    return fabric.setup_module(kind(*settings))


def noisy_transformer():
    """A real network with dropout and stochastic depth."""
    from timm.layers import DropPath

    embedder = tiny.embedder("test_vit", dim=16, image_size=(32, 32))
    embedder.backbone.net.pos_drop = nn.Dropout(0.2)
    for block in embedder.backbone.net.blocks:
        block.drop_path1, block.drop_path2 = DropPath(0.4), DropPath(0.4)
    return embedder.train()


def images(size=4, dtype=torch.float64):
    return torch.randn(BATCH, 3, size, size, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(dtype)


def loss_function(name):
    """The loss of a batch, and gradients on it; with a memory that holds two batches, of which some images come again."""
    torch.manual_seed(2)
    loss = parse_loss(LOSSES[name]).build(worker.TREE, 16)
    memory = None
    if "memory" in name:
        memory = EmbeddingMemory(30, 16, 2)
        for number in (1, 2):
            batch = worker.batch(number)
            memory.add(torch.randn(BATCH, 16), batch.labels, batch.ids)
    made = LossWithMemory(loss, memory)

    def on(embeddings):
        batch = worker.batch(0)
        torch.manual_seed(3)  # mixup draws
        return made(embeddings, batch.labels, batch.ids)

    return on


def found(fabric, model, forward, given, name="roadmap"):
    """Embeddings, and the gradients of the network's parameters, by either way through the network."""
    model.zero_grad()
    torch.manual_seed(4)
    result = forward(fabric, model, given, lambda images: images, last=True)
    assert not result.embeddings.requires_grad
    leaf = result.embeddings.requires_grad_()
    result.backward(gradients(loss_function(name)(leaf), leaf, [])[0])
    return leaf.detach(), torch.cat([parameter.grad.flatten() for parameter in model.parameters()])


def with_one_graph(model, given, chunk, name="roadmap"):
    """The same from torch alone: chunks go through the network once, and the graph of all of them is kept."""
    model.zero_grad()
    torch.manual_seed(4)
    embeddings = torch.cat([model(part) for part in given.split(chunk)])
    loss_function(name)(embeddings).backward()
    return embeddings.detach(), torch.cat([parameter.grad.flatten() for parameter in model.parameters()])


def check_close(found, expected, tolerance):
    assert expected[1].norm() > 1e-3
    torch.testing.assert_close(found[0], expected[0], rtol=0, atol=tolerance)
    assert (found[1] - expected[1]).norm() <= tolerance * expected[1].norm()


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("chunk", CHUNKS)
def test_chunks_give_the_gradients_of_one_graph_under_dropout_and_of_one_pass_without(exact, name, chunk):
    model, still = made(Noisy, exact), made(Noisy, exact, 0.0)
    expected = with_one_graph(model, images(), chunk, name)
    check_close(found(exact, model, forward_in_chunks(chunk), images(), name), expected, 1e-10)
    whole = with_one_graph(still, images(), BATCH, name)
    check_close(found(exact, still, forward_at_once, images(), name), whole, 1e-12)
    check_close(found(exact, still, forward_in_chunks(chunk), images(), name), whole, 1e-10)


@pytest.mark.parametrize("chunk", [1, 5, 6])
def test_real_networks_have_them_in_single_precision(single, chunk):
    """A transformer with stochastic depth, and one with frozen BatchNorm."""
    given = images(32, torch.float32)
    model = made(noisy_transformer, single)
    check_close(found(single, model, forward_in_chunks(chunk), given), with_one_graph(model, given, chunk), 1e-5)
    model = made(lambda: tiny.embedder("test_resnet", dim=16, freeze_batchnorm=True).train(), single)
    check_close(found(single, model, forward_in_chunks(chunk), given), found(single, model, forward_at_once, given), 1e-5)


def test_half_precision_agrees_loosely():
    fabric = engine.build_fabric(EngineConfig(accelerator="cpu", precision="bf16"))
    model = made(lambda: tiny.embedder("test_vit", dim=16, image_size=(32, 32)).train(), fabric)
    given = images(32, torch.float32)
    one, two = (found(fabric, model, forward, given, "happier") for forward in (forward_at_once, forward_in_chunks(5)))
    assert one[0].dtype == two[0].dtype == torch.float32
    check_close(two, one, 0.1)


def test_without_the_same_random_numbers_the_gradients_would_be_others(exact, monkeypatch):
    model = made(Noisy, exact)
    expected = with_one_graph(model, images(), 3)[1]
    monkeypatch.setattr(grad_cache, "_set_random_state", lambda device, state: None)
    assert (found(exact, model, forward_in_chunks(3), images())[1] - expected).norm() > 0.1 * expected.norm()


def test_chunks_have_random_numbers_of_their_own(exact):
    model = made(Noisy, exact)
    alike = images()[:1].expand(4, -1, -1, -1)
    torch.manual_seed(0)
    embeddings = forward_in_chunks(1)(exact, model, alike, lambda images: images, last=True).embeddings
    assert (embeddings[0] - embeddings[1:]).norm(dim=-1).min() > 1e-3


@pytest.mark.parametrize("forward", [forward_at_once, forward_in_chunks(5)], ids=["at once", "in chunks"])
def test_random_numbers_go_on_from_where_the_forward_pass_left_them(exact, forward):
    model = made(Noisy, exact)
    torch.manual_seed(4)
    with torch.no_grad():
        for part in images().split(5 if forward is not forward_at_once else BATCH):
            model(part)
    expected = torch.get_rng_state()
    torch.manual_seed(4)
    result = forward(exact, model, images(), lambda images: images, last=True)
    assert torch.equal(torch.get_rng_state(), expected)
    result.backward(torch.ones_like(result.embeddings))
    assert torch.equal(torch.get_rng_state(), expected)


class Kept:
    """How many numbers graphs hold at once, at most."""

    def __init__(self):
        self.now = self.most = 0

    def pack(self, tensor):
        number, holder = tensor.numel(), _Holder(tensor.detach())
        self.now += number
        self.most = max(self.most, self.now)
        weakref.finalize(holder, self.drop, number)
        return holder

    def drop(self, number):
        self.now -= number


class _Holder:
    def __init__(self, tensor):
        self.tensor = tensor


@pytest.mark.parametrize("chunk", [1, 2, 5])
def test_chunks_keep_the_graph_of_one_chunk_at_a_time(exact, chunk):
    model, seen = made(Noisy, exact), []
    model.register_forward_hook(lambda module, given, output: seen.append((len(output), output.requires_grad)))

    def most(forward, given):
        kept = Kept()
        with torch.autograd.graph.saved_tensors_hooks(kept.pack, lambda holder: holder.tensor):
            result = forward(exact, model, given, lambda images: images, last=True)
            result.backward(torch.ones_like(result.embeddings))
        return kept.most

    expected = most(forward_at_once, images()[:chunk])
    seen.clear()
    assert most(forward_in_chunks(chunk), images()) == expected
    assert max(number for number, graph in seen if graph) == chunk
    assert sum(number for number, graph in seen if graph) == sum(number for number, graph in seen if not graph) == BATCH
    assert most(forward_at_once, images()) > expected


@pytest.mark.parametrize("forward", [forward_at_once, forward_in_chunks(5)], ids=["at once", "in chunks"])
def test_a_network_that_does_not_learn_is_left_alone(exact, forward):
    model = made(Noisy, exact).requires_grad_(False)
    result = forward(exact, model, images(), lambda images: images, last=True)
    result.backward(torch.ones_like(result.embeddings))
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("forward", [forward_at_once, forward_in_chunks(5)], ids=["at once", "in chunks"])
def test_images_are_prepared_in_the_pieces_that_the_network_sees(exact, forward):
    model, prepared = made(Noisy, exact, 0.0), []
    bytes_ = torch.arange(BATCH * 48, dtype=torch.uint8).view(BATCH, 3, 4, 4)
    result = forward(exact, model, bytes_, lambda part: prepared.append(len(part)) or part / 255, last=True)
    result.backward(torch.ones_like(result.embeddings))
    assert prepared == ([BATCH] if forward is forward_at_once else [5, 5, 2] * 2)
    torch.testing.assert_close(result.embeddings, model(bytes_ / 255.0).detach(), atol=1e-6, rtol=0)


def test_chunks_are_refused_where_batchnorm_would_see_a_chunk_for_the_batch():
    batch = {"size": BATCH, "images_per_class": 2, "chunk": 6}
    unfrozen = {**worker.RESNET, "freeze_batchnorm": False}
    with pytest.raises(ValueError, match="batch.chunk=6 would give BatchNorm .* model.freeze_batchnorm=true"):
        worker.learner(worker.config(model=unfrozen, batch=batch))
    for model, chunk in ((unfrozen, 12), (unfrozen, None), (worker.RESNET, 6), (worker.VIT, 6)):
        learning = worker.learner(worker.config(model=model, batch={**batch, "chunk": chunk}))
        assert (learning.forward_batch is forward_at_once) == (chunk != 6)
