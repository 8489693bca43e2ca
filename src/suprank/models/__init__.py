"""Models that embed images: a backbone (timm's or your own), pooling, normalization, projection, head; weights, exports."""

from suprank.system.extras import explain_missing_extra

with explain_missing_extra(__name__):
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
    from suprank.system.custom_code import UntrustedCodeError

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
