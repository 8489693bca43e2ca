"""pytorch-metric-learning's wrappers do not take our losses; what the quickstart says to write instead does what they do."""

import pytest
import torch
from pytorch_metric_learning import losses as package
from pytorch_metric_learning.utils.distributed import DistributedLossWrapper

from suprank.losses import MultiSimilarity, SupAP


@pytest.mark.parametrize(
    ("wrapped", "says"),
    [
        (lambda: package.CrossBatchMemory(SupAP(), 8), "CrossBatchMemory not supported for SupAP"),
        (lambda: package.SelfSupervisedLoss(SupAP()), "SelfSupervisedLoss not supported for SupAP"),
        (lambda: DistributedLossWrapper(SupAP()), "must extend BaseMetricLossFunction or CrossBatchMemory"),
    ],
)
def test_the_wrappers_refuse_losses_by_type(wrapped, says):
    with pytest.raises(Exception, match=says):
        wrapped()


def test_two_views_in_one_batch_are_their_self_supervised_loss():
    one, other = torch.randn(2, 6, 8, generator=torch.Generator().manual_seed(0))
    theirs = package.SelfSupervisedLoss(package.MultiSimilarityLoss())(one, other)
    ours = MultiSimilarity()(torch.cat([one, other]), torch.arange(len(one)).repeat(2))
    torch.testing.assert_close(ours, theirs)


def test_a_memory_as_references_is_their_cross_batch_memory():
    generator = torch.Generator().manual_seed(0)
    memory = package.CrossBatchMemory(package.MultiSimilarityLoss(), 8, memory_size=64)
    held, held_labels = torch.empty(0, 8), torch.empty(0, dtype=torch.int64)
    for _ in range(3):
        embeddings, labels = torch.randn(12, 8, generator=generator), torch.arange(12) // 3
        own = len(held) + torch.arange(12)
        held, held_labels = torch.cat([held, embeddings]), torch.cat([held_labels, labels])
        ours = MultiSimilarity()(embeddings, labels, ref_emb=held, ref_labels=held_labels, self_index=own)
        torch.testing.assert_close(ours, memory(embeddings, labels))


def test_four_identical_images_of_a_class_have_the_ndcg_that_conventions_say():
    from suprank.losses import SupNDCG

    assert SupNDCG()(torch.ones(4, 8), torch.zeros(4, dtype=torch.int64)).item() == pytest.approx(0.296, abs=5e-4)
    assert SupAP()(torch.ones(4, 8), torch.zeros(4, dtype=torch.int64)).item() == 0
