"""torch.compile of the losses, in one graph. What a graph returns is not kept: CUDA graphs write over it."""

import pytest
import torch

from suprank.losses import ProxySoftmax, SumOverLevels, SupAP, SupHAP, happier, roadmap
from suprank.ranking.ranks.definition import definition

LABELS = torch.arange(32)[:, None] // torch.tensor([4, 16])
LOSSES = {
    "SupAP": SupAP,
    "SupHAP": SupHAP,
    "ROADMAP": roadmap,
    "HAPPIER": lambda **ranks: happier(ProxySoftmax(8, 16), **ranks),
    "sum over levels": lambda **ranks: SumOverLevels([SupAP(**ranks), SupAP(**ranks)]),
}
on_every_loss = pytest.mark.parametrize("make", LOSSES.values(), ids=LOSSES)


def step(loss, embeddings, labels):
    """The value and the gradient on fresh embeddings of these values."""
    leaf = embeddings.clone().requires_grad_()
    value = loss(leaf, labels)
    (gradient,) = torch.autograd.grad(value, leaf)
    return value.detach().clone(), gradient.clone()


@pytest.mark.filterwarnings("default")  # torch.compile warns of itself
@on_every_loss
def test_a_compiled_loss_gives_the_same_and_keeps_no_tensor_of_its_graph(make):
    loss, embeddings = make(using=definition), torch.randn(32, 16)  # what is chosen on a CPU looks at values
    wanted = step(loss, embeddings, LABELS)
    assert loss.log
    torch.compiler.reset()
    compiled = torch.compile(loss, backend="aot_eager", fullgraph=True)
    for _ in range(2):
        torch.testing.assert_close(step(compiled, embeddings, LABELS), wanted)
        assert [module.log for module in loss.modules() if getattr(module, "log", None)] == []
    assert torch.equal(step(loss, embeddings, LABELS)[0], wanted[0])
    assert loss.log  # as it is when the loss is called itself again


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.filterwarnings("default")
@on_every_loss
def test_a_loss_trains_under_the_cuda_graphs_of_torch_compile(make):
    torch.manual_seed(0)
    loss, labels = make().cuda(), LABELS.cuda()
    torch.compiler.reset()
    compiled = torch.compile(loss, mode="reduce-overhead", fullgraph=True)
    for _ in range(6):  # it warms up, records, and replays
        embeddings = torch.randn(32, 16, device="cuda")
        torch.compiler.cudagraph_mark_step_begin()
        found = step(compiled, embeddings, labels)
        torch.testing.assert_close(found, step(loss, embeddings, labels), rtol=1e-4, atol=1e-5)
