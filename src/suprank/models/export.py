"""Exporting an embedder as one file that runs without suprank: ONNX, or a program of `torch.export`. Both are verified."""

from __future__ import annotations

import copy
import io
import logging
import warnings
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from suprank.files.atomic import explain_full_disk

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from os import PathLike

    from torch import Tensor

    from suprank.models.embedder import Embedder

TOLERANCE = 1e-4  # in any entry of a unit vector; other kernels sum in another order
CHECKED_BATCHES = (1, 3)  # neither is the batch size that is traced: the number of images must have stayed free
TRACED_BATCH = 2


class ExportError(RuntimeError):
    """An export whose embeddings differ from the embedder's; no file was written."""


def export_onnx(embedder: Embedder, path: str | PathLike[str], *, image_size: tuple[int, int] | None = None) -> float:
    """Write an ONNX file (`images` [batch, 3, height, width] → `embeddings` [batch, dim]); returns the largest difference.

    The number of images is free, their size is `image_size` (default: the embedder's). Before the file gets its name,
    onnxruntime runs it on batches of 1 and 3; an entry of an embedding that differs by more than 1e-4 is an `ExportError`.
    """
    try:
        import onnx  # noqa: F401
        import onnxruntime
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise ImportError(f'ONNX export needs {error.name}; pip install "suprank[export]"', name=error.name) from error
    model, images = _traceable(embedder, image_size)
    with _unverified_file(Path(path)) as file:
        with _quiet():
            torch.onnx.export(
                model,
                (images,),
                file,
                dynamo=True,
                external_data=False,
                verbose=False,
                input_names=["images"],
                output_names=["embeddings"],
                dynamic_shapes={"images": {0: torch.export.Dim("batch")}},
            )
        session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
        return _difference(model, lambda x: torch.from_numpy(session.run(None, {"images": x.numpy()})[0]), images)


def export_program(embedder: Embedder, path: str | PathLike[str], *, image_size: tuple[int, int] | None = None) -> float:
    """Write a `torch.export` program (.pt2, for `torch.export.load(path).module()`); returns the largest difference.

    The number of images is free, their size is `image_size` (default: the embedder's). Before the file gets its name, it is
    loaded and run on batches of 1 and 3; an entry of an embedding that differs by more than 1e-4 is an `ExportError`.
    """
    if Path(path).suffix != ".pt2":
        raise ValueError(f"{Path(path)} must end in .pt2, because torch.export requires it.")
    model, images = _traceable(embedder, image_size)
    with _unverified_file(Path(path)) as file, _quiet():
        program = torch.export.export(model, (images,), dynamic_shapes={"images": {0: torch.export.Dim("batch")}})
        written = io.BytesIO()  # torch does not report a full disk as such
        torch.export.save(program, written)
        file.write_bytes(written.getbuffer())
        return _difference(model, torch.export.load(file).module(), images)


def _traceable(embedder: Embedder, image_size: tuple[int, int] | None) -> tuple[Embedder, Tensor]:
    """A copy on the CPU in float32 and evaluation mode, and images of the right size for tracing."""
    model = copy.deepcopy(embedder).to("cpu", torch.float32).eval().requires_grad_(False)
    size = image_size or embedder.input.size
    return model, torch.randn(TRACED_BATCH, 3, *size, generator=torch.Generator().manual_seed(0))


def _difference(model: Embedder, exported: Callable[[Tensor], Any], images: Tensor) -> float:
    """The largest difference in any entry of the embeddings of both; an `ExportError` if it is above the tolerance, or NaN."""
    generator, largest = torch.Generator().manual_seed(1), 0.0
    for batch in CHECKED_BATCHES:
        images = torch.randn(batch, *images.shape[1:], generator=generator)
        with torch.no_grad():
            difference = (exported(images) - model(images)).abs().max().item()
        if not difference <= TOLERANCE:
            raise ExportError(
                f"the exported embeddings differ from the embedder's by {difference:.2g}, more than {TOLERANCE:g}; torch "
                f"{torch.__version__} does not export {model.config.backbone} correctly."
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
