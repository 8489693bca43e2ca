"""Encoders of label texts: TF-IDF of letters, sentence-transformers and CLIP text models; and the prompt around a label."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from suprank.hierarchy.precomputed import PrecomputedVectors

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

Progress = Callable[[int, int], None]
"""Called with the number of texts that are done and the number of all texts."""

SPECS = "tfidf, sentence:MODEL_OR_FOLDER, clip:MODEL/WEIGHTS_OR_FILE or precomputed:FILE"


class Encoder(Protocol):
    """Turns texts into vectors."""

    prompted: bool
    """Whether a prompt around the label helps; otherwise labels are encoded as they are."""

    def fingerprint(self) -> dict[str, Any]:
        """Everything that decides the vectors of given texts (name, library version, weights, settings), as JSON values."""
        ...

    def encode(self, texts: Sequence[str], progress: Progress) -> NDArray[np.float32]:
        """Vectors `[text, dimension]` of any length; a row of zeros if the encoder knows nothing of a text."""
        ...


def build_encoder(spec: str, *, batch_size: int = 256, device: str | None = None) -> Encoder | PrecomputedVectors:
    """Build an encoder from `tfidf`, `sentence:MODEL`, `clip:MODEL/WEIGHTS` or `precomputed:FILE`, and load its model.

    After the first slash of `clip:` comes a tag of open_clip, or a file: `clip:ViT-B-32//models/b32.pt`.
    """
    kind, _, rest = spec.partition(":")
    if spec == "tfidf":
        return TfidfEncoder()
    if kind == "precomputed" and rest:
        return PrecomputedVectors(rest)
    if kind == "sentence" and rest:
        return SentenceEncoder(rest, batch_size=batch_size, device=device)
    model, _, weights = rest.partition("/")
    if kind == "clip" and model and weights:  # without weights open_clip would draw them at random
        return ClipEncoder(model, weights, batch_size=batch_size, device=device)
    raise ValueError(f"{spec!r} is not an encoder; give {SPECS}.")


def encoder_input(text: str, strip: Iterable[str] = (), description: str = "", prompt: str | None = None) -> str:
    """The text that an encoder sees: the label without what `strip` matches, its description, inside the prompt.

    A label that would be stripped completely stays as it is.

    Example:
        >>> encoder_input("bath  (1172–1954)", [r"\\s*\\([^()]*\\d{3,4}[^()]*\\)"], "place to swim", "A picture of a {}")
        'A picture of a bath, place to swim'
    """
    stripped = text
    for pattern in strip:
        stripped = re.sub(pattern, "", stripped)
    stripped = " ".join(stripped.split()) or " ".join(text.split())
    if description:
        stripped = f"{stripped}, {description}"
    return stripped if prompt is None else prompt.replace("{}", stripped)


def resolve_prompt(
    encoder: Encoder | PrecomputedVectors, prompt: str | None, recipe_prompt: str, *, with_description: bool = False
) -> str | None:
    """The prompt to use: the given one, else the recipe's; None for an encoder without prompts.

    Giving a prompt or description to an encoder that cannot use it is an error; a recipe's prompt is then ignored.
    """
    if isinstance(encoder, PrecomputedVectors) and (prompt is not None or with_description):
        raise ValueError("precomputed vectors cannot take in a prompt or a description any more; leave it out.")
    if prompt is not None and not encoder.prompted:
        raise ValueError("tfidf takes no prompt, whose letters would make all labels alike; leave it out.")
    template = recipe_prompt if prompt is None else prompt
    if template.count("{}") != 1:
        raise ValueError(f"prompt {template!r} must contain {{}} once, where the label goes.")
    return template if encoder.prompted else None


def unit_rows(vectors: NDArray[Any], min_length: float = 0.0) -> NDArray[np.float32]:
    """Scale rows to length 1. Rows of length `min_length` or less carry no signal and become zeros."""
    rows = np.asarray(vectors, np.float64)
    length = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.divide(rows, length, out=np.zeros_like(rows), where=length > min_length).astype(np.float32)


def weights_hash(weights: Iterable[tuple[str, torch.Tensor]]) -> str:
    """The sha256 of named weights: equal for the same model, wherever it was loaded from."""
    import torch

    digest = hashlib.sha256()
    for name, value in sorted(weights, key=lambda pair: pair[0]):
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
        digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def text_batches(texts: Sequence[str], size: int, progress: Progress) -> Iterable[list[str]]:
    """The texts in order, `size` at a time; `progress` is called after each batch."""
    for start in range(0, len(texts), size):
        yield list(texts[start : start + size])
        progress(min(start + size, len(texts)), len(texts))


class TfidfEncoder:
    """Encodes labels by their spelling, without a model: pieces of 3 to 5 letters within words, weighted by TF-IDF.

    A truncated SVD reduces them to 256 dimensions. Up to 256 labels (or pieces) there is nothing to reduce: the vectors are
    the TF-IDF weights, with exact cosines. The same texts in the same order give the same vectors, because the seed and the
    signs are fixed and a single thread adds up.
    """

    prompted = False  # the prompt's letters would be in every label, and make all alike
    letters = (3, 5)
    dimensions = 256
    seed = 0
    min_length = 1e-5
    """What the SVD leaves of a label below this length is rounding error, not a direction."""

    def fingerprint(self) -> dict[str, Any]:
        return {
            "name": "tfidf",
            "scikit-learn": version("scikit-learn"),
            "letters": list(self.letters),
            "dimensions": self.dimensions,
            "seed": self.seed,
        }

    def encode(self, texts: Sequence[str], progress: Progress) -> NDArray[np.float32]:
        from sklearn.decomposition import TruncatedSVD
        from sklearn.feature_extraction.text import TfidfVectorizer
        from threadpoolctl import threadpool_limits

        progress(0, len(texts))
        if not any(text.strip() for text in texts):
            return np.zeros((len(texts), 1), np.float32)  # scikit-learn refuses an empty vocabulary
        weights = TfidfVectorizer(analyzer="char_wb", ngram_range=self.letters).fit_transform(texts)
        if min(weights.shape) > self.dimensions:
            with threadpool_limits(1):
                vectors = TruncatedSVD(self.dimensions, random_state=self.seed).fit_transform(weights)  # it fixes the signs
        else:
            vectors = weights.toarray()
        progress(len(texts), len(texts))
        return unit_rows(vectors, self.min_length)


def _prepare_torchvision() -> None:
    """Both libraries below import torchvision, if it is installed."""
    from suprank.system import torchvision_operators  # which imports torch

    with suppress(ImportError):
        torchvision_operators.declare()


@contextmanager
def _loading(what: str, way_out: str) -> Iterator[None]:
    """Turn whatever a library raises while it loads a model into one sentence; a missing package passes."""
    try:
        yield
    except ModuleNotFoundError:
        raise
    except Exception as error:  # from several libraries, about names, files, servers and settings
        reason = str(error).strip().partition("\n")[0][:200]
        raise ValueError(f"{what} cannot be loaded ({reason}); {way_out}.") from error


class SentenceEncoder:
    """A model of sentence-transformers, from a folder or by its name on the Hugging Face hub, with the model's own pooling."""

    prompted = True

    def __init__(self, model: str, *, batch_size: int = 256, device: str | None = None) -> None:
        _prepare_torchvision()
        from sentence_transformers import SentenceTransformer

        self.batch_size = batch_size
        with _loading(f"the sentence encoder {model!r}", "give the folder of a model, or a name on the hub"):
            self._model = SentenceTransformer(model, device=device)

    def fingerprint(self) -> dict[str, Any]:
        vocabulary = json.dumps(self._model.tokenizer.get_vocab(), sort_keys=True)
        return {
            "name": "sentence",
            "sentence-transformers": version("sentence-transformers"),
            "weights": weights_hash(self._model.state_dict().items()),
            "vocabulary": hashlib.sha256(vocabulary.encode()).hexdigest(),
            "modules": [type(module).__name__ for module in self._model],
            "longest": self._model.max_seq_length,
            "own_prompt": self._model.prompts.get(self._model.default_prompt_name or ""),
        }

    def encode(self, texts: Sequence[str], progress: Progress) -> NDArray[np.float32]:
        rows = [
            self._model.encode(batch, batch_size=self.batch_size, convert_to_numpy=True, show_progress_bar=False)
            for batch in text_batches(texts, self.batch_size, progress)
        ]
        return np.concatenate(rows).astype(np.float32, copy=False)


class ClipEncoder:
    """The text tower of an open_clip model, as in the paper (sec:hierarchical_image_retrieval).

    `model` is a name of open_clip. `weights` is one of its tags, which is downloaded, or the file of a whole CLIP model.
    """

    prompted = True

    def __init__(self, model: str, weights: str, *, batch_size: int = 256, device: str | None = None) -> None:
        _prepare_torchvision()
        import open_clip
        import torch

        self.model, self.batch_size = model, batch_size
        self._device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        way_out = "give a name and a tag of open_clip.list_pretrained(), or a file of weights: clip:MODEL//path/to/weights.pt"
        with _loading(f"the CLIP model {model!r} with the weights {weights!r}", way_out):
            loaded = open_clip.create_model(model, pretrained=weights, require_pretrained=True)
            self._tokenizer = open_clip.get_tokenizer(model)
        loaded.visual = None  # only texts are encoded
        self._model = loaded.eval().to(self._device)

    def fingerprint(self) -> dict[str, Any]:
        return {
            "name": "clip",
            "open_clip_torch": version("open_clip_torch"),
            "model": self.model,
            "weights": weights_hash(self._model.state_dict().items()),
            "quick_gelu": any(type(part).__name__ == "QuickGELU" for part in self._model.modules()),  # some tags need it
        }

    def encode(self, texts: Sequence[str], progress: Progress) -> NDArray[np.float32]:
        import torch

        rows = []
        with torch.inference_mode():
            for batch in text_batches(texts, self.batch_size, progress):
                rows.append(self._model.encode_text(self._tokenizer(batch).to(self._device)).float().cpu().numpy())
        return np.concatenate(rows)
