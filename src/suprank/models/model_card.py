"""The model card of an embedder: the README.md of its repository on the Hugging Face Hub, with metadata that the Hub shows."""

from __future__ import annotations

import re
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from suprank import __version__
from suprank.models.hub_names import HubName
from suprank.system.custom_code import HUB, is_custom

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from huggingface_hub import EvalResult

    from suprank.models.embedder import Embedder

TAGS = ("image-retrieval", "metric-learning", "image-embeddings")


def model_card(
    embedder: Embedder,
    repo_id: str,
    *,
    sections: Sequence[str] = (),
    results: Sequence[EvalResult] = (),
    metadata: Mapping[str, Any] | None = None,
) -> str:
    """The text of a model card: what the model is, how to use it, `sections` in Markdown, and its settings.

    `results` are metrics that the Hub shows beside the card, and `metadata` further entries for the Hub, such as license,
    datasets and base_model. A backbone of the Hub is the base_model if no other is given.
    """
    from huggingface_hub import ModelCardData

    config = embedder.config
    known: dict[str, Any] = {"base_model": None, **(metadata or {})}
    if known["base_model"] is None and config.backbone.startswith(HUB):
        known["base_model"] = HubName.parse(config.backbone).repo_id
    name = repo_id.rpartition("/")[2]
    entries = ModelCardData(
        library_name="suprank",
        pipeline_tag="image-feature-extraction",
        tags=[*TAGS],
        model_name=name if results else None,
        eval_results=[*results] or None,
        **known,
    )
    summary = (
        f"An image embedder for retrieval: {code(config.backbone)} turns an image into a unit vector of width "
        f"{embedder.dim:,}, and similar images have vectors with a large dot product. Made with suprank."
    )
    parts = [f"# {escape(name)}", summary, _usage(embedder, repo_id), *sections, _settings(embedder)]
    return f"---\n{entries.to_yaml()}\n---\n\n" + "\n\n".join(parts) + "\n"


def table(header: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: bool = False) -> str:
    """A Markdown table of cells in Markdown; with `numbers`, all columns but the first are aligned to the right."""
    lines = [header, ["---", *("---:" if numbers else "---" for _ in header[1:])], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def escape(text: str) -> str:
    """Text from files as Markdown that shows it as it is, in one line.

    Example:
        >>> print(escape("<b>a|b*"))
        &lt;b&gt;a\\|b\\*
    """
    text = " ".join(text.split()).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_{}\[\]#|~$!])", r"\\\1", text)


def code(text: str) -> str:
    """Text from files as code in Markdown, in one line."""
    return f"`{' '.join(text.split()).replace('`', chr(39)).replace('|', '¦')}`"


def _usage(embedder: Embedder, repo_id: str) -> str:
    backbone, trust, option = embedder.config.backbone, "", ""
    lines = ["## How to use it", ""]
    if is_custom(backbone):
        trust, option = ", trust_code=True", " --trust-code"
        lines += [
            f"The network is code of the author's, {code(backbone)}, which is not part of this repository, because suprank "
            "downloads no code. Get it from the author, and load the model where Python finds it. `trust_code` runs it.",
            "",
        ]
    lines += [
        '```console\n$ pip install "suprank[vision]"\n```',
        "",
        "```python",
        "from PIL import Image",
        "from suprank.embedding import ImageLoaderSettings",
        "from suprank.models import Embedder",
        "",
        f'embedder = Embedder.from_pretrained("{repo_id}"{trust})',
        "loading = ImageLoaderSettings.for_model(embedder)",
        'image = loading.transform(Image.open("photo.jpg").convert("RGB"))',
        "embedding = loading.before(embedder)(image[None])",
        "```",
        "",
        "A whole collection, and its metrics (`suprank data import` makes the manifest):",
        "",
        "```console",
        f"$ suprank embed {HUB}{repo_id} manifest.parquet --out embeddings{option}",
        "$ suprank evaluate embeddings",
        "```",
    ]
    return "\n".join(lines)


def _settings(embedder: Embedder) -> str:
    config, images = embedder.config, embedder.input
    resized = (
        f"{'both sides' if images.squash else 'short side'} resized to {images.resize}" if images.resize else "not resized"
    )
    size = f"{images.size[0]} × {images.size[1]} pixels"
    parameters = sum(parameter.numel() for parameter in embedder.parameters())
    rows = {
        "backbone": code(config.backbone),
        "parameters": f"{parameters / 1e6:.1f} M",
        "pooling": config.pooling,
        "normalization": config.normalization,
        "projection": "none" if config.dim is None else f"linear, width {config.dim:,}",
        "head": "none" if config.head is None else f"{config.head.in_features:,} → {config.head.out_features:,}",
        "images": f"{size} from the center, {resized}, {images.interpolation}",
        "mean, std": f"{', '.join(f'{one:g}' for one in images.mean)}; {', '.join(f'{one:g}' for one in images.std)}",
        "precision": config.precision or "fp32",
        "written by": f"suprank {__version__}, timm {version('timm')}, torch {version('torch')}",
    }
    weights = "`model.safetensors` has the weights and `embedder.json` the settings; there is no code in this repository."
    return f"## Model\n\n{table(['setting', 'value'], rows.items())}\n\n{weights}"
