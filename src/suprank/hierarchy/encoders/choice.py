"""An encoder by what is written on the command line or in a recipe."""

from __future__ import annotations

from suprank.hierarchy.encoders.precomputed import Precomputed
from suprank.hierarchy.encoders.protocol import Encoder
from suprank.hierarchy.encoders.tfidf import Tfidf

KINDS = "tfidf, sentence:MODEL_OR_FOLDER, clip:MODEL/WEIGHTS_OR_FILE or precomputed:FILE"


def encoder_of(written: str, *, batch_size: int = 256, device: str | None = None) -> Encoder | Precomputed:
    """The encoder of `tfidf`, `sentence:MODEL`, `clip:MODEL/WEIGHTS` or `precomputed:FILE`; models are loaded here.

    What follows the first slash of `clip:` is a tag of open_clip, or a file: `clip:ViT-B-32//models/b32.pt`.
    """
    kind, _, rest = written.partition(":")
    if written == "tfidf":
        return Tfidf()
    if kind == "precomputed" and rest:
        return Precomputed(rest)
    if kind == "sentence" and rest:
        from suprank.hierarchy.encoders.sentence import Sentence

        return Sentence(rest, batch_size=batch_size, device=device)
    model, _, weights = rest.partition("/")
    if kind == "clip" and model and weights:  # without weights open_clip would draw them at random
        from suprank.hierarchy.encoders.clip import Clip

        return Clip(model, weights, batch_size=batch_size, device=device)
    raise ValueError(f"{written!r} is no encoder; give {KINDS}.")
