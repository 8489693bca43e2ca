"""Labels to vectors: by their spelling, by a sentence or CLIP text model, or from a file of vectors made elsewhere."""

from suprank.hierarchy.encoders.choice import encoder_of
from suprank.hierarchy.encoders.precomputed import Precomputed
from suprank.hierarchy.encoders.prompts import encoded_text, prompt_for
from suprank.hierarchy.encoders.protocol import Encoder, Progress, unit_rows

__all__ = ["Encoder", "Precomputed", "Progress", "encoded_text", "encoder_of", "prompt_for", "unit_rows"]
