"""Steps of the optimizer on embeddings in memory."""

import numpy as np
import pytest
import torch

from suprank.adaptation import AdaptConfig
from suprank.adaptation.class_splits import BatchShape, batch_shape
from suprank.adaptation.head_trainer import HeadTrainer
from suprank.losses import SupAP
from suprank.models import Head, HeadConfig
from tests.adaptation.collections import clustered


def trainer(loss="sup-ap", shape=None, steps=4, **settings):
    embeddings, labels = clustered(classes=12, per_class=4)
    torch.manual_seed(0)
    head = Head(HeadConfig(in_features=12, out_features=6))
    config = AdaptConfig(loss={"name": loss}, lr=0.01, **settings)
    values, table = torch.from_numpy(embeddings), torch.from_numpy(labels[:, None])
    return HeadTrainer(head, values, table, config, steps=steps, shape=shape, seed=0)


@pytest.mark.parametrize("loss", ["sup-ap", "roadmap", "nsm"])
def test_the_whole_collection_is_a_batch_of_everything(loss):
    """Batches of 12 classes of 4 hold every image once, in some order, and the order of a batch does not matter."""
    whole, batches = trainer(loss), trainer(loss, shape=BatchShape(48, 4))
    losses = [torch.stack(list(one.run(4))) for one in (whole, batches)]
    torch.testing.assert_close(*losses)
    torch.testing.assert_close(whole.head.linear.weight, batches.head.linear.weight, atol=2e-4, rtol=0)


def test_a_step_is_one_of_adamw_on_the_loss_of_the_batch():
    made = trainer(steps=1, weight_decay=0.1)
    reference = Head(made.head.config)
    reference.load_state_dict(made.head.state_dict())
    optimizer = torch.optim.AdamW(reference.parameters(), lr=0.01, weight_decay=0.1)
    value = SupAP()(reference(made.embeddings), made.labels)
    value.backward()
    optimizer.step()
    (loss,) = made.run(1)
    torch.testing.assert_close(loss, value.detach())
    torch.testing.assert_close(made.head.linear.weight, reference.linear.weight, atol=1e-4, rtol=0)


def test_the_learning_rate_falls_to_zero_as_a_cosine():
    made = trainer(steps=4, loss="nsm")
    rates = []
    for _ in made.run(4):
        rates.append([group["lr"] for group in made.optimizer.param_groups])
    expected = (1 + np.cos(np.pi * np.arange(4) / 4)) / 2
    np.testing.assert_allclose(rates, expected[:, None] * [0.01, 0.01])


@pytest.mark.parametrize(
    ("classes", "per_class", "size", "expected"),
    [
        (64, 10, 256, (256, 4)),
        (50, 10, 256, (252, 6)),  # 42 classes of 6
        (10, 100, 256, (234, 26)),
        (10, 3, 256, (28, 4)),  # 30 images in all
        (100, 4, 2, (2, 2)),
    ],
)
def test_a_batch_has_four_images_of_a_class_or_as_many_as_it_takes_to_fill_it(classes, per_class, size, expected):
    assert batch_shape(np.repeat(np.arange(classes), per_class), size, None) == expected
