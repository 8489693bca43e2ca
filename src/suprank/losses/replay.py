"""`ReplayedLoss`: a loss recorded as a CUDA graph once for each shape, and replayed, so that a step launches one graph."""

from __future__ import annotations

import warnings
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch
from torch import nn

from suprank.losses.batch import without_autocast
from suprank.ranking.reading import Reading, noting_choices, reading_at_most, skip_value_checks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from jaxtyping import Bool, Float, Integer, Shaped
    from torch import Tensor

    Function = Callable[..., list[Tensor]]

_CALLS_BEFORE_RECORDING = 2  # of a shape, so that the last batch of an epoch and a memory that still grows are not recorded
_MOST_RECORDINGS = 4
_MOST_SHAPES = 64  # that are counted


class ReplayError(RuntimeError):
    """A loss cannot be recorded."""


class Recorder(Protocol):
    """Makes a function of tensors into one that takes other tensors of the same shapes and gives the results for them."""

    def __call__(self, function: Function, inputs: Sequence[Tensor]) -> Function: ...


class ReplayedLoss:
    """Calls a loss, and on a GPU records it as a CUDA graph and replays that: value, log and gradients in one launch.

        loss = roadmap(num_classes, embedding_size).cuda()
        replayed = ReplayedLoss(loss)                 # optimize loss.parameters(), as without it
        replayed(embeddings, labels).backward()

    It is called as the loss is, with references by name, or by `from_scores`, and gives the same numbers. A shape is recorded
    when it comes for the third time; other shapes, and shapes whose ranks were computed on a grid, which is chosen by values,
    are computed as without recording. So is everything on a CPU, and a loss that reads values, which cannot be recorded; a
    warning says so. A replayed loss does not check values: look for NaN in the loss yourself. Gradients are for `embeddings`
    (or `scores`) and for the parameters of the loss. Python code does not run again in a replay, so after changing a
    hyper-parameter, such as `loss.tau`, call `forget`. After a call `log` holds the loss's log.
    """

    def __init__(self, loss: nn.Module, *, recorder: Recorder | None = None) -> None:
        self.loss = loss
        self._score_loss = _ScoreLoss(loss)
        self.log: dict[str, Tensor] = {}
        self._recorder = recorder
        self.forget()

    def forget(self) -> None:
        """Drop what was recorded, so that the loss is recorded anew."""
        self._recordings: dict[object, _Recording] = {}
        self._calls: Counter[object] = Counter()
        self._cannot_record = False
        self._on_a_grid: set[object] = set()

    def __call__(
        self,
        embeddings: Float[Tensor, "queries dim"],
        labels: Integer[Tensor, "queries ..."] | Bool[Tensor, "queries ..."] | None = None,
        **options: Any,
    ) -> Float[Tensor, ""]:
        return self._call(self.loss, {"embeddings": embeddings, "labels": labels, **options})

    def from_scores(
        self,
        scores: Float[Tensor, "queries items"],
        relevance: Shaped[Tensor, "queries items"],
        mask: Bool[Tensor, "queries items"] | None = None,
    ) -> Float[Tensor, ""]:
        """`loss.from_scores`, recorded and replayed in the same way."""
        return self._call(self._score_loss, {"scores": scores, "relevance": relevance, "mask": mask})

    def _call(self, module: nn.Module, inputs: dict[str, Tensor | None]) -> Tensor:
        """Call `module` with the inputs, the first two by position, or replay it. Gradients are for the first."""
        key = self._key(module, inputs) if self._may_replay(inputs) else None
        recording = None if key is None else self._recording(module, key, inputs)
        if recording is None:
            first, second, *_ = inputs.values()
            with noting_choices() as choices:
                value = module(first, second, **dict(list(inputs.items())[2:]))
            if choices:
                self._on_a_grid.add(key)
            self.log = dict(getattr(self.loss, "log", {}))
            return value
        first, *others = (inputs[name] for name in recording.names)
        value, *log = _Replay.apply(recording, others, first, *recording.parameters)
        self.log = dict(zip(recording.log, log, strict=True))
        return value

    def _may_replay(self, inputs: dict[str, Any]) -> bool:
        first = next(iter(inputs.values()))
        if self._cannot_record or torch.compiler.is_compiling() or not torch.is_grad_enabled():
            return False
        if self._recorder is None and not (first.is_cuda and not torch.cuda.is_current_stream_capturing()):
            return False
        given = [value for value in inputs.values() if value is not None]
        tensors_alone = all(isinstance(value, torch.Tensor) for value in given)
        return tensors_alone and not any(value is first or value.requires_grad for value in given[1:])

    def _key(self, module: nn.Module, inputs: dict[str, Tensor | None]) -> object:
        """What must be the same in two calls for one recording to serve both."""
        first = next(iter(inputs.values()))
        assert first is not None
        device = first.device.type
        return (
            tuple((name, value.shape, value.dtype, value.device) for name, value in inputs.items() if value is not None),
            tuple((name, value.data_ptr()) for name, value in _parameters(module).items()),
            first.requires_grad,
            torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None,
            self.loss.training,
        )

    def _recording(self, module: nn.Module, key: object, inputs: dict[str, Tensor | None]) -> _Recording | None:
        if key not in self._recordings:
            if key in self._on_a_grid:
                return None
            if len(self._calls) >= _MOST_SHAPES:
                self._calls.clear()
            self._calls[key] += 1
            if self._calls[key] <= _CALLS_BEFORE_RECORDING or len(self._recordings) >= _MOST_RECORDINGS:
                return None
            try:
                given = {name: value for name, value in inputs.items() if value is not None}
                self._recordings[key] = self._record(module, given)
            except ReplayError as error:
                self._cannot_record = True
                warnings.warn(
                    f"{type(self.loss).__name__} cannot be recorded as a CUDA graph, and is computed as without one: {error}",
                    stacklevel=3,
                )
                return None
        return self._recordings[key]

    def _record(self, module: nn.Module, given: Mapping[str, Tensor]) -> _Recording:
        log: list[str] = []
        parameters = _parameters(module)

        def step(*tensors: Tensor) -> list[Tensor]:
            """The value, the log in one tensor, and the gradients.

            Gradients are taken with respect to leaves made here: those of a parameter itself would be sent to the stream on
            which it was first used, which is not the one that records.
            """
            first, *others = tensors
            leaf = first.detach().requires_grad_()
            leaves = {name: value.detach().requires_grad_() for name, value in parameters.items()}
            named = dict(zip(list(given)[1:], others, strict=True))
            second = named.pop("labels", None) if module is self.loss else named.pop("relevance")
            with skip_value_checks():
                value = torch.func.functional_call(module, leaves, (leaf, second), named)
            with without_autocast(leaf):  # a training loop calls backward outside of it
                gradients = torch.autograd.grad(value, [leaf, *leaves.values()], allow_unused=True, materialize_grads=True)
            logged = getattr(self.loss, "log", {}).items()
            parts = {name: part for name, part in logged if isinstance(part, torch.Tensor) and part.numel() == 1}
            log[:] = parts
            numbers = [part.detach().reshape(()).to(value.dtype) for part in parts.values()]
            for part in self.loss.modules():
                if isinstance(part.__dict__.get("log"), dict):
                    part.__dict__["log"] = {}  # not tensors that the next replay writes over
            return [value.detach(), torch.stack(numbers) if numbers else value.new_empty(0), *gradients]

        inputs = [value.detach() for value in given.values()]
        replay = (self._recorder or record_cuda_graph)(step, inputs)
        return _Recording(replay, list(given), list(parameters.values()), log)


class _ScoreLoss(nn.Module):
    """A loss that is called with scores."""

    def __init__(self, loss: nn.Module) -> None:
        super().__init__()
        self.loss: Any = loss

    def forward(self, scores: Tensor, relevance: Tensor, mask: Tensor | None = None) -> Tensor:
        return self.loss.from_scores(scores, relevance, mask)


def _parameters(module: nn.Module) -> dict[str, nn.Parameter]:
    return {name: value for name, value in module.named_parameters() if value.requires_grad}


class _Recording(NamedTuple):
    replay: Function
    names: list[str]
    parameters: list[Tensor]
    log: list[str]


class _Replay(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, recording: _Recording, others: list[Tensor], first: Tensor, *_: Tensor) -> tuple[Tensor, ...]:
        # The next replay writes over its results, and may come before the backward pass.
        value, numbers, *gradients = (result.clone() for result in recording.replay(first, *others))
        ctx.save_for_backward(*gradients)
        log = numbers.unbind()
        ctx.mark_non_differentiable(*log)
        ctx.set_materialize_grads(False)
        return value, *log

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, *_: Any) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise NotImplementedError("a replayed loss has no second derivative; call the loss itself for one.")
        if grad is None:
            return (None,) * (2 + len(ctx.saved_tensors))
        needed = ctx.needs_input_grad[2:]
        gradients = [grad * one if wanted else None for one, wanted in zip(ctx.saved_tensors, needed, strict=True)]
        return None, None, *gradients


def record_cuda_graph(function: Function, inputs: Sequence[Tensor]) -> Function:
    """Record what `function` launches as a CUDA graph. Its results are those of the last replay.

    Before, it runs on the stream that records, so that what it needs is compiled and allocated, and once more so that an
    operation which waits for the device raises: a recording that fails would leave torch's random numbers in a bad state.
    """
    device = inputs[0].device
    static = [torch.empty_like(value, device=device).copy_(value) for value in inputs]
    states = torch.get_rng_state(), torch.cuda.get_rng_state(device)
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    try:
        with torch.cuda.device(device), reading_at_most(Reading.NOTHING):
            with torch.cuda.stream(stream):
                function(*static)
                with refusing_to_wait():
                    function(*static)
            # Only this thread is held to what a recording may do: others load images.
            with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
                results = function(*static)
    except Exception as error:
        raise ReplayError(str(error).partition("\n")[0]) from error
    finally:
        torch.cuda.current_stream(device).wait_stream(stream)
        torch.set_rng_state(states[0])
        torch.cuda.set_rng_state(states[1], device)

    def replay(*tensors: Tensor) -> list[Tensor]:
        for place, value in zip(static, tensors, strict=True):
            place.copy_(value, non_blocking=True)
        graph.replay()
        return results

    return replay


@contextmanager
def refusing_to_wait() -> Iterator[None]:
    """Raise where an operation waits for the GPU."""
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns that this finds most of such operations, and not all
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)
