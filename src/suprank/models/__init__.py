"""Models that embed images: a backbone (timm's or your own), pooling, normalization, projection, head; weights, exports."""

from typing import TYPE_CHECKING, Any

from suprank.system.custom_code import UntrustedCodeError
from suprank.system.extras import import_attribute

if TYPE_CHECKING:
    from suprank.models.backbone import Backbone
    from suprank.models.config import EmbedderConfig, HeadConfig, HubBackbone, ImageInput
    from suprank.models.embedder import Embedder
    from suprank.models.export import ExportError, export_matrix, export_onnx, export_program
    from suprank.models.head import Head
    from suprank.models.hub import HubError
    from suprank.models.inference import embed, multiscale
    from suprank.models.networks import ALIASES
    from suprank.models.pca import Moments, pca_projection
    from suprank.models.pooling import GeM
    from suprank.models.weights import WeightsError

__all__ = [
    "ALIASES",
    "Backbone",
    "Embedder",
    "EmbedderConfig",
    "ExportError",
    "GeM",
    "Head",
    "HeadConfig",
    "HubBackbone",
    "HubError",
    "ImageInput",
    "Moments",
    "UntrustedCodeError",
    "WeightsError",
    "embed",
    "export_matrix",
    "export_onnx",
    "export_program",
    "multiscale",
    "pca_projection",
]

# Imported when first used, because torch and timm take seconds; a list of names needs neither.
_MODULES = {
    "Backbone": "backbone",
    "EmbedderConfig": "config",
    "HeadConfig": "config",
    "HubBackbone": "config",
    "ImageInput": "config",
    "Embedder": "embedder",
    "ExportError": "export",
    "export_matrix": "export",
    "export_onnx": "export",
    "export_program": "export",
    "Head": "head",
    "HubError": "hub",
    "embed": "inference",
    "multiscale": "inference",
    "ALIASES": "networks",
    "Moments": "pca",
    "pca_projection": "pca",
    "GeM": "pooling",
    "WeightsError": "weights",
}


def __getattr__(name: str) -> Any:
    return import_attribute(__name__, _MODULES, name)
