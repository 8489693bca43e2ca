"""Cross entropy of a linear classifier: by hand, in loops, and as torch computes it on the output of LayerNorm."""

import math

import pytest
import torch
from torch.nn.functional import cross_entropy, layer_norm, linear

from suprank.losses import CrossEntropy
from tests.losses.batches import DIM, batch, gradient_of, with_a_class

CLASSES = 5


def classifier(label_smoothing):
    """In float64, with weights and biases as after some training."""
    torch.default_generator.manual_seed(0)
    loss = CrossEntropy(CLASSES, DIM, label_smoothing=label_smoothing).double()
    torch.nn.init.normal_(loss.weight)
    torch.nn.init.normal_(loss.bias)
    return loss


def test_two_classes_by_hand():
    loss = CrossEntropy(2, 4, label_smoothing=0.0)
    labels = torch.tensor([0, 1])
    embeddings = torch.tensor([[3.0, 0.0, 0.0, 0.0], [0.0, 0.5, 0.0, 0.0]])
    torch.nn.init.zeros_(loss.weight)
    assert loss(embeddings, labels).item() == pytest.approx(math.log(2))
    with torch.no_grad():
        loss.weight[0, 0], loss.bias[1] = 1.5, 1.0
    # √4·1.5·1 = 3 against 1 for the first image, 0 against 1 for the second.
    expected = (math.log(1 + math.exp(1 - 3)) + math.log(1 + math.exp(0 - 1))) / 2
    assert loss(embeddings, labels).item() == pytest.approx(expected)
    smooth = CrossEntropy(2, 4, label_smoothing=0.2)
    smooth.load_state_dict(loss.state_dict())
    assert smooth(embeddings, labels).item() == pytest.approx(expected + 0.1 * (3 - 1) / 2 + 0.1 * (1 - 0) / 2)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("composition", ["three levels", "unequal classes", "some without a label", "no labels at all"])
def test_the_loss_is_its_equation_in_loops(composition, smoothing):
    embeddings, labels = batch(composition)
    loss = classifier(smoothing)
    total, (known, classes) = 0.0, with_a_class(embeddings, labels)
    for vector, own in zip(known.tolist(), classes, strict=True):
        length = math.sqrt(sum(x * x for x in vector))
        logits = [
            math.sqrt(DIM) * sum(x / length * w for x, w in zip(vector, weights, strict=True)) + bias
            for weights, bias in zip(loss.weight.tolist(), loss.bias.tolist(), strict=True)
        ]
        normalizer = math.log(sum(map(math.exp, logits)))
        target = [(1 - smoothing) * (z == own) + smoothing / CLASSES for z in range(CLASSES)]
        total -= sum(share * (logit - normalizer) for share, logit in zip(target, logits, strict=True))
    assert loss(embeddings, labels).item() == pytest.approx(total / max(len(classes), 1))


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_on_the_output_of_layer_norm_it_is_torchs_cross_entropy_of_features_that_are_not_normalized(smoothing):
    features, labels = batch("three levels", seed=2)
    fine = labels[:, 0]
    loss = classifier(smoothing)

    def theirs(features, fine):
        return cross_entropy(
            linear(layer_norm(features, (DIM,), eps=0), loss.weight, loss.bias), fine, label_smoothing=smoothing
        )

    def ours(features, fine):
        return loss(layer_norm(features, (DIM,), eps=0), fine)

    torch.testing.assert_close(gradient_of(ours, features, fine), gradient_of(theirs, features, fine))


def test_smoothing_over_the_wrong_classes_is_torchs_with_a_larger_share():
    embeddings, labels = batch("three levels")
    fine, share = labels[:, 0], 0.1
    loss = classifier(share * CLASSES / (CLASSES - 1))
    unit = embeddings / embeddings.norm(dim=-1, keepdim=True)
    target = torch.full((len(fine), CLASSES), share / (CLASSES - 1), dtype=torch.float64).scatter(1, fine[:, None], 1 - share)
    expected = cross_entropy(linear(math.sqrt(DIM) * unit, loss.weight, loss.bias), target)
    torch.testing.assert_close(loss(embeddings, labels), expected)
