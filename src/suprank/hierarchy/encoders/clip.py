"""Labels by the text tower of a CLIP model of open_clip, as the paper's authors did (sec:hierarchical_image_retrieval)."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np

from suprank.hierarchy.encoders.protocol import in_batches, weights_hash
from suprank.system import torchvision_operators

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from suprank.hierarchy.encoders.protocol import Progress


class Clip:
    """A model by open_clip's name, with weights by open_clip's tag (downloaded), or from a file of a whole CLIP model."""

    prompted = True

    def __init__(self, model: str, weights: str, *, batch_size: int = 256, device: str | None = None) -> None:
        import torch

        with suppress(ImportError):  # open_clip imports torchvision; where that is missing, open_clip is too
            torchvision_operators.declare()
        import open_clip

        self.model, self.batch_size = model, batch_size
        self._device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        try:
            loaded = open_clip.create_model(model, pretrained=weights, require_pretrained=True)
            self._tokens = open_clip.get_tokenizer(model)
        except ModuleNotFoundError:
            raise
        except Exception as error:  # of several libraries, about names, files and servers
            said = str(error).strip().partition("\n")[0][:200]
            raise ValueError(
                f"the CLIP model {model!r} with the weights {weights!r} cannot be loaded ({said}); give a name and a tag of "
                "open_clip.list_pretrained(), or the file of its weights: clip:MODEL//path/to/weights.pt."
            ) from error
        loaded.visual = None  # only texts come in here
        self._model = loaded.eval().to(self._device)

    def fingerprint(self) -> dict[str, Any]:
        from importlib.metadata import version

        return {
            "name": "clip",
            "open_clip_torch": version("open_clip_torch"),
            "model": self.model,
            "weights": weights_hash(self._model.state_dict().items()),
            "quick_gelu": any(type(part).__name__ == "QuickGELU" for part in self._model.modules()),  # a tag may ask for it
        }

    def encode(self, texts: Sequence[str], progress: Progress) -> NDArray[np.float32]:
        import torch

        rows = []
        with torch.inference_mode():
            for some in in_batches(texts, self.batch_size, progress):
                rows.append(self._model.encode_text(self._tokens(some).to(self._device)).float().cpu().numpy())
        return np.concatenate(rows)
