"""Exporting an embedder or a head as one file that runs without suprank: ONNX, a program of `torch.export`, or for a head a
NumPy matrix. All are verified."""

from __future__ import annotations

import copy
import io
import logging
import warnings
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch

from suprank.files.atomic import explain_full_disk
from suprank.models.head import Head

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from os import PathLike

    from numpy.typing import NDArray
    from torch import Tensor

    from suprank.models.embedder import Embedder

    Model = TypeVar("Model", bound=Embedder | Head)

TOLERANCE = 1e-4  # in any entry of a unit vector; other kernels sum in another order
CHECKED_BATCHES = (1, 3)  # neither is the batch size that is traced: the number of images must have stayed free
TRACED_BATCH = 2


class ExportError(RuntimeError):
    """An export whose embeddings differ from the embedder's; no file was written."""


def export_onnx(model: Embedder | Head, path: str | PathLike[str], *, image_size: tuple[int, int] | None = None) -> float:
    """Write an ONNX file (`images` [batch, 3, height, width] → `embeddings` [batch, dim]); returns the largest difference.

    The number of images is free, their size is `image_size` (default: the embedder's). A head has `vectors` [batch, in] in
    place of images. Before the file gets its name, onnxruntime runs it on batches of 1 and 3; an entry of an embedding that
    differs by more than 1e-4 is an `ExportError`.
    """
    try:
        import onnx  # noqa: F401
        import onnxruntime
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise ImportError(f'ONNX export needs {error.name}; pip install "suprank[export]"', name=error.name) from error
    traced, inputs, name = _traceable(model, image_size)
    with _unverified_file(Path(path)) as file:
        with _quiet():
            torch.onnx.export(
                traced,
                (inputs,),
                file,
                dynamo=True,
                external_data=False,
                verbose=False,
                input_names=[name],
                output_names=["embeddings"],
                dynamic_shapes=({0: torch.export.Dim("batch")},),
            )
        session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
        return _difference(traced, lambda x: torch.from_numpy(session.run(None, {name: x.numpy()})[0]), inputs)


def export_program(model: Embedder | Head, path: str | PathLike[str], *, image_size: tuple[int, int] | None = None) -> float:
    """Write a `torch.export` program (.pt2, for `torch.export.load(path).module()`); returns the largest difference.

    The number of images is free, their size is `image_size` (default: the embedder's). A head takes vectors [batch, in]. Before
    the file gets its name, it is loaded and run on batches of 1 and 3; an entry of an embedding that differs by more than 1e-4
    is an `ExportError`.
    """
    if Path(path).suffix != ".pt2":
        raise ValueError(f"{Path(path)} must end in .pt2, because torch.export requires it.")
    traced, inputs, _ = _traceable(model, image_size)
    with _unverified_file(Path(path)) as file, _quiet():
        program = torch.export.export(traced, (inputs,), dynamic_shapes=({0: torch.export.Dim("batch")},))
        written = io.BytesIO()  # torch does not report a full disk as such
        torch.export.save(program, written)
        file.write_bytes(written.getbuffer())
        return _difference(traced, torch.export.load(file).module(), inputs)


def export_matrix(head: Head, path: str | PathLike[str]) -> float:
    """Write a head without an MLP as a NumPy archive (.npz); returns the largest difference to the head on random vectors.

    It has `weight` [out, in] and `bias` [out] in float32 and `normalization`, a string. For "l2", the head is

        vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
        embeddings = vectors @ weight.T + bias
        embeddings = embeddings / np.linalg.norm(embeddings, axis=1, keepdims=True)

    For "none" the first line is left out, and for "layer" it is the LayerNorm
    `(vectors - vectors.mean(1, keepdims=True)) / np.sqrt(vectors.var(1, keepdims=True) + 1e-5)`. With "none" or "l2" and a bias
    of 0, the cosines after the head are those of `vectors @ weight.T`, a matrix product and nothing else, because scaling a
    vector does not change its cosines. A file whose embeddings differ by more than 1e-4 is an `ExportError`.
    """
    if Path(path).suffix != ".npz":
        raise ValueError(f"{Path(path)} must end in .npz.")
    if head.config.hidden:
        raise ValueError(
            f"this head has an MLP of width {head.config.hidden}, so that it is no matrix; export it as .onnx, or train a head "
            "without one."
        )
    traced, inputs, _ = _traceable(head, None)
    arrays = {name: getattr(traced.linear, name).numpy() for name in ("weight", "bias")}
    with _unverified_file(Path(path)) as file:
        written = io.BytesIO()  # a name without .npz at its end would get one
        np.savez(written, **arrays, normalization=np.array(head.config.normalization))
        file.write_bytes(written.getbuffer())
        with np.load(file) as matrix:
            return _difference(traced, lambda x: torch.from_numpy(_apply_matrix(matrix, x.numpy())), inputs)


def _apply_matrix(matrix: Mapping[str, NDArray[Any]], vectors: NDArray[Any]) -> NDArray[Any]:
    """What the docstring of `export_matrix` says, with vectors of zeros as torch has them."""
    normalization = str(matrix["normalization"])
    if normalization == "l2":
        vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True).clip(1e-12)
    elif normalization == "layer":
        vectors = (vectors - vectors.mean(1, keepdims=True)) / np.sqrt(vectors.var(1, keepdims=True) + 1e-5)
    embeddings = vectors @ matrix["weight"].T + matrix["bias"]
    return np.asarray(embeddings / np.linalg.norm(embeddings, axis=1, keepdims=True).clip(1e-12))


def _traceable(model: Model, image_size: tuple[int, int] | None) -> tuple[Model, Tensor, str]:
    """A copy on the CPU in float32 and evaluation mode, inputs of the right size for tracing, and the name of the input."""
    traced = copy.deepcopy(model)
    traced.to("cpu", torch.float32).eval().requires_grad_(False)
    generator = torch.Generator().manual_seed(0)
    if isinstance(model, Head):
        return traced, torch.randn(TRACED_BATCH, model.config.in_features, generator=generator), "vectors"
    return traced, torch.randn(TRACED_BATCH, 3, *(image_size or model.input.size), generator=generator), "images"


def _difference(model: Embedder | Head, exported: Callable[[Tensor], Any], inputs: Tensor) -> float:
    """The largest difference in any entry of the embeddings of both; an `ExportError` if it is above the tolerance, or NaN."""
    generator, largest = torch.Generator().manual_seed(1), 0.0
    for batch in CHECKED_BATCHES:
        inputs = torch.randn(batch, *inputs.shape[1:], generator=generator)
        with torch.no_grad():
            difference = (exported(inputs) - model(inputs)).abs().max().item()
        if not difference <= TOLERANCE:
            kind, name = ("head", "this head") if isinstance(model, Head) else ("embedder", model.config.backbone)
            raise ExportError(
                f"the exported embeddings differ from the {kind}'s by {difference:.2g}, more than {TOLERANCE:g}; torch "
                f"{torch.__version__} does not export {name} correctly."
            )
        largest = max(largest, difference)
    return largest


@contextmanager
def _unverified_file(path: Path) -> Iterator[Path]:
    """A file beside `path`, which gets its name when the block ends, and is removed if the block fails."""
    file = path.with_name(f".unverified.{path.name}")
    try:
        with explain_full_disk(path):
            yield file
            file.replace(path)
    finally:
        file.unlink(missing_ok=True)


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the exporters' warnings about their internals, which a caller cannot change; errors are still raised."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
