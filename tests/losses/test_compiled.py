"""torch.compile of the losses, in one graph. What a graph returns is not kept: CUDA graphs write over it."""

import pytest
import torch

from suprank.losses import PairCalibration, RetrievalLoss, SumOverLevels, SupAP, happier, roadmap
from suprank.losses.surrogate import SupLossOptions

LABELS = torch.arange(32)[:, None] // torch.tensor([4, 16])


def losses(**options: SupLossOptions) -> dict[str, RetrievalLoss]:
    return {
        "ROADMAP of pairs": roadmap(decomposability=PairCalibration(), **options),
        "HAPPIER": happier(8, 16, **options),
        "sum over levels": SumOverLevels([SupAP(**options), SupAP(**options)]),
    }


def step(loss, embeddings, labels):
    """The value and the gradient on fresh embeddings of these values."""
    leaf = embeddings.clone().requires_grad_()
    value = loss(leaf, labels)
    (gradient,) = torch.autograd.grad(value, leaf)
    return value.detach().clone(), gradient.clone()


@pytest.mark.filterwarnings("default")  # torch.compile warns of itself
def test_a_compiled_loss_gives_the_same_and_keeps_no_tensor_of_its_graph():
    loss, embeddings = losses(using="definition")["HAPPIER"], torch.randn(32, 16)  # what is chosen on a CPU looks at values
    wanted = step(loss, embeddings, LABELS)
    assert loss.log
    torch.compiler.reset()
    compiled = torch.compile(loss, backend="aot_eager", fullgraph=True)
    for _ in range(2):
        torch.testing.assert_close(step(compiled, embeddings, LABELS), wanted)
        assert [module.log for module in loss.modules() if getattr(module, "log", None)] == []
    assert torch.equal(step(loss, embeddings, LABELS)[0], wanted[0])
    assert loss.log  # as it is when the loss is called itself again


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("name", ["ROADMAP of pairs", "sum over levels"])
def test_other_losses_are_one_graph_too(name):
    loss, embeddings = losses(using="definition")[name], torch.randn(32, 16)
    torch.compiler.reset()
    compiled = torch.compile(loss, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(embeddings, LABELS), loss(embeddings, LABELS))
    compiled(embeddings, LABELS)
    assert [module.log for module in loss.modules() if getattr(module, "log", None)] == []


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("name", losses())
def test_a_loss_trains_under_the_cuda_graphs_of_torch_compile(name):
    torch.manual_seed(0)
    loss, labels = losses()[name].cuda(), LABELS.cuda()
    torch.compiler.reset()
    compiled = torch.compile(loss, mode="reduce-overhead", fullgraph=True)
    for _ in range(6):  # it warms up, records, and replays
        embeddings = torch.randn(32, 16, device="cuda")
        torch.compiler.cudagraph_mark_step_begin()
        found = step(compiled, embeddings, labels)
        torch.testing.assert_close(found, step(loss, embeddings, labels), rtol=1e-4, atol=1e-5)
