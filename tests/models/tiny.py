"""Networks small enough for tests: timm has a few of its own for that, of a few hundred thousand weights."""

import torch

from suprank.models import Embedder

MAPS = ("test_resnet", "test_efficientnet", "test_convnext", "test_mambaout")  # the last with channels last and a wider head
TOKENS = ("test_vit", "test_vit2", "test_vit4")  # by class token; by the mean, with a register token; by the mean
BY_ATTENTION = "test_vit3"


def embedder(backbone="test_resnet", *, seed=0, **settings):
    """With random weights, in evaluation mode, the same each time; its BatchNorms have seen something other than 0 and 1."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        made = Embedder.create(backbone, **settings).eval()
        torch.manual_seed(seed)  # a projection uses up random numbers too
        for module in made.modules():
            if isinstance(module, torch.nn.BatchNorm2d):
                module.running_mean.normal_(0, 0.1)
                module.running_var.uniform_(0.5, 1.5)
    return made


def images(count=2, size=64, *, seed=0):
    return torch.randn(count, 3, size, size, generator=torch.Generator().manual_seed(seed))
