"""Models that embed images: a timm backbone with pooling, normalization and projection; weights, saving and export."""

from suprank.system.extras import explain_missing_extra

with explain_missing_extra(__name__):
    from suprank.models.backbone import Backbone
    from suprank.models.config import EmbedderConfig, ImageInput
    from suprank.models.embedder import Embedder
    from suprank.models.export import ExportError, export_onnx, export_program
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
    "ImageInput",
    "Moments",
    "WeightsError",
    "embed",
    "export_onnx",
    "export_program",
    "multiscale",
    "pca_projection",
]
