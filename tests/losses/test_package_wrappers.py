"""What of pytorch-metric-learning works with our losses, as a table of docs/losses.md says, and what replaces the rest."""

import logging
import re
from inspect import signature
from pathlib import Path

import pytest
import torch
from pytorch_metric_learning import distances, miners, reducers, regularizers, samplers, trainers
from pytorch_metric_learning import losses as package
from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator
from pytorch_metric_learning.utils.distributed import DistributedLossWrapper
from torch import nn
from torch.utils.data import TensorDataset

from suprank import losses
from suprank.evaluation import evaluate
from suprank.losses import EmbeddingMemory, MultiSimilarity, PairCalibration, SupAP, SupNDCG, roadmap

PAGE = (Path(__file__).parents[2] / "docs" / "losses.md").read_text()
ROWS = re.findall(r"^\| (.+?) \| (works|refused) \|", PAGE, flags=re.MULTILINE)
STATED = {name: says for names, says in ROWS for name in re.findall(r"`(\w+)`", names)}

LABELS = torch.arange(12) // 3
IMAGES = torch.randn(12, 4, generator=torch.Generator().manual_seed(0))


def batch():
    return torch.randn(12, 8, generator=torch.Generator().manual_seed(0)).requires_grad_(), LABELS


def multiple_losses():
    losses = package.MultipleLosses([SupAP(), PairCalibration()], weights=[0.9, 0.1])
    torch.testing.assert_close(losses(*batch()), roadmap(decomposability=PairCalibration())(*batch()))
    sub_centers = package.SubCenterArcFaceLoss(num_classes=4, embedding_size=8)
    triplets, miner = package.TripletMarginLoss(), miners.BatchHardMiner()
    losses = package.MultipleLosses([SupAP(), sub_centers, triplets], miners=[None, None, miner])
    expected = SupAP()(*batch()) + sub_centers(*batch()) + triplets(*batch(), miner(*batch()))
    torch.testing.assert_close(losses(*batch()), expected)


def trained(trainer, losses=("metric_loss",), dataset=None, **named):
    """Train two steps; return whether weights have changed."""
    model = nn.Linear(4, 8)
    before = model.weight.detach().clone()
    models = {"trunk": model, "embedder": nn.Identity()}
    optimizers = {"trunk_optimizer": torch.optim.SGD(model.parameters(), lr=0.1)}
    functions = {name: nn.CrossEntropyLoss() if "classifier" in name else SupAP() for name in losses}
    if "classifier_loss" in losses:
        models["classifier"] = nn.Linear(8, 4)
    dataset = dataset or TensorDataset(IMAGES, LABELS)
    training = trainer(
        models=models,
        optimizers=optimizers,
        batch_size=12,
        loss_funcs=functions,
        dataset=dataset,
        dataloader_num_workers=0,
        data_device=torch.device("cpu"),
        **named,
    )
    training.train(num_epochs=2)
    assert (model.weight - before).abs().max() > 1e-4


def two_streams():
    trained(trainers.TwoStreamMetricLoss, dataset=TensorDataset(IMAGES, IMAGES + 0.1, LABELS))


def sampled():
    sampler = samplers.MPerClassSampler(LABELS, 3, 12, 12)
    trained(trainers.MetricLossOnly, sampler=sampler)


def precision():
    calculator = AccuracyCalculator(include=("precision_at_1",), k=1, device=torch.device("cpu"))
    embeddings = nn.functional.normalize(batch()[0].detach())
    found = calculator.get_accuracy(embeddings, LABELS)["precision_at_1"]
    assert found == pytest.approx(evaluate(embeddings, LABELS)["R@1"])


TRIED = {
    "MultipleLosses": multiple_losses,
    "MetricLossOnly": lambda: trained(trainers.MetricLossOnly),
    "TrainWithClassifier": lambda: trained(trainers.TrainWithClassifier, ("metric_loss", "classifier_loss")),
    "CascadedEmbeddings": lambda: trained(
        trainers.CascadedEmbeddings, ("metric_loss_0", "metric_loss_1"), embedding_sizes=[4, 4]
    ),
    "MPerClassSampler": sampled,
    "AccuracyCalculator": precision,
    "BatchHardMiner": lambda: SupAP()(*batch(), miners.BatchHardMiner()(*batch())),
    "CrossBatchMemory": lambda: package.CrossBatchMemory(SupAP(), 8),
    "DistributedLossWrapper": lambda: DistributedLossWrapper(SupAP()),
    "SelfSupervisedLoss": lambda: package.SelfSupervisedLoss(SupAP()),
    "TwoStreamMetricLoss": two_streams,
    "LpDistance": lambda: SupAP(distance=distances.LpDistance()),
    "MeanReducer": lambda: SupAP(reducer=reducers.MeanReducer()),
    "LpRegularizer": lambda: SupAP(embedding_regularizer=regularizers.LpRegularizer()),
}
ERRORS = {
    "BatchHardMiner": "indices_tuple was given",
    "CrossBatchMemory": "CrossBatchMemory not supported for SupAP",
    "DistributedLossWrapper": "must extend BaseMetricLossFunction or CrossBatchMemory",
    "SelfSupervisedLoss": "SelfSupervisedLoss not supported for SupAP",
    "TwoStreamMetricLoss": "indices_tuple was given",
    "LpDistance": "distance",
    "MeanReducer": "reducer",
    "LpRegularizer": "embedding_regularizer",
}


def test_the_table_has_what_is_tried_here():
    assert {name: "refused" if name in ERRORS else "works" for name in TRIED} == STATED


@pytest.mark.filterwarnings("ignore:Converting a tensor with requires_grad=True")  # their trainers, for a progress bar
@pytest.mark.parametrize("name", TRIED)
def test_the_table_says_what_works_and_what_is_refused(name):
    logging.disable(logging.WARNING)
    try:
        if name in ERRORS:
            with pytest.raises(Exception, match=ERRORS[name]):
                TRIED[name]()
        else:
            TRIED[name]()
    finally:
        logging.disable(logging.NOTSET)


def test_two_views_in_one_batch_are_their_self_supervised_loss():
    one, other = torch.randn(2, 6, 8, generator=torch.Generator().manual_seed(0))
    theirs = package.SelfSupervisedLoss(package.MultiSimilarityLoss())(one, other)
    ours = MultiSimilarity()(torch.cat([one, other]), torch.arange(len(one)).repeat(2))
    torch.testing.assert_close(ours, theirs)


def test_a_memory_as_references_is_their_cross_batch_memory():
    generator = torch.Generator().manual_seed(0)
    theirs = package.CrossBatchMemory(package.MultiSimilarityLoss(), 8, memory_size=30)
    memory = EmbeddingMemory(size=30, dim=8, levels=1)
    for number in range(4):
        embeddings, labels = torch.randn(12, 8, generator=generator), torch.arange(12) // 3
        ids = 12 * number + torch.arange(12)
        memory.add(embeddings, labels[:, None], ids)
        items = memory.contents()
        ours = MultiSimilarity()(
            embeddings, labels, ref_emb=items.embeddings, ref_labels=items.labels[:, 0], ids=ids, ref_ids=items.ids
        )
        torch.testing.assert_close(ours, theirs(embeddings, labels))


def test_two_streams_are_queries_and_references():
    anchors, others = torch.randn(2, 12, 8, generator=torch.Generator().manual_seed(0))
    theirs = package.MultiSimilarityLoss()(anchors, LABELS, ref_emb=others, ref_labels=LABELS.clone())  # not `is`
    torch.testing.assert_close(MultiSimilarity()(anchors, LABELS, ref_emb=others, ref_labels=LABELS), theirs)


def test_four_identical_images_of_a_class_have_the_ndcg_that_conventions_say():
    assert SupNDCG()(torch.ones(4, 8), torch.zeros(4, dtype=torch.int64)).item() == pytest.approx(0.296, abs=5e-4)
    assert SupAP()(torch.ones(4, 8), torch.zeros(4, dtype=torch.int64)).item() == 0


def test_the_table_of_losses_names_what_both_packages_have():
    rows = PAGE.partition("| pytorch-metric-learning | here |")[2].partition("\n\n")[0]
    table = re.findall(r"^\| `(\w+)(?:\(([\w, ]+)\))?`.*? \| `(\w+)\(([^`]+)\)` \|", rows, flags=re.MULTILINE)
    assert len(table) >= 12
    for theirs, their_arguments, ours, our_arguments in table:
        known = signature(getattr(package, theirs)).parameters
        assert set(their_arguments.split(", ")) - {""} <= {*known, "softmax_scale", "temperature"}, theirs
        named = {argument.partition("=")[0] for argument in our_arguments.split(", ")}
        assert named <= set(signature(getattr(losses, ours)).parameters), ours
