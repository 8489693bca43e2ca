"""The sections of a model card that come from an evaluation: metrics, a picture of results, data, and the recipe of a run."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from huggingface_hub import EvalResult

    from suprank.data import Manifest
    from suprank.evaluation import Report
    from suprank.explorer.result_figures import ResultsPicture
    from suprank.training import TrainConfig

TASK = "image-retrieval"


def metrics_section(report: Report, dataset: str) -> str:
    """The metrics that `suprank evaluate` prints, with the same digits."""
    from suprank.evaluation.quoted_metrics import metric_grid, quoted_keys
    from suprank.evaluation.report_text import (
        counts_without_positives,
        interval_lines,
        percent_with_interval,
        pluralize,
    )
    from suprank.models.model_card import escape, table

    columns, rows = metric_grid(report, quoted_keys(report))
    cells = [
        [escape(name), *(percent_with_interval(report, keys[column]) if column in keys else "" for column in columns)]
        for name, keys in rows.items()
    ]
    about = f"In percent, on {escape(dataset)}: {pluralize(report.n_queries, 'query', 'queries')}, {report.n_items:,} items."
    if lines := interval_lines(report):
        about += f" {escape('. '.join(lines))}"
    if without := counts_without_positives(report):
        about += f" Queries without positives, left out: {escape(', '.join(without))}."
    lines = ["## Metrics", about, table(["%", *map(escape, columns)], cells, numbers=True)]
    if any(name.startswith("R@") for name in rows):
        lines.append("R@k is the share of queries with an item of their class among the first k.")
    return "\n\n".join([*lines, "`report.json` has all metrics in full precision."])


def eval_results(report: Report, dataset: str, dataset_id: str, split: str) -> list[EvalResult]:
    """The same metrics for the metadata of the card, which the Hub shows beside it; those that are undefined are left out."""
    from huggingface_hub import EvalResult

    from suprank.evaluation.quoted_metrics import metric_grid, quoted_keys
    from suprank.evaluation.report_text import percent

    _, rows = metric_grid(report, quoted_keys(report))
    cells = [(name, column, key) for name, keys in rows.items() for column, key in keys.items()]
    return [
        EvalResult(
            task_type=TASK,
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


def gallery_section(picture: ResultsPicture, file: str) -> str:
    """The picture of queries and their first results."""
    from suprank.models.model_card import escape

    count = f"{picture.queries} random test images" if picture.queries > 1 else "A random test image"
    return f"## What it retrieves\n\n![{escape(picture.alt)}]({file})\n\n{count} as queries, not chosen by result."


def data_section(manifests: Sequence[tuple[str, Manifest]]) -> str:
    """Images and classes of every split, for each named manifest."""
    from suprank.data.class_statistics import class_statistics
    from suprank.models.model_card import escape, table

    levels = list(dict.fromkeys(level for _, manifest in manifests for level in manifest.levels))
    rows = []
    for name, manifest in manifests:
        counts = class_statistics(manifest).counts
        for split, images in manifest.splits.items():
            classes = [f"{counts[level].get(split, 0):,}" if level in counts else "" for level in levels]
            rows.append([escape(f"{name}, {split}"), f"{images:,}", *classes])
    header = ["split", "images", *(f"labels of {escape(level)}" for level in levels)]
    return f"## Data\n\n{table(header, rows, numbers=True)}"


def recipe_section(config: TrainConfig, run: Path) -> str:
    """The recipe of a run, without paths of the machine, and the versions and GPUs it was trained with."""
    from suprank.models.model_card import code, escape, table
    from suprank.system.custom_code import is_custom
    from suprank.training.recipe import to_toml

    model, batch, schedule = config.model, config.batch, config.optimizer
    weights = (
        code(_without_folders(model.weights)) if model.weights else "timm's weights" if model.pretrained else "random weights"
    )
    start = "a saved embedder"
    if model.start is None:
        own = "" if is_custom(model.backbone) and not model.weights else f" with {weights}"
        start = f"{code(_without_folders(model.backbone))}{own}"
    facts = {
        "loss": code(_without_folders(config.loss.name)),
        "started from": start,
        "epochs": f"{config.run.epochs:,}",
        "batch": f"{batch.size:,} images, {batch.images_per_class:,} of a class",
        "optimizer": f"{schedule.name}, learning rate {schedule.lr:g}, {schedule.schedule}",
        "seed": str(config.run.seed),
        **{name: escape(text) for name, text in _environment(run).items()},
    }
    text = to_toml(_publishable(config))
    details = f"<details>\n<summary>The whole recipe</summary>\n\n```toml\n{text.rstrip()}\n```\n\n</details>"
    return f"## Training\n\n{table(['setting', 'value'], facts.items())}\n\n{details}"


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


def _publishable(config: TrainConfig) -> TrainConfig:
    """The recipe with names of files in place of their absolute paths, and without loggers: nobody else's business.

    The address of an MLflow server may have a password in it.
    """
    config = config.model_copy(update={"logging": config.logging.model_copy(update={"wandb": None, "mlflow": None})})
    tables = {}
    for name in type(config).model_fields:
        part = getattr(config, name)
        values = {key: getattr(part, key) for key in type(part).model_fields}
        changed = {key: _without_folders(value) for key, value in values.items() if _without_folders(value) != value}
        tables[name] = part.model_copy(update=changed)
    return config.model_copy(update=tables)


def _without_folders(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_folders(one) for key, one in value.items()}
    if isinstance(value, str) and re.match(r"[/\\~]|[A-Za-z]:[/\\]|\.\.", value):
        return re.split(r"[/\\]", value)[-1]
    return value
