"""The paper's datasets: where they are found, and how they are imported.

A dataset is found as a manifest, DIR/sop.parquet or OUT/data/sop.parquet, or else as the folder that its authors publish, which
is imported into OUT/data. DIR is never written to. A manifest in DIR takes precedence over one in OUT, and both over importing.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from suprank.data import Manifest
from suprank.data.importers import BENCHMARKS
from suprank.files.outputs import check_folder
from suprank.models import Embedder
from suprank.models.config import EmbedderConfig
from suprank.models.model_folder import SETTINGS
from suprank.workflows.embeddings import default_batch_size, loader_settings, save_pca

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from suprank.data.importers import Importer

FOLDER = "data"
"""Folder in OUT for manifests and the start model."""

START_NAME = "hgldv2-start"
START = EmbedderConfig(backbone="resnet101", pooling="gem", normalization="l2", dim=2048, freeze_batchnorm=True)
"""The network that runs on H-GLDv2 start from; its projection is a PCA."""

START_IMAGE_SIZE = 1024
"""Side of the images of the PCA, which lose their aspect ratio."""

_LANDMARKS_PAGE = "Project page: Google Landmarks v2 (cvdfoundation/google-landmark, GitHub), with the hierarchical labels"


class MissingDataError(FileNotFoundError):
    """Datasets that were not found; the message has a paragraph for each, with the command that imports it."""


class PaperDataset(NamedTuple):
    """A dataset of the paper, with the names that its raw folder usually has, and how the folder is recognized.

    A raw folder has, of each tuple in `markers`, at least one file or folder. If `named`, other datasets have the same files,
    and only the folder's name tells which it is. `tests` are the names of additional test sets in `data.tests`.
    """

    preset: str
    folders: tuple[str, ...]
    markers: tuple[tuple[str, ...], ...]
    tests: tuple[str, ...] = ()
    named: bool = False
    needs_start: bool = False

    @property
    def importer(self) -> Importer:
        """The importer of `suprank data import`."""
        return BENCHMARKS[self.preset]

    @property
    def title(self) -> str:
        return self.importer.title.partition(":")[0]

    @property
    def import_command(self) -> str:
        """The command that imports the dataset by hand."""
        return f"suprank data import {self.preset} {self.folders[0]} --out {self.preset}.parquet"

    def manifests(self, folder: Path) -> dict[str, Path]:
        """The files of the manifests in a folder, by their key in a recipe."""
        files = {"data.manifest": folder / f"{self.preset}.parquet"}
        return files | {f"data.tests.{test}": folder / f"{self.preset}-{test}.parquet" for test in self.tests}

    def missing_files(self, folder: Path) -> list[str]:
        """What a folder lacks of a raw folder of this dataset."""
        return [" or ".join(names) for names in self.markers if not any((folder / name).exists() for name in names)]


class Found(NamedTuple):
    """Where a dataset is: its `manifests` by their key in a recipe, or its `raw` folder. If both are empty, it is missing.

    `description` says what was found, or what to do. `start` is the model that training starts from; None if it needs none, or
    if it has to be created first.
    """

    preset: str
    manifests: Mapping[str, Path]
    raw: Path | None
    start: Path | None
    description: str

    @property
    def is_missing(self) -> bool:
        return not self.manifests and self.raw is None


class Prepared(NamedTuple):
    """Overrides that let the recipes of a preset find their data, with absolute paths, and what was found."""

    overrides: tuple[str, ...]
    description: str


def find(preset: str, data: Path | None, out: Path) -> Found:
    """Look for a dataset in the folder of the user's data and in OUT; nothing is changed."""
    dataset = DATASETS[preset]
    for folder in _manifest_folders(data, out):
        files = {key: file.absolute() for key, file in dataset.manifests(folder).items()}
        if all(file.is_file() for file in files.values()):
            start, sentence = _find_start(dataset, data, out)
            return Found(preset, files, None, start, f"manifest {files['data.manifest']}{sentence}")
    raw = _find_raw(dataset, data)
    if raw is not None:
        start, sentence = _find_start(dataset, data, out)
        return Found(preset, {}, raw, start, f"raw images {raw}, to be imported{sentence}")
    return Found(preset, {}, None, None, _describe_missing(dataset, data))


def find_all(presets: Iterable[str], data: Path | None, out: Path) -> dict[str, Found]:
    """Look for several datasets; a `MissingDataError` lists all that are missing."""
    found = {preset: find(preset, data, out) for preset in dict.fromkeys(presets)}
    if missing := [one.description for one in found.values() if one.is_missing]:
        raise MissingDataError("\n".join(missing))
    return found


def prepare(preset: str, data: Path | None, out: Path, *, note: Callable[[str], None]) -> Prepared:
    """Import a dataset into OUT/data unless it has a manifest, and create the model that training starts from if it needs one.

    `note` is called with sentences on what is done. An interrupted import leaves no manifest, and starts again.
    """
    dataset, found = DATASETS[preset], find_all([preset], data, out)[preset]
    manifests = dict(found.manifests) or _import(dataset, found.raw, out, note)
    overrides = {key: str(file) for key, file in manifests.items()}
    if dataset.needs_start:
        start = found.start or create_start(manifests["data.manifest"], (out / FOLDER / START_NAME).absolute(), note=note)
        overrides["model.start"] = str(start)
    return Prepared(tuple(f"{key}={file}" for key, file in overrides.items()), found.description)


def create_start(
    manifest: Path,
    folder: Path,
    network: EmbedderConfig = START,
    *,
    image_size: int = START_IMAGE_SIZE,
    pretrained: bool = True,
    note: Callable[[str], None],
) -> Path:
    """Save the network with a projection by PCA of the features of the train images, as `suprank models create --pca` does."""
    check_folder(folder)
    images = Manifest.read(manifest).split("train")
    note(f"computing a PCA of {len(images):,} train images at {image_size} × {image_size} pixels for {folder}")
    embedder = Embedder(network.model_copy(update={"dim": None}), pretrained=pretrained).eval()
    sizes = {"size": image_size, "resize": image_size, "squash": True}
    loading = loader_settings(embedder, sizes, default_batch_size(None), None, "raise")
    save_pca(
        embedder,
        images,
        folder,
        dim=network.dim or embedder.features_dim,
        loading=loading,
        progress=_note_tenths("images of the PCA", note),
    )
    return folder


def _import(dataset: PaperDataset, raw: Path | None, out: Path, note: Callable[[str], None]) -> dict[str, Path]:
    assert raw is not None, "find_all refuses what is missing"
    note(f"importing {dataset.title} from {raw}")
    imported = dataset.importer(raw)
    for sentence in imported.sentences:
        note(sentence)
    files = imported.files((out / FOLDER / f"{dataset.preset}.parquet").absolute())
    for file, manifest in files.items():
        manifest.save(file)
    return {key: file.absolute() for key, file in dataset.manifests(out / FOLDER).items()}


def _note_tenths(what: str, note: Callable[[str], None]) -> Callable[[int, int], None]:
    """A progress function that notes every tenth of the work, which may take hours."""
    noted = [0]

    def progress(done: int, total: int) -> None:
        if 10 * done // total > noted[0]:
            noted[0] = 10 * done // total
            note(f"{done:,} of {total:,} {what}")

    return progress


def _manifest_folders(data: Path | None, out: Path) -> list[Path]:
    """The folders of manifests and start models, the user's first."""
    return [folder for folder in (data, out / FOLDER) if folder is not None]


def _find_raw(dataset: PaperDataset, data: Path | None) -> Path | None:
    candidates = _named_folders(dataset, data)
    if data is not None and not dataset.named:
        candidates.append(data)
    return next((folder.absolute() for folder in candidates if not dataset.missing_files(folder)), None)


def _named_folders(dataset: PaperDataset, data: Path | None) -> list[Path]:
    """The user's folder itself and the folders in it that are called like the dataset, whatever case and hyphens they have."""
    if data is None or not data.is_dir():
        return []
    names = {_plain(name) for name in dataset.folders}
    folders = {data: data.resolve().name} | {entry: entry.name for entry in sorted(data.iterdir()) if entry.is_dir()}
    return [folder for folder, name in folders.items() if _plain(name) in names]


def _plain(name: str) -> str:
    return name.lower().replace("-", "_")


def _find_start(dataset: PaperDataset, data: Path | None, out: Path) -> tuple[Path | None, str]:
    """The folder of the start model, and a sentence on it for the description."""
    if not dataset.needs_start:
        return None, ""
    for folder in _manifest_folders(data, out):
        if (folder / START_NAME / SETTINGS).is_file():
            return (folder / START_NAME).absolute(), f"; start model {(folder / START_NAME).absolute()}"
    size = START_IMAGE_SIZE
    return None, f"; start model to be created: {START.backbone} with a PCA of the train images at {size} × {size} pixels"


def _describe_missing(dataset: PaperDataset, data: Path | None) -> str:
    names = [file.name for file in dataset.manifests(Path()).values()]
    where = "no folder of data was named (data)" if data is None else f"{data} does not exist"
    if data is not None and data.is_dir():
        where = f"{data} has neither {', '.join(names)} nor a folder {dataset.folders[0]}"
        if present := [name for name in names if (data / name).is_file()]:
            where = f"{data} has {', '.join(present)}, but not {', '.join(name for name in names if name not in present)}"
        elif wrong := _named_folders(dataset, data):
            where = f"{wrong[0]} is not the folder of the dataset: it has no {', no '.join(dataset.missing_files(wrong[0]))}"
    page = next((line for line in dataset.importer.layout.splitlines() if line.startswith("Project page")), _LANDMARKS_PAGE)
    return (
        f"{dataset.preset} ({dataset.title}) is missing: {where}. {page}. Put the folder {dataset.folders[0]} into "
        f"the folder of data, or import it yourself and put the manifest there: {dataset.import_command}"
    )


_INAT = ("inaturalist2018", "inaturalist_2018", "inat2018", "inat_2018", "inaturalist", "inat")
_INAT_LISTS = tuple((f"Inat_dataset_splits/Inaturalist_{split}_set1.txt",) for split in ("train", "test"))
_DYML_TESTS = ("fine", "middle", "coarse")
_DYML_FILES = (("train/label.csv",), *((f"bmk_{test}/query.csv",) for test in _DYML_TESTS))
_LANDMARKS = tuple(
    tuple(f"{folder}{name}" for name in names for folder in ("", "metadata/"))
    for names in (
        ("train_clean.csv",),
        ("train_label_to_hierarchical.csv", "train_label_to_subcategory_with_clusters.csv"),
        ("index_label_to_hierarchical.csv", "index_label_to_subcategory_with_clusters.csv"),
    )
)

DATASETS: dict[str, PaperDataset] = {
    dataset.preset: dataset
    for dataset in (
        PaperDataset("sop", ("Stanford_Online_Products", "sop", "online_products"), (("Ebay_train.txt",), ("Ebay_test.txt",))),
        PaperDataset(
            "cub",
            ("CUB_200_2011", "cub", "cub200", "cub_200"),
            (("images.txt", "images/001.Black_footed_Albatross"), ("images",)),
        ),
        PaperDataset("inat-base", _INAT, _INAT_LISTS),
        PaperDataset("inat-full", _INAT, (*_INAT_LISTS, ("categories.json", "train2018.json"))),
        PaperDataset("dyml-vehicle", ("dyml_vehicle", "vehicle"), _DYML_FILES, tests=_DYML_TESTS, named=True),
        PaperDataset("dyml-animal", ("dyml_animal", "animal"), _DYML_FILES, tests=_DYML_TESTS, named=True),
        PaperDataset("dyml-product", ("dyml_product", "product"), (("train/label.csv",), ("mini-bmk_all_in_one/label.csv",))),
        PaperDataset(
            "hgldv2",
            ("google-landmark", "google-landmarks", "google-landmarks-v2", "gldv2", "hgldv2", "h-gldv2"),
            _LANDMARKS,
            needs_start=True,
        ),
    )
}
"""The datasets of the paper by the preset of their recipes."""
