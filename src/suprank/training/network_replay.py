"""A network whose forward and backward passes are recorded as CUDA graphs, so that a step does not wait for its launches.

A small network on small images has hundreds of kernels of a few microseconds each, and the CPU launches them more slowly than
the GPU runs them. Replaying a graph launches all of them at once.
"""

from __future__ import annotations

import gc
import warnings
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch
from torch import nn
from torch.autograd.function import once_differentiable

from suprank.losses.replay import refusing_to_wait
from suprank.training.grad_cache import ForwardPass, forward_at_once, forward_pass

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lightning.fabric import Fabric
    from torch import Tensor


class Recording(NamedTuple):
    """The replays of a network: embeddings of images, and gradients of the parameters from one of the embeddings.

    What they return is overwritten by the next replay.
    """

    forward: Callable[[Tensor], Tensor]
    backward: Callable[[Tensor], Sequence[Tensor | None]]


class Recorder(Protocol):
    """Records the forward pass of a network, and the backward pass to those of its parameters that are trained."""

    def __call__(self, forward: Callable[[Tensor], Tensor], images: Tensor, parameters: Sequence[Tensor]) -> Recording: ...


def record_cuda_graphs(forward: Callable[[Tensor], Tensor], images: Tensor, parameters: Sequence[Tensor]) -> Recording:
    """Record what the two passes launch for a batch of this shape.

    Before, they run on the stream that records: first so that what they need is compiled and allocated, then so that an
    operation which waits for the GPU raises. A recording that fails would leave torch's random numbers in a bad state.
    `torch.cuda.make_graphed_callables` has no such rehearsal, and its recording fails if another thread, which loads images,
    allocates memory meanwhile.
    """
    device, stream = images.device, torch.cuda.Stream(images.device)
    inputs = images.clone()
    graphs = [torch.cuda.CUDAGraph() for _ in range(2)]
    stream.wait_stream(torch.cuda.current_stream(device))
    try:
        with torch.cuda.device(device):
            with torch.cuda.stream(stream):
                state = torch.get_rng_state()
                for check in (nullcontext, refusing_to_wait):
                    with check():
                        embeddings = forward(inputs)
                        _gradients(embeddings, torch.zeros_like(embeddings), parameters)
                if not torch.equal(torch.get_rng_state(), state):
                    raise RuntimeError("it draws random numbers on the CPU")
            del embeddings
            # Only this thread is held to what a recording may do: others load images.
            with torch.cuda.graph(graphs[0], stream=stream, capture_error_mode="thread_local"):
                embeddings = forward(inputs)
            output, output_gradient = embeddings.detach(), torch.zeros_like(embeddings)
            gradients: list[Tensor | None] = [None] * len(parameters)
            if embeddings.requires_grad:
                pool = graphs[0].pool()
                with torch.cuda.graph(graphs[1], pool=pool, stream=stream, capture_error_mode="thread_local"):
                    gradients = _gradients(embeddings, output_gradient, parameters)
    finally:
        torch.cuda.current_stream(device).wait_stream(stream)

    def replay_forward(images: Tensor) -> Tensor:
        inputs.copy_(images)
        graphs[0].replay()
        return output

    def replay_backward(gradient: Tensor) -> list[Tensor | None]:
        output_gradient.copy_(gradient)
        graphs[1].replay()
        return gradients

    return Recording(replay_forward, replay_backward)


def _gradients(embeddings: Tensor, gradient: Tensor, parameters: Sequence[Tensor]) -> list[Tensor | None]:
    """Gradients of the parameters; None for those that the embeddings do not depend on."""
    if not embeddings.requires_grad:
        return [None] * len(parameters)
    return list(torch.autograd.grad(embeddings, parameters, gradient, allow_unused=True))


class ReplayedForward:
    """`forward_at_once`, recorded for the first batch and replayed for all others of its shape.

    It is recorded anew when parameters are frozen or unfrozen, when they are moved, or when a module changes between training
    and evaluation mode; evaluation between two epochs is no such change, because it does not come through here. Recording runs
    the network several times; buffers (the statistics of BatchNorm) and random numbers are then those of before. A network that
    cannot be recorded, because it reads values on the CPU, is trained as without recording, with a warning; so are batches of
    another shape, without one.

    The gradients must be used before the next forward pass: autograd takes a first gradient as it is, so that `grad` is memory
    that the next replay overwrites. Recipes that accumulate the gradients of several batches are refused for that reason.
    """

    def __init__(self, network: nn.Module, record: Recorder = record_cuda_graphs) -> None:
        self._network, self._record = network, record
        self._state: object = None
        self._shape: torch.Size | None = None
        self._recording: Recording | None = None
        self._parameters: list[nn.Parameter] = []
        self._cannot_record = False

    def __call__(
        self, fabric: Fabric, model: Any, images: Tensor, prepare: Callable[[Tensor], Tensor], *, last: bool = True
    ) -> ForwardPass:
        if self._cannot_record:
            return forward_at_once(fabric, model, images, prepare, last=last)
        inputs = prepare(images)
        state = (
            tuple((parameter.requires_grad, parameter.data_ptr()) for parameter in self._network.parameters()),
            tuple(module.training for module in self._network.modules()),
        )
        if state != self._state:
            self._state, self._shape = state, inputs.shape
            self._parameters = [parameter for parameter in self._network.parameters() if parameter.requires_grad]
            self._recording = None
            gc.collect()  # the memory of the recording before
            self._recording = self._recorded(fabric, inputs, self._parameters)
        if self._recording is None or inputs.shape != self._shape:
            return forward_at_once(fabric, model, images, prepare, last=last)
        return forward_pass(fabric, _Replay.apply(self._recording, inputs, *self._parameters))

    def _recorded(self, fabric: Fabric, inputs: Tensor, parameters: Sequence[Tensor]) -> Recording | None:
        """The recording, or None, after a warning, if the network cannot be recorded."""
        device, precision = inputs.device, fabric.strategy.precision
        on_gpu = device.type == "cuda"

        def forward(images: Tensor) -> Tensor:
            """As in the forward pass of a Fabric module."""
            with precision.forward_context(), _without_autocast_cache(device.type):
                embeddings = self._network(precision.convert_input(images))
            return precision.convert_output(embeddings)

        buffers = [(buffer, buffer.clone()) for buffer in self._network.buffers()]
        states = torch.get_rng_state(), torch.cuda.get_rng_state(device) if on_gpu else None
        try:
            return self._record(forward, inputs, parameters)
        except Exception as error:
            self._cannot_record = True
            reason = str(error).partition("\n")[0]
            warnings.warn(f"the network cannot be recorded as a CUDA graph, and runs as without one: {reason}", stacklevel=2)
            return None
        finally:
            with torch.no_grad():
                for buffer, before in buffers:
                    buffer.copy_(before)
            torch.set_rng_state(states[0])
            if states[1] is not None:
                torch.cuda.set_rng_state(states[1], device)


class _Replay(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, recording: Recording, images: Tensor, *parameters: nn.Parameter) -> Tensor:
        ctx.recording = recording
        return recording.forward(images).clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        gradients = ctx.recording.backward(gradient)
        return None, None, *(None if one is None else one.detach() for one in gradients)


def _without_autocast_cache(device: str) -> torch.autocast:
    """Autocast as it is, but weights are cast again at every replay: a cache would keep those of the recording."""
    dtype = torch.get_autocast_dtype(device)
    return torch.autocast(device, dtype, enabled=torch.is_autocast_enabled(device), cache_enabled=False)
