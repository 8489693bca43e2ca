"""How many kernels a GPU would be given: the operations of a step on tensors without values, and without a device."""

from contextlib import nullcontext

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

pytest.importorskip("triton")

from suprank.losses import SupAP, SupHAP, SupNDCG, SupRecall, decomposability, happier, roadmap
from suprank.losses import batch as losses_batch
from suprank.ranking import seam
from suprank.ranking.gpu import batch
from suprank.ranking.gpu.pairs import fused

FREE = ("prim", "empty", "detach", "view", "alias", "lift_fresh")
SEVERAL = {"suprank.ranks": 2}  # kernels of one operation


class Launches(TorchDispatchMode):
    """Counts the operations that launch a kernel: all but views, and tensors that nothing is written to."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        name = str(function).rpartition(".")[0]
        if not function.is_view and not any(word in name for word in FREE):
            self.names += SEVERAL.get(name, 1) * [name]
        return function(*arguments, **(options or {}))


@pytest.fixture
def as_on_a_gpu(monkeypatch):
    """Count with the kernels of a GPU, and with the checks of values, of which the one number that is read is none."""
    counter = Launches()
    monkeypatch.setattr(seam, "DEVICES", {"meta"})
    monkeypatch.setattr(batch, "_launch", lambda kernel, *_, **__: counter.names.append(kernel))
    for module in (decomposability, losses_batch):
        monkeypatch.setattr(module, "without_autocast", lambda _: nullcontext())  # "meta" has no autocast
    monkeypatch.setattr(torch.Tensor, "item", lambda _: 0.0)
    monkeypatch.setattr(batch, "_prefix", lambda *_: None)  # made once
    return counter


@pytest.mark.parametrize(
    ("make", "most"),
    [
        (SupAP, 20),
        (SupHAP, 20),
        (SupRecall, 20),
        (SupNDCG, 20),
        (lambda **how: roadmap(64, 512, **how), 42),
        (lambda **how: happier(64, 512, **how), 42),
    ],
    ids=["SupAP", "SupHAP", "SupRecall", "SupNDCG", "roadmap", "happier"],
)
def test_a_step_at_a_batch_of_256_launches_few_kernels(as_on_a_gpu, make, most):
    loss = make(using=fused).to("meta")
    for part in loss.modules():
        part._batches_checked = {"label tree": 10, "positives": 10}  # as from the eleventh batch on
    as_on_a_gpu.names.clear()  # what a constructor checks
    with FakeTensorMode(allow_non_fake_inputs=True):
        embeddings = torch.empty(256, 512, device="meta", requires_grad=True)
        labels = torch.empty(256, 3, dtype=torch.int64, device="meta")
        with as_on_a_gpu:
            loss(embeddings, labels).backward(inputs=[embeddings, *loss.parameters()])
    names = as_on_a_gpu.names
    assert {"unit", "levels", "mean", "suprank.ranks", "suprank.ranks_gradient", "aten.mm"} <= set(names)
    assert len(names) <= most, names
