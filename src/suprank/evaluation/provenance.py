"""The model and the preprocessing that made the embeddings of a folder: a search refuses others, a comparison warns of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from suprank.files.atomic import own_file

if TYPE_CHECKING:
    from os import PathLike

RESULT, RECORD = "embeddings.npy", "run.json"
"""In the folder of a part: its embeddings, and how they were made."""

_TITLES = {
    "backbone": "backbone",
    "size": "image size",
    "resize": "resize",
    "squash": "squash",
    "interpolation": "interpolation",
    "fast_jpeg": "fast JPEG decoding",
    "decoder": "JPEG decoder",
    "precision": "precision",
    "scales": "scales",
}
_OF_VECTORS = {  # precision and decoders are left out: an image still finds itself
    "fingerprint": "model",
    "head": "head",
    **{name: _TITLES[name] for name in ("backbone", "size", "resize", "squash", "interpolation", "scales")},
}


@dataclass(frozen=True)
class Provenance:
    """The backbone and its number of parameters, the preprocessing of images (see `EmbedderConfig`), precision and scales; the
    fingerprint of the head that the embeddings went through, None without one; and that of the model before the head
    (`Embedder.network_fingerprint`), None if it is not known.

    Example:
        >>> run = Provenance("resnet50", 24_557_120, size=112, resize=0)
        >>> run.summary
        'resnet50 (24.6 M parameters), 112 pixels, not resized, bilinear, fp32'
        >>> run.differences(Provenance("resnet50", 24_557_120, size=224, resize=256))
        ['image size 112 against 224', 'resize none against 256']
    """

    backbone: str
    parameters: int
    size: int
    resize: int
    squash: bool = False
    interpolation: str = "bilinear"
    fast_jpeg: bool = False
    decoder: str = "pil"
    precision: str = "fp32"
    scales: tuple[float, ...] = (1.0,)
    head: str | None = None
    fingerprint: str | None = None

    @classmethod
    def read(cls, out: str | PathLike[str], part: str) -> Self | None:
        """The provenance of a part of a folder that `embed_collection` wrote; None if its record does not say, as for a
        transform of the caller's."""
        try:
            record = json.loads(own_file(Path(out) / part / RECORD).read_bytes())
        except (OSError, ValueError):
            return None
        images = record.get("transform") if isinstance(record, dict) else None
        return cls.from_dict({**record, **images}) if isinstance(images, dict) else None

    @classmethod
    def read_beside(cls, file: str | PathLike[str]) -> Self | None:
        """The provenance of a file of embeddings, if it is one of a folder that `embed_collection` wrote."""
        path = Path(file).resolve()
        return cls.read(path.parent.parent, path.parent.name) if path.name == RESULT else None

    @classmethod
    def from_dict(cls, entries: Mapping[str, Any]) -> Self | None:
        """From its own `asdict`, or anything with the same entries; None if one is missing."""
        known = {field.name: entries[field.name] for field in fields(cls) if field.name in entries}
        return cls(**{**known, "scales": tuple(known["scales"])}) if len(known) == len(fields(cls)) else None

    def asdict(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def images(self) -> str:
        """The preprocessing of images, in a few words."""
        resized = f"{'both sides' if self.squash else 'short side'} resized to {self.resize}" if self.resize else "not resized"
        further = (["fast JPEG decoding"] if self.fast_jpeg else []) + (["decoder turbo"] if self.decoder == "turbo" else [])
        several = [f"scales {_text('scales', self.scales)}"] if self.scales != (1.0,) else []
        return ", ".join([f"{self.size} pixels", resized, self.interpolation, *further, self.precision, *several])

    @property
    def network(self) -> str:
        """The backbone and its size, and the first digits of the head."""
        head = f" with head {self.head[:12]}" if self.head else ""
        return f"{self.backbone} ({self.parameters / 1e6:.1f} M parameters){head}"

    @property
    def summary(self) -> str:
        return f"{self.network}, {self.images}"

    def differences(self, other: Provenance) -> list[str]:
        """What differs, as "image size 112 against 224". `parameters`, `head` and `fingerprint` may differ: that is what runs
        compare."""
        return [
            f"{title} {_text(name, getattr(self, name))} against {_text(name, getattr(other, name))}"
            for name, title in _TITLES.items()
            if getattr(self, name) != getattr(other, name)
        ]

    def warning(self, other: Provenance, names: tuple[str, str]) -> str | None:
        """A sentence for a comparison of the metrics of the two, which are called `names`; None if nothing differs."""
        differences = self.differences(other)
        if not differences:
            return None
        return (
            f"{names[0]} and {names[1]} differ in more than training: {'; '.join(differences)}. "
            "Part of the difference between their metrics comes from that."
        )


Record = Provenance | Mapping[str, Any] | None
"""What is known of vectors: a provenance, some entries of its `asdict`, or nothing."""


def check_comparable(known: Record, others: Record, names: tuple[str, str], note: Callable[[str], object]) -> None:
    """Refuse vectors of another model, another head, or images that were read differently; the error names both.

    If the model or the head of one of them is known and that of the other is not, `note` is told that it is not checked.
    """
    one, other = (record.asdict() if isinstance(record, Provenance) else record or {} for record in (known, others))
    pairs = {key: (one[key], other[key]) for key in _OF_VECTORS if key in one and key in other}
    differ = [
        f"{_OF_VECTORS[key]} {_text(key, mine)} against {_text(key, theirs)}"
        for key, (mine, theirs) in pairs.items()
        if json.dumps(mine) != json.dumps(theirs) and (key == "head" or None not in (mine, theirs))
    ]
    if differ:
        raise ValueError(
            f"{names[0]} and {names[1]} cannot be compared: {'; '.join(differ)}; take the model, the head and the image "
            f"settings of {names[0]}."
        )
    for key in ("fingerprint", "head"):
        unknown = [name for name, record in zip(names, (one, other), strict=True) if record.get(key) is None]
        if len(unknown) == 1:
            same = f"{names[0]} and {names[1]} are of the same {_OF_VECTORS[key]}"
            note(f"whether {same} is not checked: no fingerprint is recorded for {unknown[0]}.")


def _text(name: str, value: Any) -> str:
    if name in ("resize", "head"):
        return str(value or "none")[:12]
    if name == "fingerprint":
        return str(value)[:12]
    if name == "scales":
        return ", ".join(f"{scale:g}" for scale in value)
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)
