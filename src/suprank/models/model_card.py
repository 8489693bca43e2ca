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
        is_custom=is_custom(backbone),
        embedder=embedder,
        config=embedder.config,
        millions=sum(parameter.numel() for parameter in embedder.parameters()) / 1e6,
        versions={"suprank": __version__, "timm": version("timm"), "torch": version("torch")},
        metrics=metrics,
        gallery=gallery,
        data=data,
        training=training,
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
