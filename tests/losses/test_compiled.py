"""torch.compile of the losses, in one graph. CUDA graphs write over what a graph returned, so that a log is a copy."""

import pytest
import torch

from suprank.losses import PairCalibration, RetrievalLoss, SumOverLevels, SupAP, happier, roadmap

LABELS = torch.arange(32)[:, None] // torch.tensor([4, 16])


def losses(using=None) -> dict[str, RetrievalLoss]:
    return {
        "ROADMAP of pairs": roadmap(decomposability=PairCalibration(), using=using),
        "HAPPIER": happier(8, 16, using=using),
        "sum over levels": SumOverLevels([SupAP(using=using), SupAP(using=using)]),
    }


def logged(loss):
    """The logs of the loss and of its parts, as numbers."""
    logs = [module.log for module in loss.modules() if isinstance(module, RetrievalLoss) and hasattr(module, "log")]
    return [{name: value.item() for name, value in log.items()} for log in logs]


def step(loss, embeddings, labels):
    """The value and the gradient on fresh embeddings of these values."""
    leaf = embeddings.clone().requires_grad_()
    value = loss(leaf, labels)
    (gradient,) = torch.autograd.grad(value, leaf)
    return value.detach().clone(), gradient.clone()


@pytest.mark.filterwarnings("default")  # torch.compile warns of itself
@pytest.mark.parametrize(
    ("name", "backend"), [("HAPPIER", "aot_eager"), ("ROADMAP of pairs", "eager"), ("sum over levels", "eager")]
)
def test_a_compiled_loss_gives_the_same_and_logs_the_same(name, backend):
    loss = losses(using="definition")[name]  # what is chosen on a CPU looks at values
    torch.compiler.reset()
    compiled = torch.compile(loss, backend=backend, fullgraph=True)
    for seed in range(2):
        embeddings = torch.randn(32, 16, generator=torch.Generator().manual_seed(seed))
        wanted = step(loss, embeddings, LABELS)
        log = logged(loss)
        torch.testing.assert_close(step(compiled, embeddings, LABELS), wanted)
        found = logged(loss)
        assert len(found) > 1
        for one, other in zip(found, log, strict=True):
            assert one == pytest.approx(other)
    kept = {id(value) for value in loss.state_dict().values()}
    assert len(kept) == len(list(loss.parameters()))  # the copies are no part of it


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
@pytest.mark.parametrize("name", losses())
def test_a_loss_trains_under_torch_compile_on_a_gpu(name, mode):
    torch.manual_seed(0)
    loss, labels = losses()[name].cuda(), LABELS.cuda()
    torch.compiler.reset()
    compiled = torch.compile(loss, mode=mode, fullgraph=True)
    for _ in range(6):  # it warms up, records, and replays
        embeddings = torch.randn(32, 16, device="cuda")
        torch.compiler.cudagraph_mark_step_begin()
        found, log = step(compiled, embeddings, labels), logged(loss)
        torch.testing.assert_close(found, step(loss, embeddings, labels), rtol=1e-4, atol=1e-5)
        for one, other in zip(log, logged(loss), strict=True):
            assert one == pytest.approx(other, rel=1e-4)
