"""Push a model to the Hugging Face Hub, with a model card made from its evaluation."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from huggingface_hub import CommitInfo

    from suprank.data import Manifest
    from suprank.evaluation import Report
    from suprank.evaluation.retrieval_data import RetrievalData
    from suprank.models import Embedder
    from suprank.training import TrainConfig

    Progress = Callable[[str, int, int], None]

_log = logging.getLogger(__name__)


def push_to_hub(
    model: str | PathLike[str] | Embedder,
    repo_id: str,
    *,
    private: bool | None = None,
    revision: str | None = None,
    commit_message: str | None = None,
    token: str | bool | None = None,
    create_pr: bool = False,
    **options: Any,
) -> CommitInfo:
    """Push a run or a model to a repository on the Hugging Face Hub, with a model card; return the commit.

    `model`, `repo_id` and `options` are those of `hub_repository`, which makes the card from an evaluation; the other arguments
    are those of `Embedder.push_to_hub`.

    Example:
        >>> suprank.push_to_hub("runs/cub", "org/cub-retrieval", license="mit", private=True)  # doctest: +SKIP
    """
    from suprank.models.hub import check_token

    check_token(repo_id, token)
    return hub_repository(model, repo_id, **options).push(
        private=private, revision=revision, commit_message=commit_message, token=token, create_pr=create_pr
    )


@dataclass(frozen=True)
class HubRepository:
    """What is pushed: the embedder, the text of its model card, and further files, by name."""

    repo_id: str
    embedder: Embedder
    card: str
    files: Mapping[str, bytes]
    images: int = 0
    """Number of images of the collection that the card shows."""

    def save(self, folder: str | PathLike[str]) -> None:
        """Write the files of the repository into a folder, without connecting to anything."""
        self.embedder.save_repository(folder, self.repo_id, card=self.card, files=self.files)

    def push(self, **options: Any) -> CommitInfo:
        """Push the files as one commit; `options` are those of `Embedder.push_to_hub`."""
        return self.embedder.push_to_hub(self.repo_id, card=self.card, files=self.files, **options)


def hub_repository(
    model: str | PathLike[str] | Embedder,
    repo_id: str,
    *,
    report: str | PathLike[str] | Report | None = None,
    test: str | None = None,
    license: str | None = None,
    datasets: Sequence[str] = (),
    base_model: str | None = None,
    gallery: bool = False,
    trust_code: bool = False,
    device: str | None = None,
    progress: Progress | None = None,
) -> HubRepository:
    """The files of a repository: the model, and a card with its metrics, data and recipe, perhaps with a picture of results.

    `model` is a folder of `suprank train`, which is evaluated as `suprank evaluate` does (`test` names one of its test sets), a
    folder with a saved embedder, or an `Embedder`. `report` has the metrics of a model that is not a run, or replaces those of
    a run: a `Report`, a file that `suprank evaluate --out` saved, or a folder of `suprank embed` with this model, which is
    evaluated. Without a report such a model has a card without metrics.

    `gallery` adds a picture of random test images with their first results, where they can be read. They are **published with
    the model**, so it is off by default. `license`, `datasets` (ids on the Hub) and `base_model` (an id on the Hub; by default
    the timm model that a run started from) are metadata of the card.
    """
    from suprank.models.hub import GALLERY, REPORT
    from suprank.models.hub_names import check_repo_id
    from suprank.models.model_card import model_card
    from suprank.workflows import model_cards

    check_repo_id(repo_id)
    show = progress or (lambda what, done, total: None)
    evaluated = _evaluate(model, report, test, trust_code, device, show)
    embedder, run = evaluated.embedder, evaluated.run
    sections, files, results, images = [], {}, [], 0
    name = evaluated.dataset
    if evaluated.report is not None:
        slug = datasets[0] if datasets else _slug(name)
        split = "test" if evaluated.data is None else evaluated.data.origin.test
        sections.append(model_cards.metrics_section(evaluated.report, name))
        results = model_cards.eval_results(evaluated.report, name, slug, split)
        files[REPORT] = _report_bytes(evaluated.report)
    if gallery and evaluated.data is not None:
        from suprank.explorer.result_figures import results_picture

        if (picture := results_picture(evaluated.data)) is None:
            _log.warning("no test image of %s can be read, so that the card has no picture.", name)
        else:
            sections.append(model_cards.gallery_section(picture, GALLERY))
            files[GALLERY], images = picture.png, picture.images
    if manifests := evaluated.manifests():
        sections.append(model_cards.data_section(manifests))
    if run is not None and evaluated.config is not None:
        sections.append(model_cards.recipe_section(evaluated.config, run))
        base_model = base_model or _base_model(evaluated.config)
    metadata = {"license": license, "datasets": [*datasets] or None, "base_model": base_model}
    card = model_card(embedder, repo_id, sections=sections, results=results, metadata=metadata)
    return HubRepository(repo_id, embedder, card, files, images)


@dataclass(frozen=True)
class _EvaluatedModel:
    """A model with what is known of its evaluation: the report, the images behind it, and the run that trained it."""

    embedder: Embedder
    report: Report | None = None
    data: RetrievalData | None = None
    run: Path | None = None
    config: TrainConfig | None = None
    name: str = ""

    @property
    def dataset(self) -> str:
        """The name of the collection that was evaluated: of its file, without folders."""
        if self.config is None or self.data is None:
            return self.name or "a test set"
        manifests = self.config.data
        return Path(manifests.tests.get(self.data.origin.test, manifests.manifest)).stem

    def manifests(self) -> list[tuple[str, Manifest]]:
        """The manifests of a run, or else those of the evaluated images, with their names."""
        found: list[tuple[str, Manifest]] = []
        if self.config is not None:
            from suprank.training.manifests import open_manifest

            data = self.config.data
            files = [data.manifest]
            if self.data is not None and self.data.origin.test in data.tests:
                files.append(data.tests[self.data.origin.test])
            try:
                for file in files:
                    root = data.root if file == data.manifest else None
                    cells: dict[str, Any] = {"fill_gaps": data.fill_gaps, "label_separator": data.label_separator}
                    found.append((Path(file).stem, open_manifest(file, root, **cells)))
            except (OSError, ValueError):
                found = []  # moved since the run: what is embedded is still known
        if not found and self.data is not None:
            found = [(self.dataset, side.manifest) for side in self.data.sides]
        return found


def _evaluate(
    model: str | PathLike[str] | Embedder,
    report: str | PathLike[str] | Report | None,
    test: str | None,
    trust_code: bool,
    device: str | None,
    progress: Progress,
) -> _EvaluatedModel:
    from suprank.workflows.embeddings import load_embedder
    from suprank.workflows.opening import open_data
    from suprank.workflows.run_embeddings import load_run_model, read_run_config

    is_run = isinstance(model, str | PathLike) and (Path(model) / "recipe.toml").is_file()
    if not is_run:
        if test is not None:
            raise ValueError(f"test={test!r} is for a run, which {model} is not; leave it out.")
        return _with_report(_EvaluatedModel(load_embedder(model, trust_code=trust_code)), report, device, progress)
    run = Path(str(model))
    config, embedder = read_run_config(run), load_run_model(run, trust_code=trust_code)[0]
    known = _EvaluatedModel(embedder, run=run, config=config)
    if report is not None:
        if test is not None:
            raise ValueError(f"test={test!r} chooses what is evaluated, and the report is given; leave out one of them.")
        return _with_report(known, report, device, progress)
    data = open_data(run, test=test, device=device, progress=progress, trust_code=trust_code)
    return replace(known, data=data, report=_metrics(data, device, progress))


def _with_report(
    known: _EvaluatedModel, report: str | PathLike[str] | Report | None, device: str | None, progress: Progress
) -> _EvaluatedModel:
    """With the metrics of a report, of its file, or of a folder of embeddings; refused if they are of another model."""
    from suprank.evaluation import Report
    from suprank.evaluation.provenance import Provenance
    from suprank.workflows.evaluation import PROVENANCE
    from suprank.workflows.opening import open_data

    if report is None:
        return known
    if not isinstance(report, Report) and Path(report).is_dir():
        folder = Path(report)
        if (folder / "recipe.toml").is_file():
            raise ValueError(f"{folder} is a run, not a report; push it as the model, or give a folder of `suprank embed`.")
        _check_model(folder, known.embedder)
        data = open_data(folder, device=device, progress=progress)
        return replace(known, data=data, report=_metrics(data, device, progress), name=folder.resolve().name)
    where = "the report" if isinstance(report, Report) else str(report)
    loaded = report if isinstance(report, Report) else Report.load(report)
    made_by = Provenance.from_dict(loaded.settings.get(PROVENANCE) or {})
    parameters = sum(parameter.numel() for parameter in known.embedder.parameters())
    own = known.embedder.config.backbone
    if made_by is not None and (
        (made_by.backbone, made_by.parameters) != (own, parameters)
        or made_by.fingerprint not in (None, known.embedder.network_fingerprint())
    ):
        raise ValueError(
            f"{where} has the metrics of {made_by.network}, and the model is {own} ({parameters / 1e6:.1f} M parameters); give "
            "the report of this model."
        )
    name = "" if isinstance(report, Report) else Path(report).stem
    return replace(known, report=loaded, name=name)


def _check_model(folder: Path, embedder: Embedder) -> None:
    """Refuse embeddings of another model, whose metrics would be on the card of this one."""
    from suprank.workflows.run_embeddings import record_values

    fingerprint = embedder.fingerprint()
    for part, made_by in record_values(folder, "model").items():
        if made_by != fingerprint:
            raise ValueError(
                f"{folder / part} was embedded with another model than the one to push; embed the images with it: suprank "
                "embed MODEL MANIFEST --out DIR."
            )


def _metrics(data: RetrievalData, device: str | None, progress: Progress) -> Report:
    """The report of `suprank evaluate`."""
    from suprank.workflows.evaluation import EvaluationInput

    data.require_labels()
    return EvaluationInput.from_data(data).evaluate(
        intervals=True, device=device, progress=lambda done, total: progress("evaluating", done, total)
    )


def _base_model(config: TrainConfig) -> str | None:
    """The id on the Hub of the timm weights that a run started from; None if it started from others."""
    from suprank.models.networks import weights_repo_id
    from suprank.system.custom_code import is_custom

    model = config.model
    if model.start is not None or not model.pretrained or model.weights is not None or is_custom(model.backbone):
        return None
    return weights_repo_id(model.backbone)


def _report_bytes(report: Report) -> bytes:
    """The file of a report without the values of single queries."""
    from suprank.models.hub import REPORT

    with TemporaryDirectory(prefix="suprank-") as folder:
        file = Path(folder) / REPORT
        report.without_queries().save(file)
        return file.read_bytes()


def _slug(name: str) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in name.lower()).strip("-") or "images"
