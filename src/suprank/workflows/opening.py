"""`open_data`: stored embeddings of any place as `RetrievalData`, with their labels."""

from __future__ import annotations

import json
import logging
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

from suprank.files.atomic import own_file
from suprank.files.reading import reading
from suprank.system.progress import stage_progress

if TYPE_CHECKING:
    from collections.abc import Sequence
    from os import PathLike

    from suprank.evaluation.retrieval_data import Items, RetrievalData
    from suprank.models import Head
    from suprank.system.progress import StageProgress

RECIPE, REPORTS = "recipe.toml", "reports"
PLACES = (
    "a folder of `suprank train` or `suprank embed`, a file of embeddings (.npy, .parquet, .pt), or a Hugging Face dataset "
    "with a column of embeddings"
)

_log = logging.getLogger(__name__)


def open_data(
    place: str | PathLike[str],
    labels: str | PathLike[str] | None = None,
    gallery: str | PathLike[str] | None = None,
    gallery_labels: str | PathLike[str] | None = None,
    *,
    levels: Sequence[str] = (),
    test: str | None = None,
    frozen: bool = False,
    head: str | PathLike[str] | Head | None = None,
    id_column: str | None = None,
    fill_gaps: bool = False,
    label_separator: str | None = None,
    trust_code: bool = False,
    device: str | None = None,
    shown_in: str | None = None,
    progress: bool | StageProgress = True,
) -> RetrievalData:
    """Open stored embeddings with their labels, to evaluate, compare, search or look at them.

    `place` is one of

    - a run, a folder of `suprank train`: its test images, embedded now if they are not yet. `test` names one of its test sets,
      by default the manifest's own or else the first of `data.tests`; `frozen` takes its backbone before training. A run with a
      backbone of your own needs `trust_code` to embed images. A report in a run's folder `reports` stands for that run.
    - a folder of `suprank embed`, or one of its parts. Queries are ranked against the gallery, or else test images against each
      other and against distractors; train images are used if there is nothing else.
    - a file of embeddings (.npy, .parquet, .pt) with `labels` in a file (.csv, .tsv, .parquet, .npy): see
      `RetrievalData.from_files`, which has `id_column`, `fill_gaps` and `label_separator` too. Labels beside embeddings in one
      Parquet file need no second name. Of a manifest, images can be shown as well.
    - a Hugging Face dataset with a column of embeddings: a folder of `save_to_disk` or of Parquet files, or an .arrow file. Its
      splits are ranked as the parts of a folder are. Labels, ids (`id_column`) and `label_separator` are those of
      `suprank data import hf`, so `datasets` has to be installed.

    `levels` chooses levels, finest first; one that the images lack is refused. `head`, a folder of `suprank adapt` or a `Head`,
    is applied to queries and gallery. Images without labels have no levels. Broken images are left out. `shown_in` names a page
    or a search that shows images one by one: they need paths, and one label at each level. `progress` draws bars while images
    are embedded and embeddings go through the head, or is called with (what, done, total).

    Example:
        >>> suprank.open_data("runs/roadmap")  # doctest: +SKIP
        RetrievalData(roadmap: 5,924 queries × 512 rank each other; species, genus and family)
    """
    from suprank.workflows.embedding_datasets import import_dataset, is_dataset, read_splits
    from suprank.workflows.heads import load_head

    show = stage_progress(progress)
    loaded = None if head is None else load_head(head, device)  # first: a wrong head should not wait for a run's images
    path = Path(place)
    if path.suffix.lower() == ".json":
        path, test = _run_of_report(path, test)
    if not is_run(path) and (frozen or test is not None):
        raise ValueError(f"{path} is not a run, so it has one test set and one model; leave out test and frozen.")
    if dataset := not _is_ours(path) and is_dataset(path):
        if any(given is not None for given in (labels, gallery, gallery_labels)) or fill_gaps:
            raise ValueError(f"{path} is a dataset, which has its own labels and gallery; leave out other ones, and fill_gaps.")
        data = read_splits(path, import_dataset(path, levels, id_column, label_separator))
    elif path.is_dir():
        check_place(path)
        if any(given is not None for given in (labels, gallery, gallery_labels, id_column, label_separator)) or fill_gaps:
            raise ValueError(f"{path} is a folder, which has its own labels, gallery and ids; to use others, name files.")
        if is_run(path):
            data = _open_run(path, test, device, show, frozen=frozen, trust_code=trust_code, shown_in=shown_in)
        else:
            data = _open_folder(path)
    else:
        cells: dict[str, Any] = {"id_column": id_column, "fill_gaps": fill_gaps, "label_separator": label_separator}
        data = _open_file(place, labels, gallery, gallery_labels, shown_in=shown_in, levels=levels, **cells)
    if path.is_dir() and not dataset:  # levels of others are their columns
        data = data.at_levels(levels or data.levels)
    if shown_in is not None:
        data.require_single_labels(shown_in)
    return data if loaded is None else data.with_head(loaded, show)


def is_run(place: str | PathLike[str]) -> bool:
    """Whether this is a folder of `suprank train`."""
    return own_file(Path(place) / RECIPE).is_file()


def _is_ours(place: Path) -> bool:
    """Whether this is a folder of `suprank train` or `suprank embed`, or a part of one."""
    if not place.is_dir():
        return False
    from suprank.embedding.parts import embedded_parts, has_embeddings

    return is_run(place) or has_embeddings(place) or bool(embedded_parts(place))


def test_of(place: str | PathLike[str], test: str | None, places: Sequence[str | PathLike[str]]) -> str | None:
    """The test set to open of one of several places: runs have several, and what stands beside a run has none to choose."""
    return test if is_run(place) or not any(map(is_run, places)) else None


def check_place(folder: Path) -> None:
    """Refuse a folder without embeddings, before any work."""
    from suprank.embedding.parts import PARTS, has_embeddings

    parts = (folder / part for part in PARTS)
    if folder.is_dir() and not (is_run(folder) or has_embeddings(folder) or any(map(Path.is_dir, parts))):
        raise ValueError(f"{folder} has no embeddings; name {PLACES}.{_about_images(folder)}")


def _run_of_report(file: Path, test: str | None) -> tuple[Path, str]:
    """The run, and the test set, of a report in its folder `reports`."""
    run = file.parent.parent
    if file.parent.name != REPORTS or not is_run(run):
        raise ValueError(f"{file} has numbers and no embeddings; open the folder that it is from: {PLACES}.")
    reported = unquote(file.name.partition("-epoch-")[0])
    if test not in (None, reported):
        raise ValueError(f"{file} is of the test set {reported!r}, and not of {test!r}; leave out test.")
    return run, reported


def _open_run(
    run: Path,
    test: str | None,
    device: str | None,
    progress: StageProgress,
    *,
    frozen: bool,
    trust_code: bool,
    shown_in: str | None,
) -> RetrievalData:
    from suprank.evaluation.retrieval_data import MetricDefaults, Origin
    from suprank.evaluation.units import TRAINING
    from suprank.workflows.run_embeddings import FROZEN, embed_run, embeddings_folder

    name = embed_run(run, test, device, progress, frozen=frozen, trust_code=trust_code, shown_in=shown_in)
    with reading(run / RECIPE, "recipe"):
        recipe = tomllib.loads(own_file(run / RECIPE).read_text(encoding="utf-8"))
    wanted = recipe.get("data", {}).get("levels") or ()
    evaluation = recipe.get("evaluation", {})
    usual = MetricDefaults()
    defaults = MetricDefaults(
        ks=tuple(evaluation.get("ks", usual.ks)),
        decay=float(evaluation.get("decay", usual.decay)),
        weights=evaluation.get("level_weights") or None,
    )
    training: dict[str, Any] | None = None
    if not frozen:
        written = sorted((run / REPORTS).glob(f"{quote(name, safe=' ')}-epoch-*.json"))
        training = {}
        for last in written[-1:]:
            with reading(last, "report"):
                training = dict(json.loads(own_file(last).read_bytes())["settings"].get(TRAINING) or {})
    for text in (training or {}).get("repeated", ()):
        _log.warning("%s", text)
    place = run / FROZEN if frozen else run
    folder = embeddings_folder(place, name)
    origin = Origin(place, folder, name, frozen, None if frozen else recipe, training)
    about = f"{run.resolve().name} before training" if frozen else run.resolve().name
    data = replace(read_parts(folder, about, origin), defaults=defaults)
    # As in training, a test set is evaluated at those of the recipe's levels that it has.
    return data.at_levels([level for level in wanted if level in data.levels] or data.levels)


def _open_folder(folder: Path) -> RetrievalData:
    """A folder of `suprank embed`, or one of its parts."""
    from suprank.data.duplicates import repeated_images
    from suprank.data.manifest import Manifest
    from suprank.embedding.parts import has_embeddings
    from suprank.embedding.shards import ITEMS
    from suprank.evaluation.retrieval_data import Origin

    if has_embeddings(folder):
        return read_parts(folder.parent, folder.resolve().name, Origin(folder, folder), [folder.resolve().name])
    data = read_parts(folder, folder.resolve().name, Origin(folder, folder))
    train = folder / "train" / ITEMS
    manifest = data.queries.manifests[0]
    training = Manifest.read(train) if train.is_file() and "train" not in manifest.splits else manifest.take([])
    for text in repeated_images(manifest, training, str(folder)):
        _log.warning("%s", text)
    return data


def read_parts(folder: Path, name: str, origin: Any, chosen: Sequence[str] = ()) -> RetrievalData:
    """The parts of a folder that are ranked (see `ranked_parts`), or the chosen ones, without broken images.

    Parts and broken images that are left out are logged. A part that was begun and not finished is an error.
    """
    from suprank.embedding.parts import PARTS, read_embedded
    from suprank.embedding.query_gallery import combine_parts, ranked_parts
    from suprank.evaluation.provenance import Provenance

    present = [part for part in PARTS if (folder / part).is_dir()]
    ranked = tuple(chosen) or ranked_parts(present)
    for part in present:
        if not chosen and part not in ranked:
            _log.info("%s is left out: %s is evaluated", part, " against ".join(ranked))
    parts = {part: read_embedded(folder, part) for part in ranked}
    for part, embedded in parts.items():
        if embedded.broken:
            images = "broken image is" if embedded.broken == 1 else "broken images are"
            _log.info("%s: %s %s left out", part, f"{embedded.broken:,}", images)
    return combine_parts(
        {part: (embedded.embeddings, embedded.items) for part, embedded in parts.items()},
        name=name,
        origin=replace(origin, made_by=Provenance.read(folder, ranked[0])),
    )


def _open_file(
    place: str | PathLike[str],
    labels: str | PathLike[str] | None,
    gallery: str | PathLike[str] | None,
    gallery_labels: str | PathLike[str] | None,
    *,
    shown_in: str | None,
    **cells: Any,
) -> RetrievalData:
    from suprank.evaluation.retrieval_data import RetrievalData

    path = Path(place)
    if labels is None and (cells["levels"] or _has_labels(path)):
        labels, gallery_labels = place, gallery
    if path.suffix.lower() in ("", ".arrow") and not path.exists():
        raise FileNotFoundError(f"there is no {path}; name {PLACES}.")
    data = RetrievalData.from_files(place, labels, gallery, gallery_labels, **cells)
    if shown_in is None:
        return data
    sides = [_with_manifest(side, file) for side, file in zip(data.sides, (labels, gallery_labels), strict=False)]
    return replace(data, queries=sides[0], gallery=None if data.gallery is None else sides[1])


def _has_labels(file: Path) -> bool:
    """Whether there are labels beside the embeddings in a Parquet file."""
    from suprank.files.binary import open_parquet

    if file.suffix.lower() != ".parquet" or not file.is_file():
        return False
    with open_parquet(file) as opened:
        return any(name.startswith("label") for name in opened.schema_arrow.names)


def _with_manifest(items: Items, file: str | PathLike[str] | None) -> Items:
    """The items with their paths, if the file of their labels is a manifest."""
    from suprank.data.manifest import Manifest

    return items if file is None else replace(items, manifests=(Manifest.read(file),))


def _about_images(folder: Path) -> str:
    """What to do with a folder of photos."""
    from suprank.data.importers.folder import IMAGES

    if not any(file.suffix.lower() in IMAGES for file in folder.rglob("*")):
        return ""
    return f" It is a folder of images: first `suprank data import folder {folder}`, then `suprank embed`."
