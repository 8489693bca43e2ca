"""A better space for stored embeddings: a small head, trained with our losses and tested on classes that it has not seen."""

from suprank.system.extras import explain_missing_extra

with explain_missing_extra(__name__):
    from suprank.adaptation.adapt import AdaptationStopped, adapt
    from suprank.adaptation.config import AdaptConfig
    from suprank.adaptation.result import AdaptResult, SeedResult

__all__ = ["AdaptConfig", "AdaptResult", "AdaptationStopped", "SeedResult", "adapt"]
