"""Second derivatives and torch.func: every operation is plain where `using="definition"`."""

import pytest
import torch
from torch.func import functional_call, grad, hessian, vmap

from suprank.losses import PairCalibration, SmoothNDCG, SupAP, SupHAP, SupNDCG, SupRecall, roadmap

pytestmark = [
    pytest.mark.filterwarnings("ignore:There is a performance drop"),  # torch batches fill_diagonal_ in a loop
    pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated"),  # torch's own, in forward mode
]
LABELS = torch.tensor([[0, 0], [0, 0], [1, 0], [1, 0], [2, 1], [2, 1]])
LOSSES = {
    "SupAP": lambda: SupAP(using="definition"),
    "SupHAP": lambda: SupHAP(using="definition"),
    "SupRecall": lambda: SupRecall(using="definition"),
    "SmoothNDCG": lambda: SmoothNDCG(using="definition"),
    "PairCalibration": PairCalibration,
    "ROADMAP": lambda: roadmap(3, 4, using="definition").double(),
}


def embeddings(*shape):
    return torch.randn(*shape, 6, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def gradient(loss, given):
    leaf = given.clone().requires_grad_()
    return torch.autograd.grad(loss(leaf, LABELS), leaf)[0]


@pytest.mark.parametrize("name", LOSSES)
def test_grad_is_that_of_autograd_and_vmap_that_of_each_batch(name):
    loss, given = LOSSES[name](), embeddings(3)
    given[1, 2] = 0  # which has no gradient
    expected = torch.stack([gradient(loss, one) for one in given])
    torch.testing.assert_close(torch.stack([grad(loss)(one, LABELS) for one in given]), expected)
    torch.testing.assert_close(vmap(grad(lambda one: loss(one, LABELS)))(given), expected)
    torch.testing.assert_close(vmap(loss)(given, LABELS.expand(3, -1, -1)), torch.stack([loss(one, LABELS) for one in given]))


def test_a_log_holds_no_tensor_of_a_transform():
    loss = SupAP(using="definition")
    grad(loss)(embeddings(), LABELS)
    assert loss.log == {}
    loss(embeddings(), LABELS)
    assert loss.log["queries_without_positives"] == 0


@pytest.mark.parametrize("name", ["SupAP", "SmoothNDCG"])
def test_a_hessian_is_the_derivative_of_the_gradient(name):
    loss, given = LOSSES[name](), embeddings()
    found = hessian(loss)(given, LABELS).reshape(given.numel(), given.numel())
    leaf = given.clone().requires_grad_()
    (slope,) = torch.autograd.grad(loss(leaf, LABELS), leaf, create_graph=True)
    rows = [torch.autograd.grad(one, leaf, retain_graph=True)[0].flatten() for one in slope.flatten()]
    torch.testing.assert_close(found, torch.stack(rows))
    torch.testing.assert_close(found, found.T)


def test_lists_of_scores_and_proxies_are_transformed_too():
    loss = SupNDCG(using="definition")
    scores, level = embeddings(2)[..., 0], torch.tensor([0, 1, 0, 3, -1, 0])
    expected = torch.stack([loss.from_scores(one[None], level[None]) for one in scores.flatten(0, 1).reshape(2, 6)])
    found = vmap(lambda one: loss.from_scores(one[None], level[None]))(scores.flatten(0, 1).reshape(2, 6))
    torch.testing.assert_close(found, expected)
    proxies = LOSSES["ROADMAP"]()
    parameters = dict(proxies.named_parameters())
    found = grad(lambda given: functional_call(proxies, given, (embeddings(), LABELS)))(parameters)
    value = proxies(embeddings(), LABELS)
    for name, parameter in parameters.items():
        torch.testing.assert_close(found[name], torch.autograd.grad(value, parameter, retain_graph=True)[0])


def test_the_fast_ways_are_refused_with_the_way_out():
    with pytest.raises(NotImplementedError, match=r"SupAP\(using='definition'\)"):
        grad(SupAP())(embeddings(), LABELS)
