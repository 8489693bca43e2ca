"""Embedders as models of mteb, and image retrieval tasks of mteb as manifests."""

from __future__ import annotations

import hashlib
import io
import json
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from suprank.files.atomic import write_atomically
from suprank.system import torchvision_operators
from suprank.system.extras import explain_missing_extra

with suppress(ImportError):  # datasets imports torchvision, where there is one
    torchvision_operators.declare()

with explain_missing_extra(__name__):
    import datasets
    import mteb
    from mteb.abstasks.retrieval import AbsTaskRetrieval
    from mteb.models.abs_encoder import AbsEncoder
    from mteb.models.model_meta import ModelMeta, ScoringFunction
    from mteb.types import PromptType
    from tqdm.auto import tqdm

    from suprank.data.datasets import ImageBatch
    from suprank.data.images import decode_image
    from suprank.data.manifest import Manifest
    from suprank.data.workers import ignore_signals, loader_batches, start_method
    from suprank.embedding import ImageLoaderSettings
    from suprank.models import Embedder
    from suprank.models.inference import embed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from os import PathLike

    from mteb.abstasks.abstask import AbsTask
    from mteb.abstasks.task_metadata import TaskMetadata
    from numpy.typing import NDArray

    from suprank.models.config import Precision

__all__ = ["ImageEncoder", "task_manifest"]

MANIFEST, QRELS, TASK = "manifest.parquet", "qrels.json", "task.json"
"""The files that `task_manifest` writes, beside the folder `images`."""


class ImageEncoder(AbsEncoder):  # type: ignore[misc]  # mypy does not read mteb
    """An embedder as a model of mteb: `mteb.evaluate(ImageEncoder("runs/roadmap"), tasks)`.

    `model` is an `Embedder`, a folder in which one was saved, or a folder of `suprank train`. Images are read from the bytes of
    the dataset, decoded and transformed as `suprank embed` does, so that both give the same embeddings: mteb's own decoding
    is not used. `size`, `resize`, `squash` and `precision` override the model's own, as there; mteb then keeps the results
    under another name. `batch_size` is by default that of mteb's `encode_kwargs`.

    Similarity is the cosine. Only images are embedded: tasks with text are refused. `name`, with an organization before the
    slash, is the model's name in mteb's results; its revision is the fingerprint of the weights.
    """

    def __init__(
        self,
        model: str | PathLike[str] | Embedder,
        revision: str | None = None,
        *,
        device: str | None = None,
        name: str | None = None,
        size: int | None = None,
        resize: int | None = None,
        squash: bool | None = None,
        precision: Precision | None = None,
        batch_size: int | None = None,
        trust_code: bool = False,
    ) -> None:
        self.embedder = _load_embedder(model, trust_code=trust_code)
        overrides = {"size": size, "resize": resize, "squash": squash}
        self.loading = ImageLoaderSettings.for_model(self.embedder, **overrides)  # type: ignore[arg-type]
        self.device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        self.precision, self.batch_size = precision, batch_size
        given = {key: value for key, value in {**overrides, "precision": precision}.items() if value is not None}
        parameters = sum(parameter.numel() for parameter in self.embedder.parameters())
        self.mteb_model_meta = ModelMeta(
            loader=None,
            name=name or f"suprank/{_model_name(model, self.embedder)}",
            revision=revision or self.embedder.fingerprint()[:16],
            release_date=None,
            languages=None,
            n_parameters=parameters,
            memory_usage_mb=round(4 * parameters / 2**20, 1),
            max_tokens=None,
            embed_dim=self.embedder.dim,
            license=None,
            open_weights=None,
            public_training_code=None,
            public_training_data=None,
            framework=["PyTorch"],
            similarity_fn_name=ScoringFunction.COSINE,
            use_instructions=False,
            training_datasets=None,
            modalities=["image"],
            experiment_kwargs=given or None,
        )

    def encode(
        self,
        inputs: DataLoader[Any],
        *,
        task_metadata: TaskMetadata,
        hf_split: str,
        hf_subset: str,
        prompt_type: PromptType | None = None,
        **kwargs: Any,
    ) -> NDArray[np.float32]:
        """The embeddings of the images of a loader of mteb, float32 `[images, dim]`."""
        images = _stored_images(inputs.dataset, task_metadata, prompt_type)
        loader: DataLoader[Any] = DataLoader(
            _TaskImages(images, self.loading),
            batch_size=self.batch_size or int(kwargs.get("batch_size") or 32),
            num_workers=inputs.num_workers,
            multiprocessing_context=start_method(inputs.num_workers),
            collate_fn=_collate,
            worker_init_fn=ignore_signals,
        )
        embeddings = np.empty((len(images), self.embedder.dim), np.float32)
        shown = kwargs.get("show_progress_bar", True)
        batches = tqdm(loader_batches(loader), desc="embedding", total=len(loader), disable=not shown)
        forward = self.loading.before(self.embedder)
        for rows, some in embed(self.embedder, batches, device=self.device, precision=self.precision, forward=forward):
            embeddings[rows] = some
        return embeddings


def _load_embedder(model: str | PathLike[str] | Embedder, *, trust_code: bool) -> Embedder:
    if isinstance(model, Embedder):
        return model
    folder = Path(model)
    saved = folder / "model" if (folder / "recipe.toml").is_file() else folder
    if not saved.is_dir():
        raise FileNotFoundError(
            f"{saved} is not a folder; give an Embedder, a folder in which one was saved, or a folder of `suprank train`."
        )
    return Embedder.load(saved, trust_code=trust_code)


def _model_name(model: str | PathLike[str] | Embedder, embedder: Embedder) -> str:
    name = embedder.config.backbone if isinstance(model, Embedder) else Path(model).resolve().name
    return name.replace("/", "_")


class _TaskImages(Dataset[tuple[int, torch.Tensor]]):
    """The images of a task, decoded by suprank and transformed for the model."""

    def __init__(self, images: datasets.Dataset, loading: ImageLoaderSettings) -> None:
        self.images, self.loading = images, loading

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, row: int) -> tuple[int, torch.Tensor]:
        picture = decode_image(
            _image_bytes(self.images[row]["image"]), f"image {row} of the task", min_short_side=self.loading.min_short_side
        )
        return row, self.loading.transform(picture)


def _collate(items: list[tuple[int, torch.Tensor]]) -> ImageBatch:
    rows, images = zip(*items, strict=True)
    return ImageBatch(torch.stack(images), torch.empty(len(rows), 0), torch.tensor(rows), ())


def _stored_images(dataset: Any, metadata: TaskMetadata, side: PromptType | None) -> datasets.Dataset:
    """The images as they are stored, not decoded; refused unless there are images and nothing else."""
    modalities = metadata.get_modalities(side)
    if list(modalities) != ["image"]:
        part = "inputs" if side is None else {"query": "queries", "document": "documents"}[side.value]
        raise ValueError(
            f"{metadata.name} has {part} of {' and '.join(modalities)}, but suprank's models embed images only; choose a task "
            f"between images: mteb.get_tasks(categories=['i2i'])."
        )
    if not isinstance(dataset, datasets.Dataset) or not isinstance(dataset.features.get("image"), datasets.Image):
        raise TypeError(f"{metadata.name}: the inputs have no column `image` of datasets.Image; give a loader of mteb's own.")
    return dataset.select_columns("image").cast_column("image", datasets.Image(decode=False))


def _image_bytes(stored: Mapping[str, Any]) -> bytes:
    return stored["bytes"] if stored["bytes"] is not None else Path(stored["path"]).read_bytes()


# Tasks


def task_manifest(
    task: str | AbsTask,
    folder: str | PathLike[str],
    *,
    data: str | PathLike[str] | None = None,
    split: str | None = None,
    subset: str | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Manifest:
    """Write an image retrieval task of mteb as a manifest of queries and gallery, with its images and judgments; return it.

    `folder` gets `manifest.parquet` (for `suprank embed`), `images/` (each image once, as it is stored in the dataset),
    `qrels.json`, and `task.json` with what mteb does about the query itself, the k, and the main score. Then
    `suprank.evaluate(embeddings, truth=folder / "qrels.json")` is mteb's number of the task.

    `task` is the name of a task or a task. Its data are those of mteb: in the cache of `datasets`, or downloaded. `data` is a
    folder with the files of the dataset's repository instead. `split` is by default the first that mteb evaluates, `subset`
    the only one. Queries without judgments are left out, as mteb does. A call that was interrupted skips images that exist.
    """
    chosen = _find_task(task)
    if data is not None:
        chosen.metadata = chosen.metadata.model_copy(update={"dataset": {**chosen.metadata.dataset, "path": str(Path(data))}})
    subset, split, parts = _load_task(chosen, subset, split)
    judgments = {str(query): dict(judged) for query, judged in parts["relevant_docs"].items() if judged}
    names = [str(name) for name in parts["queries"]["id"]]
    queries = parts["queries"].select([row for row, name in enumerate(names) if name in judgments])
    out = Path(folder)
    (out / "images").mkdir(parents=True, exist_ok=True)
    sides = {"query": (queries, PromptType.query), "gallery": (parts["corpus"], PromptType.document)}
    total = sum(len(side) for side, _ in sides.values())
    columns: dict[str, list[str]] = {"path": [], "split": [], "id": []}
    for name, (rows, side) in sides.items():
        images = _stored_images(rows, chosen.metadata, side)
        for path, identity in zip(_saved_images(images, out), rows["id"], strict=True):
            for column, value in zip(columns, (path, name, str(identity)), strict=True):
                columns[column].append(value)
            progress(len(columns["path"]), total)
    manifest = Manifest.from_columns(columns, root=out, levels=(), about=f"the task {chosen.metadata.name}")
    write_atomically(out / QRELS, json.dumps(judgments).encode())
    write_atomically(out / TASK, json.dumps(_describe(chosen, subset, split), indent=1).encode())
    manifest.save(out / MANIFEST)
    return manifest


def _find_task(task: str | AbsTask) -> AbsTaskRetrieval:
    if isinstance(task, str):
        try:
            found = mteb.get_task(task)
        except KeyError:
            names = [one.metadata.name for one in mteb.get_tasks(categories=["i2i"], task_types=["Any2AnyRetrieval"])]
            raise ValueError(f"mteb has no task {task!r}; choose from {', '.join(sorted(names))}.") from None
    else:
        found = task
    metadata = found.metadata
    if not isinstance(found, AbsTaskRetrieval) or metadata.category != "i2i":
        raise ValueError(
            f"{metadata.name} ({metadata.type}, {metadata.category}) does not retrieve images by an image; choose one of "
            f"mteb.get_tasks(categories=['i2i'], task_types=['Any2AnyRetrieval'])."
        )
    return found


def _load_task(task: AbsTaskRetrieval, subset: str | None, split: str | None) -> tuple[str, str, Any]:
    """The subset and split of a task, with its corpus, queries and judgments, loaded if need be."""
    if not task.data_loaded:
        try:
            task.load_data()
        except (OSError, RuntimeError) as error:  # of the hub, which cannot be reached, or of a folder without data
            where = task.metadata.dataset["path"]
            raise FileNotFoundError(
                f"the data of {task.metadata.name} cannot be loaded from {where} ({type(error).__name__}: {error}); download "
                f"that dataset repository and give its folder as data."
            ) from error
    task.convert_v1_dataset_format_to_v2(num_proc=None)
    subsets = list(task.dataset)
    if subset is None and len(subsets) > 1:
        raise ValueError(f"{task.metadata.name} has the subsets {', '.join(subsets)}; choose one.")
    subset = subset or subsets[0]
    if subset not in subsets:
        raise ValueError(f"{task.metadata.name} has no subset {subset!r}; choose from {', '.join(subsets)}.")
    splits = list(task.dataset[subset])
    split = split or next((one for one in task.eval_splits if one in splits), splits[0])
    if split not in splits:
        raise ValueError(f"{task.metadata.name} has no split {split!r}; choose from {', '.join(splits)}.")
    parts = task.dataset[subset][split]
    if parts.get("top_ranked"):
        raise ValueError(f"{task.metadata.name} reranks given lists, and a manifest has none; choose a retrieval task.")
    return subset, split, parts


def _saved_images(images: datasets.Dataset, out: Path) -> Iterator[str]:
    """Write every image under the digest of its bytes, and yield its path relative to `out`."""
    from PIL import Image

    for row in images:
        content = _image_bytes(row["image"])
        with Image.open(io.BytesIO(content)) as picture:
            kind = (picture.format or "img").lower()
        path = f"images/{hashlib.sha256(content).hexdigest()[:32]}.{kind}"
        if not (out / path).is_file():
            write_atomically(out / path, content)
        yield path


def _describe(task: AbsTaskRetrieval, subset: str, split: str) -> dict[str, Any]:
    if task.skip_first_result and task.ignore_identical_ids:
        raise ValueError(f"{task.metadata.name} drops the first result and the query's id too, which self_match cannot do.")
    return {
        "name": task.metadata.name,
        "self_match": "first" if task.skip_first_result else "id" if task.ignore_identical_ids else "keep",
        "ks": list(task.k_values),
        "main_score": task.metadata.main_score,
        "subset": subset,
        "split": split,
        "dataset": dict(task.metadata.dataset),
        "mteb": mteb.__version__,
    }
