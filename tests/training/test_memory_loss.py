"""The memory counts as the equation says, and gradients reach the batch and the proxies only."""

import pytest
import torch

from suprank import losses
from suprank.losses.memory import EmbeddingMemory
from suprank.training.loss_specs import loss_specs, parse_loss
from suprank.training.memory_loss import LossWithMemory, gradients
from tests.training.test_loss_specs import DIM, build, data, seeded


def on_a_corner(memory_weight):
    """Two images of two classes at a right angle: nothing to complain of within the batch. The memory holds an image of the
    first one's class, where the second one is."""
    memory = EmbeddingMemory(10, 2, 1)
    loss_with_memory = LossWithMemory(losses.PairCalibration(), memory, memory_weight)
    memory.add(torch.tensor([[0.0, 1.0]]), torch.tensor([[0]]), torch.tensor([7]))
    batch = torch.eye(2), torch.tensor([[0], [1]]), torch.tensor([0, 1])
    return loss_with_memory, batch


@pytest.mark.parametrize("weight", [0.0, 0.3, 1.0])
def test_the_memory_has_its_share_of_the_loss(weight):
    loss_with_memory, batch = on_a_corner(weight)
    # The first image's only positive has the score 0, by 0.9 too low. Of the second's two negatives one has the score 1, by 0.4
    # too high, which is 0.2 on average; the first has a negative too, without a complaint: 0.1.
    assert loss_with_memory(*batch).item() == pytest.approx(weight * (0.9 + 0.1))
    assert loss_with_memory.log["loss"].item() == pytest.approx(weight)
    assert loss_with_memory.log["against memory"].item() == pytest.approx(1.0)
    assert len(loss_with_memory.memory) == 3


def test_what_an_image_was_earlier_is_not_in_its_own_list():
    loss_with_memory, batch = on_a_corner(1.0)
    loss_with_memory.memory.add(
        torch.tensor([[0.0, 1.0]]), torch.tensor([[0]]), torch.tensor([0])
    )  # the first image, elsewhere
    # Still 0.9 for the first image. The second has two negatives of score 1 among three.
    assert loss_with_memory(*batch).item() == pytest.approx(0.9 + (0.8 / 3) / 2)


@pytest.mark.parametrize("name", ["roadmap", "happier", "sup-ndcg", "smooth-recall"])
def test_the_loss_is_that_of_the_batch_and_that_of_all_that_was_seen(name):
    loss = build(name)
    loss_with_memory = LossWithMemory(loss, EmbeddingMemory(30, DIM, 2), 0.25)
    earlier, now = data(1), data(2)
    loss_with_memory(*earlier, use_memory=False)
    items, item_labels, item_ids = (torch.cat(both) for both in zip(earlier, now, strict=True))
    against = loss(now[0], now[1], ref_emb=items, ref_labels=item_labels, ids=now[2], ref_ids=item_ids)
    torch.testing.assert_close(loss_with_memory(*now), 0.75 * loss(*now[:2]) + 0.25 * against)


def test_a_memory_before_its_epoch_is_filled_and_not_looked_at():
    loss_with_memory, batch = on_a_corner(0.5)
    assert loss_with_memory(*batch, use_memory=False).item() == 0
    assert "against memory" not in loss_with_memory.log
    assert loss_with_memory.memory.contents().ids.tolist() == [7, 0, 1]
    assert loss_with_memory(*batch).item() > 0


def test_the_parts_of_a_combined_loss_are_told_without_a_graph():
    loss_with_memory = LossWithMemory(build("happier", weight=0.25), EmbeddingMemory(30, DIM, 2))
    embeddings, labels, ids = data()
    value = loss_with_memory(embeddings.requires_grad_(), labels, ids)
    log = loss_with_memory.log
    assert list(log) == ["loss", "queries_without_positives", "SupHAP", "ProxySoftmax", "against memory"]
    assert not any(part.requires_grad for part in log.values())
    within = 0.75 * log["SupHAP"] + 0.25 * log["ProxySoftmax"]
    torch.testing.assert_close(value.detach(), 0.5 * within + 0.5 * log["against memory"])


@pytest.mark.parametrize("name", loss_specs())
@pytest.mark.parametrize("remembers", [False, True])
def test_gradients_are_those_of_backward(name, remembers):
    loss = build(name)
    embeddings, labels, ids = data()
    embeddings.requires_grad_()
    parameters = list(loss.parameters())

    def value():
        memory = EmbeddingMemory(30, DIM, 2) if remembers and parse_loss({"name": name}).compares_items else None
        if memory is not None:
            memory.add(*data(1))
        return LossWithMemory(loss, memory)(embeddings, labels, ids)

    on_embeddings, on_parameters = gradients(seeded(value), embeddings, parameters)
    seeded(value).backward()
    torch.testing.assert_close(on_embeddings, embeddings.grad)
    assert len(on_parameters) == len(parameters)
    assert bool(parameters) == parse_loss({"name": name}).has_proxies
    for found, parameter in zip(on_parameters, parameters, strict=True):
        torch.testing.assert_close(found, parameter.grad)
    assert embeddings.grad.norm() > 0


@pytest.mark.parametrize("weight", [0.0, 1.0])
@pytest.mark.parametrize("name", ["roadmap", "happier"])
def test_a_part_of_no_weight_has_gradients_too_all_of_them_zero(name, weight):
    loss = build(name, weight=weight)
    embeddings, labels, _ = data()
    _, on_parameters = gradients(loss(embeddings.requires_grad_(), labels), embeddings, list(loss.parameters()))
    for gradient in on_parameters:
        assert bool(gradient.any()) == (weight == 1)


def test_gradients_do_not_reach_the_memory():
    loss_with_memory = LossWithMemory(losses.Combined(losses.SupAP(), losses.PairCalibration()), EmbeddingMemory(30, DIM, 2))
    first, second = data(1), data(2)
    first[0].requires_grad_()
    loss_with_memory(*first)
    second[0].requires_grad_()
    loss_with_memory(*second).backward()
    assert first[0].grad is None
    assert second[0].grad is not None


def test_a_parameter_without_a_part_in_the_value_has_a_gradient_of_zero():
    embeddings, unused = torch.randn(3, 2, requires_grad=True), torch.nn.Parameter(torch.ones(2))
    on_embeddings, on_parameters = gradients(embeddings.sum(), embeddings, [unused])
    assert torch.equal(on_embeddings, torch.ones(3, 2))
    assert torch.equal(on_parameters[0], torch.zeros(2))
