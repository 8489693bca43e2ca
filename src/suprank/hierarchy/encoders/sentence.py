"""Labels by a model of sentence-transformers: from a folder, or by a name that the Hugging Face hub knows."""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np

from suprank.hierarchy.encoders.protocol import in_batches, weights_hash
from suprank.system import torchvision_operators

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from suprank.hierarchy.encoders.protocol import Progress


class Sentence:
    """A sentence encoder, with the pooling that its folder prescribes."""

    prompted = True

    def __init__(self, model: str, *, batch_size: int = 256, device: str | None = None) -> None:
        with suppress(ImportError):  # transformers imports torchvision where it is installed, and does without it elsewhere
            torchvision_operators.declare()
        from sentence_transformers import SentenceTransformer

        self.batch_size = batch_size
        try:
            self._model = SentenceTransformer(model, device=device)
        except ModuleNotFoundError:
            raise
        except Exception as error:  # of several libraries, about files, servers and settings
            said = str(error).strip().partition("\n")[0][:200]
            raise ValueError(
                f"the sentence encoder {model!r} cannot be loaded ({said}); give a folder with a model, or a name of the hub."
            ) from error

    def fingerprint(self) -> dict[str, Any]:
        from importlib.metadata import version

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
            self._model.encode(some, batch_size=self.batch_size, convert_to_numpy=True, show_progress_bar=False)
            for some in in_batches(texts, self.batch_size, progress)
        ]
        return np.concatenate(rows).astype(np.float32, copy=False)
