"""Push a model to the Hugging Face Hub, with a model card made from its evaluation."""

from __future__ import annotations

import json
import logging
import math
import re
from contextlib import suppress
from os import PathLike
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple

from suprank.system.progress import stage_progress

if TYPE_CHECKING:
    from collections.abc import Sequence

    from huggingface_hub import CommitInfo, EvalResult, ModelCard

    from suprank.data.manifest import Manifest
    from suprank.evaluation import Report, RetrievalData
    from suprank.evaluation.provenance import Provenance
    from suprank.models import Embedder
    from suprank.system.progress import StageProgress
    from suprank.training import TrainConfig

_log = logging.getLogger(__name__)


def push_to_hub(
    model: str | PathLike[str] | Embedder,
    repo_id: str,
    *,
    private: bool | None = None,
    branch: str | None = None,
    commit_message: str | None = None,
    token: str | bool | None = None,
    create_pr: bool = False,
    **options: Any,
) -> CommitInfo:
    """Push a run or a model to a repository on the Hugging Face Hub, with a model card; return the commit.

    `model` and `options` are those of `write_repository`, which makes the card from an evaluation; the other arguments are
    those of `Embedder.push_to_hub`.

    Example:
        >>> suprank.push_to_hub("runs/cub", "org/cub-retrieval", license="mit", private=True)  # doctest: +SKIP
    """
    from suprank.models.hub import check_token, upload_folder

    check_token(repo_id, token)
    with TemporaryDirectory(prefix="suprank-") as folder:
        write_repository(folder, model, repo_id, **options)
        return upload_folder(
            repo_id,
            Path(folder),
            private=private,
            branch=branch,
            commit_message=commit_message,
            token=token,
            create_pr=create_pr,
        )


def write_repository(
    folder: str | PathLike[str],
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
    progress: bool | StageProgress = True,
) -> ModelCard:
    """Write what `push_to_hub` pushes: the model, and a card with its metrics, data and recipe; return the card.

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

    check_repo_id(repo_id)
    evaluated = _evaluate(model, report, test, trust_code, device, stage_progress(progress))
    config, data, name = evaluated.config, evaluated.data, evaluated.dataset
    out, sections = Path(folder), dict[str, Any]()
    evaluated.embedder.save(out)
    for file in (GALLERY, REPORT):
        (out / file).unlink(missing_ok=True)  # of an earlier call
    if evaluated.report is not None:
        slug = datasets[0] if datasets else re.sub(r"[\W_]", "-", name.lower()).strip("-") or "images"
        sections["metrics"] = _metrics(evaluated.report, name)
        sections["results"] = _eval_results(evaluated.report, name, slug, "test" if data is None else data.origin.test)
        evaluated.report.without_queries().save(out / REPORT)
    if gallery and data is not None:
        from suprank.explorer.result_figures import results_picture

        if (picture := results_picture(data)) is None:
            _log.warning("no test image of %s can be read, so that the card has no picture.", name)
        else:
            sections["gallery"] = {"file": GALLERY, "alt": picture.alt, "queries": picture.queries}
            (out / GALLERY).write_bytes(picture.png)
            _log.info("the card shows %s test images, which are published with it.", f"{picture.images:,}")
    if manifests := _manifests(evaluated):
        sections["data"] = _data(manifests)
    if config is not None:
        sections["training"] = _training(config, Path(str(model)))
        base_model = base_model or _base_model(config)
    if license is None:
        _log.info("the card names no license; license=ID names one.")
    metadata = {"license": license, "datasets": [*datasets] or None, "base_model": base_model}
    card = model_card(evaluated.embedder, repo_id, metadata=metadata, **sections)
    card.save(out / "README.md")
    return card


class _Evaluated(NamedTuple):
    """A model, the config of the run that trained it, and its metrics with the images behind them, as far as there are any."""

    embedder: Embedder
    config: TrainConfig | None = None
    report: Report | None = None
    data: RetrievalData | None = None
    dataset: str = "a test set"


def _evaluate(
    model: str | PathLike[str] | Embedder,
    report: str | PathLike[str] | Report | None,
    test: str | None,
    trust_code: bool,
    device: str | None,
    progress: StageProgress,
) -> _Evaluated:
    from suprank.evaluation import Report, evaluate
    from suprank.evaluation.evaluate import PROVENANCE
    from suprank.evaluation.provenance import Provenance
    from suprank.workflows.embeddings import load_embedder
    from suprank.workflows.opening import open_data
    from suprank.workflows.run_embeddings import read_run_config

    run = Path(model) if isinstance(model, str | PathLike) and (Path(model) / "recipe.toml").is_file() else None
    if test is not None and (run is None or report is not None):
        raise ValueError(f"test={test!r} chooses a test set of a run, which is evaluated without a report; leave it out.")
    embedder = load_embedder(model, trust_code=trust_code)
    known = _Evaluated(embedder, None if run is None else read_run_config(run))
    if report is None and run is None:
        return known
    if isinstance(report, Report) or (report is not None and not Path(report).is_dir()):
        loaded, what = (report, "the report") if isinstance(report, Report) else (Report.load(report), str(report))
        _check_model(Provenance.from_dict(loaded.settings.get(PROVENANCE) or {}), embedder, what)
        return known._replace(report=loaded, dataset=known.dataset if loaded is report else Path(what).stem)
    place = Path(str(model if report is None else report))
    if report is not None and (place / "recipe.toml").is_file():
        raise ValueError(f"{place} is a run, not a report; push it as the model, or give a folder of `suprank embed`.")
    data = open_data(place, test=test, device=device, progress=progress, trust_code=trust_code)
    _check_model(data.origin.made_by, embedder, str(place))
    metrics = evaluate(data, intervals=True, device=device, progress=lambda done, total: progress("evaluating", done, total))
    dataset = place.resolve().name
    if known.config is not None and report is None:
        dataset = Path(known.config.data.tests.get(data.origin.test, known.config.data.manifest)).stem
    return known._replace(report=metrics, data=data, dataset=dataset)


def _check_model(made_by: Provenance | None, embedder: Embedder, what: str) -> None:
    """Refuse the metrics of another model than the one to push, or of images that it would read differently."""
    from suprank.embedding import ImageLoaderSettings
    from suprank.evaluation.provenance import check_comparable
    from suprank.workflows.embeddings import query_provenance

    settings = ImageLoaderSettings.for_model(embedder)
    own = query_provenance(embedder, settings, (1.0,) if made_by is None else made_by.scales)
    check_comparable(made_by, own, (what, "the model to push"), _log.info)


def _manifests(evaluated: _Evaluated) -> list[tuple[str, Manifest]]:
    """The manifests of a run, or else those of the evaluated images, with their names."""
    from suprank.training.manifests import open_manifest

    tested = evaluated.data
    if evaluated.config is not None:
        data = evaluated.config.data
        files = [(data.manifest, data.root)]
        if tested is not None and tested.origin.test in data.tests:
            files.append((data.tests[tested.origin.test], None))
        with suppress(OSError, ValueError):  # moved since the run: what is embedded is still known
            return [(Path(file).stem, open_manifest(file, root)) for file, root in files]
    sides = () if tested is None else tested.sides
    return [(evaluated.dataset, side.manifest) for side in sides]


def _base_model(config: TrainConfig) -> str | None:
    """The id on the Hub of the timm weights that a run started from; None if it started from others."""
    from suprank.models.networks import weights_repo_id
    from suprank.system.custom_code import is_custom

    model = config.model
    if model.start is not None or not model.pretrained or model.weights is not None or is_custom(model.backbone):
        return None
    return weights_repo_id(model.backbone)


# Sections of the card: what suprank/models/model_card.md.jinja shows


def _metrics(report: Report, dataset: str) -> dict[str, Any]:
    """The metrics that `suprank evaluate` prints, with the same digits."""
    from markupsafe import Markup

    from suprank.evaluation.quoted_metrics import metric_grid, quoted_keys
    from suprank.evaluation.report_text import (
        counts_without_positives,
        interval_lines,
        percent_with_interval,
        pluralize,
    )

    columns, rows = metric_grid(report, quoted_keys(report))
    about = f"In percent, on {dataset}: {pluralize(report.n_queries, 'query', 'queries')}, {report.n_items:,} items."
    if lines := interval_lines(report):
        about += f" {'. '.join(lines)}"
    if without := counts_without_positives(report):
        about += f" Queries without positives, left out: {', '.join(without)}."
    return {
        "about": about,
        "header": ["%", *columns],
        "rows": [
            [name, *(Markup(percent_with_interval(report, keys[column]) if column in keys else "") for column in columns)]
            for name, keys in rows.items()
        ],
        "has_recall": any(name.startswith("R@") for name in rows),
    }


def _eval_results(report: Report, dataset: str, dataset_id: str, split: str) -> list[EvalResult]:
    """The same metrics for the metadata of the card, which the Hub shows beside it; those that are undefined are left out."""
    from huggingface_hub import EvalResult

    from suprank.evaluation.quoted_metrics import metric_grid, quoted_keys
    from suprank.evaluation.report_text import percent

    _, rows = metric_grid(report, quoted_keys(report))
    cells = [(name, column, key) for name, keys in rows.items() for column, key in keys.items()]
    return [
        EvalResult(
            task_type="image-retrieval",
            task_name="Image retrieval",
            dataset_type=dataset_id,
            dataset_name=dataset,
            dataset_split=split,
            metric_type=re.sub(r"[^a-z0-9]+", "_", name.lower().replace("@", "_at_")),
            metric_name=name if len(report.levels) < 2 else f"{name} ({column})",
            metric_value=float(percent(report[key])),
        )
        for name, column, key in cells
        if not math.isnan(report[key])
    ]


def _data(manifests: Sequence[tuple[str, Manifest]]) -> dict[str, Any]:
    """Images and classes of every split, for each named manifest."""
    from suprank.data.class_statistics import class_statistics

    levels = list(dict.fromkeys(level for _, manifest in manifests for level in manifest.levels))
    rows = []
    for name, manifest in manifests:
        counts = class_statistics(manifest).counts
        for split, images in manifest.splits.items():
            classes = [f"{counts[level].get(split, 0):,}" if level in counts else "" for level in levels]
            rows.append([f"{name}, {split}", f"{images:,}", *classes])
    return {"header": ["split", "images", *(f"labels of {level}" for level in levels)], "rows": rows}


def _training(config: TrainConfig, run: Path) -> dict[str, Any]:
    """The recipe of a run and the versions and GPUs it was trained with.

    Paths are the names of their files, and loggers are left out: the address of an MLflow server may have a password in it.
    """
    from suprank.training.recipe import to_toml

    shown = type(config).model_validate(_without_folders(config.model_dump(exclude={"logging"})))
    return {"config": shown, "recipe": to_toml(shown).rstrip(), "environment": _environment(run)}


def _environment(run: Path) -> dict[str, str]:
    """Versions and GPUs of the last session of a run; nothing if its file is gone."""
    from suprank.files.atomic import own_file
    from suprank.training.run_folder import ENVIRONMENT

    try:
        session: dict[str, Any] = json.loads(own_file(run / ENVIRONMENT).read_bytes())["sessions"][-1]
        known = {name: number for name, number in session["versions"].items() if number}
        gpus: list[str] = session["gpus"]
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return {}
    device = f"{len(gpus)} × {gpus[0]}" if len(gpus) > 1 else gpus[0] if gpus else "CPU"
    return {"trained with": ", ".join(f"{name} {number}" for name, number in known.items()), "trained on": device}


def _without_folders(value: Any) -> Any:
    """The values of a recipe with the names of files in place of their paths."""
    if isinstance(value, dict):
        return {key: _without_folders(one) for key, one in value.items()}
    if isinstance(value, str) and re.match(r"[/\\~]|[A-Za-z]:[/\\]|\.\.", value):
        return re.split(r"[/\\]", value)[-1]
    return value
