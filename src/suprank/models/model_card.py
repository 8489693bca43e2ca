"""The model card of an embedder: the README.md of its repository on the Hugging Face Hub, with metadata that the Hub shows."""

from __future__ import annotations

import re
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from suprank import __version__
from suprank.models.hub_names import HubName
from suprank.system.custom_code import HUB, is_custom

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from huggingface_hub import EvalResult, ModelCard
    from markupsafe import Markup

    from suprank.models.embedder import Embedder


def model_card(
    embedder: Embedder,
    repo_id: str,
    *,
    metadata: Mapping[str, Any] | None = None,
    results: Sequence[EvalResult] = (),
    metrics: Mapping[str, Any] | None = None,
    gallery: Mapping[str, Any] | None = None,
    data: Mapping[str, Any] | None = None,
    training: Mapping[str, Any] | None = None,
) -> ModelCard:
    """The card of a model: what it is, how to use it, its settings, and what `model_card.md.jinja` makes of the last four.

    `results` are metrics that the Hub shows beside the card, and `metadata` further entries for the Hub, such as license,
    datasets and base_model. A backbone of the Hub is the base_model if no other is given. Text is escaped: see `markdown`.
    """
    import jinja2
    from huggingface_hub import ModelCard, ModelCardData

    name, backbone = repo_id.rpartition("/")[2], embedder.config.backbone
    entries = {**embedder._hub_mixin_info.model_card_data.to_dict(), **(metadata or {})}
    if entries.get("base_model") is None and backbone.startswith(HUB):
        entries["base_model"] = HubName.parse(backbone).repo_id
    if results:
        entries |= {"model_name": name, "eval_results": [*results]}
    environment = jinja2.Environment(
        finalize=markdown, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )
    environment.filters["code"] = code
    environment.globals["table"] = table
    text = environment.from_string(Path(__file__).with_name("model_card.md.jinja").read_text(encoding="utf-8")).render(
        name=name,
        repo_id=repo_id,
        hub=HUB,
        backbone=backbone,
        is_custom=is_custom(backbone),
        dim=f"{embedder.dim:,}",
        metrics=metrics,
        gallery=gallery,
        data=data,
        training=training,
        settings=_settings(embedder),
    )
    return ModelCard(f"---\n{ModelCardData(**entries).to_yaml()}\n---\n\n{text}")


def markdown(value: object) -> Markup:
    """Text as Markdown that shows it as it is, in one line; what is marked as Markdown already stays. Done to all of a card.

    Example:
        >>> print(markdown("<b>a|b*"))
        &lt;b&gt;a\\|b\\*
    """
    from markupsafe import Markup

    if isinstance(value, Markup):
        return value
    text = " ".join(str(value).split()).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return Markup(re.sub(r"([\\`*_{}\[\]#|~$!])", r"\\\1", text))


def code(text: str) -> Markup:
    """Text as code in Markdown, in one line."""
    from markupsafe import Markup

    return Markup(f"`{' '.join(text.split()).replace('`', chr(39)).replace('|', '¦')}`")


def table(header: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: bool = False) -> Markup:
    """A Markdown table; with `numbers`, all columns but the first are aligned to the right."""
    from markupsafe import Markup

    lines = [map(markdown, header), ["---", *("---:" if numbers else "---" for _ in header[1:])]]
    return Markup("\n".join(f"| {' | '.join(line)} |" for line in (*lines, *(map(markdown, row) for row in rows))))


def _settings(embedder: Embedder) -> list[tuple[str, str]]:
    config, images = embedder.config, embedder.input
    resized = (
        f"{'both sides' if images.squash else 'short side'} resized to {images.resize}" if images.resize else "not resized"
    )
    size = f"{images.size[0]} × {images.size[1]} pixels"
    parameters = sum(parameter.numel() for parameter in embedder.parameters())
    return [
        ("backbone", code(config.backbone)),
        ("parameters", f"{parameters / 1e6:.1f} M"),
        ("pooling", config.pooling),
        ("normalization", config.normalization),
        ("projection", "none" if config.dim is None else f"linear, width {config.dim:,}"),
        ("head", "none" if config.head is None else f"{config.head.in_features:,} → {config.head.out_features:,}"),
        ("images", f"{size} from the center, {resized}, {images.interpolation}"),
        ("mean, std", f"{', '.join(f'{one:g}' for one in images.mean)}; {', '.join(f'{one:g}' for one in images.std)}"),
        ("precision", config.precision or "fp32"),
        ("written by", f"suprank {__version__}, timm {version('timm')}, torch {version('torch')}"),
    ]
