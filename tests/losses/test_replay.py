"""A loss that is recorded and replayed. On a CPU a function that runs again stands for a CUDA graph."""

import pytest
import torch

from suprank import losses
from suprank.losses import ReplayedLoss, RetrievalLoss, SupAP, happier, roadmap
from suprank.losses.replay import ReplayError
from suprank.ranking import chunked
from suprank.ranking.reading import note_choice

LABELS = torch.arange(16)[:, None] // torch.tensor([2, 8])


class Again:
    """Records a function by keeping it: a replay writes over the inputs and the results of the one before."""

    def __init__(self):
        self.recordings = self.replays = 0

    def __call__(self, function, inputs):
        self.recordings += 1
        static = [value.clone() for value in inputs]
        results = [value.clone() for value in function(*static)]

        def play(*tensors):
            self.replays += 1
            for place, value in zip(static, tensors, strict=True):
                place.copy_(value)
            with torch.enable_grad():
                again = function(*static)
            for result, value in zip(results, again, strict=True):
                result.copy_(value)
            return results

        return play


def drawn(seed, rows=16):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, 8, generator=generator, requires_grad=True)


def step(loss, module, embeddings, labels, factor=3.0, **references):
    """The value, the log, and the gradients of `factor` times the loss."""
    value = loss(embeddings, labels, **references)
    leaves = [embeddings, *module.parameters()]
    with torch.autocast(embeddings.device.type, enabled=False):  # as a training loop calls backward
        return value, dict(loss.log), torch.autograd.grad(factor * value, leaves)


@pytest.mark.parametrize("make", [SupAP, lambda: roadmap(8, 8), lambda: happier(8, 8)], ids=["SupAP", "roadmap", "happier"])
def test_replays_give_the_value_the_log_and_the_gradients_of_the_loss(make):
    loss, recorder = make(), Again()
    replayed = ReplayedLoss(loss, recorder=recorder)
    for number in range(5):
        embeddings = drawn(number)
        value, log, gradients = step(replayed, loss, embeddings, LABELS)
        wanted = step(loss, loss, embeddings, LABELS)
        torch.testing.assert_close((value, gradients), (wanted[0], wanted[2]))
        assert {name: part.item() for name, part in log.items()} == pytest.approx(
            {name: part.item() for name, part in wanted[1].items()}
        )
        for parameter in loss.parameters():  # as an optimizer changes them
            parameter.data.mul_(0.9)
    assert (recorder.recordings, recorder.replays) == (1, 3)


def test_a_backward_pass_may_come_after_the_next_replay():
    loss = happier(8, 8)
    replayed = ReplayedLoss(loss, recorder=Again())
    first, second = drawn(0), drawn(1)
    for _ in range(2):
        replayed(drawn(2), LABELS)
    total = replayed(first, LABELS)
    total += replayed(second, LABELS)
    total.backward()
    found = [leaf.grad.clone() for leaf in (first, second, *loss.parameters())]
    wanted = torch.autograd.grad(loss(first, LABELS) + loss(second, LABELS), [first, second, *loss.parameters()])
    torch.testing.assert_close(found, list(wanted))
    assert [module.log for module in loss.modules() if getattr(module, "log", None)]  # of the last call of the loss itself


def test_a_memory_is_ranked_too_and_the_query_is_recognized_there():
    loss, recorder = SupAP(), Again()
    replayed = ReplayedLoss(loss, recorder=recorder)
    for number in range(4):
        memory = {
            "ref_emb": drawn(number, 24).detach(),
            "ref_labels": torch.cat([LABELS, LABELS[:8]]),
            "ids": torch.arange(16) + number,
            "ref_ids": torch.arange(24),
        }
        embeddings = drawn(10 + number)
        found, wanted = (step(one, loss, embeddings, LABELS, **memory) for one in (replayed, loss))
        torch.testing.assert_close((found[0], found[2]), (wanted[0], wanted[2]))
    assert recorder.replays == 2


def test_shapes_that_come_seldom_are_not_recorded():
    recorder = Again()
    replayed = ReplayedLoss(SupAP(), recorder=recorder)
    for rows in (16, 15, 16, 14, 16, 15, 13):
        replayed(drawn(0, rows), LABELS[:rows])
    assert recorder.recordings == 1
    for rows in range(3, 100):  # a memory that grows
        replayed(drawn(0, 2), LABELS[:2], ref_emb=drawn(1, rows).detach(), ref_labels=LABELS[:1].expand(rows, -1))
    assert len(replayed._calls) <= 64


def test_shapes_whose_ranks_are_computed_on_a_grid_are_not_recorded():
    def on_a_grid_of_many(scores, level, relevance=None, *, plus, minus):
        if scores.shape[1] == 16:
            note_choice("gridded")
        return chunked(scores, level, relevance, plus=plus, minus=minus)

    recorder = Again()
    replayed = ReplayedLoss(SupAP(using=on_a_grid_of_many), recorder=recorder)
    for rows in 4 * (16, 15):
        replayed(drawn(0, rows), LABELS[:rows])
    assert (recorder.recordings, recorder.replays) == (1, 2)


def test_a_loss_that_cannot_be_recorded_is_computed_after_one_warning(recwarn):
    def refuse(function, inputs):
        raise ReplayError("it reads values")

    loss = SupAP()
    replayed = ReplayedLoss(loss, recorder=refuse)
    values = [replayed(drawn(0), LABELS) for _ in range(6)]
    assert values == 6 * [loss(drawn(0), LABELS)]
    assert [str(one.message) for one in recwarn] == [
        "SupAP cannot be recorded as a CUDA graph, and is computed as without one: it reads values"
    ]


def test_without_gradients_with_gradients_of_references_and_on_a_cpu_nothing_is_recorded():
    recorder = Again()
    replayed = ReplayedLoss(SupAP(), recorder=recorder)
    with torch.no_grad():
        for _ in range(4):
            replayed(drawn(0), LABELS)
    for _ in range(4):
        replayed(drawn(0), LABELS, ref_emb=drawn(1), ref_labels=LABELS)
    for _ in range(4):
        own = drawn(0)
        assert replayed(own, LABELS, ref_emb=own, ref_labels=LABELS) == SupAP()(own, LABELS)
    for _ in range(4):
        ReplayedLoss(SupAP())(drawn(0), LABELS)
    assert recorder.recordings == 0


class Noted(RetrievalLoss):
    """Its value depends on the mode of the module and on the precision of autocast."""

    def compute(self, batch):
        return (batch.queries @ batch.items.T)[0, 1].float() * (2.0 if self.training else 1.0)


def test_a_mode_and_a_precision_that_were_not_recorded_are_computed():
    loss, recorder = Noted(), Again()
    replayed = ReplayedLoss(loss, recorder=recorder)
    for mode in (True, False):
        for dtype in (None, torch.bfloat16, torch.float16):
            loss.train(mode)
            with torch.autocast("cpu", dtype, enabled=dtype is not None):
                found = [replayed(drawn(0), LABELS).item() for _ in range(3)]
                assert found == 3 * [loss(drawn(0), LABELS).item()]
    assert recorder.recordings == 4, "as many as are kept"


def test_a_changed_hyper_parameter_counts_after_forget():
    loss = SupAP()
    replayed = ReplayedLoss(loss, recorder=Again())
    before = [replayed(drawn(0), LABELS).item() for _ in range(4)][-1]
    loss.tau = 0.5
    replayed.forget()
    assert replayed(drawn(0), LABELS).item() == loss(drawn(0), LABELS).item() != before


def test_a_second_derivative_is_refused_with_the_way_out():
    replayed = ReplayedLoss(SupAP(using="definition"), recorder=Again())
    embeddings = drawn(0)
    value = [replayed(embeddings, LABELS) for _ in range(3)][-1]
    with pytest.raises(NotImplementedError, match="call the loss itself"):
        torch.autograd.grad(value, embeddings, create_graph=True)


# On a GPU


def on_a_gpu(test):
    return pytest.mark.gpu(pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")(test))


@on_a_gpu
@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize(
    "make",
    [SupAP, losses.SmoothAP, losses.SupRecall, losses.SupHAP, losses.SupNDCG, lambda: roadmap(16, 32), lambda: happier(16, 32)],
)
def test_a_cuda_graph_gives_the_numbers_of_the_loss(make, autocast):
    loss = make().cuda()
    replayed = ReplayedLoss(loss)
    labels = torch.arange(64, device="cuda")[:, None] // torch.tensor([4, 16], device="cuda")
    optimizer = torch.optim.SGD(loss.parameters(), lr=0.1) if list(loss.parameters()) else None
    for _ in range(6):
        embeddings = torch.randn(64, 32, device="cuda", requires_grad=True)
        with torch.autocast("cuda", torch.bfloat16, enabled=autocast):
            found, wanted = (step(one, loss, embeddings, labels) for one in (replayed, loss))
        torch.testing.assert_close((found[0], found[2]), (wanted[0], wanted[2]))
        assert found[1].keys() == wanted[1].keys()
        for name, part in found[1].items():
            torch.testing.assert_close(part, wanted[1][name].to(part.dtype))
        if optimizer is not None:
            loss.zero_grad()
            replayed(embeddings, labels).backward()  # accumulates on the proxies, on this stream
            loss(embeddings, labels).backward()
            optimizer.step()
    assert replayed._recordings


class ReadsValues(RetrievalLoss):
    """It waits for the device, which a recording forbids."""

    def compute(self, batch):
        return batch.scores.sum() * (1.0 if batch.scores.sum().item() > 1e9 else 2.0)


@on_a_gpu
def test_a_loss_that_waits_for_the_gpu_falls_back_and_leaves_the_streams_healthy():
    labels = torch.arange(16, device="cuda")
    embeddings = torch.randn(16, 8, device="cuda", requires_grad=True)

    def train(replayed):
        for _ in range(4):
            replayed(embeddings, labels).backward()

    with pytest.warns(UserWarning, match="ReadsValues cannot be recorded as a CUDA graph.*synchroniz"):
        train(ReplayedLoss(ReadsValues()))
    assert torch.cuda.get_sync_debug_mode() == 0
    torch.nn.functional.dropout(embeddings).sum().item()  # random numbers, and a wait
    other = ReplayedLoss(SupAP())
    for _ in range(4):
        other(embeddings, labels // 2)
    assert other._recordings


@on_a_gpu
def test_random_numbers_of_a_replay_follow_the_seed():
    loss = losses.BlackBoxAP()
    replayed = ReplayedLoss(loss)
    labels = torch.arange(32, device="cuda") // 4
    embeddings = torch.randn(32, 8, device="cuda", requires_grad=True)
    for seed in (1, 2, 3, 4, 3):
        torch.manual_seed(seed)
        found = step(replayed, loss, embeddings, labels)
        torch.manual_seed(seed)
        wanted = step(loss, loss, embeddings, labels)
        torch.testing.assert_close((found[0], found[2]), (wanted[0], wanted[2]))
