"""What is done to a vector before a linear layer: nothing, LayerNorm without affine parameters, or L2."""

from torch.nn.functional import layer_norm, normalize

NORMALIZATIONS = {
    "none": lambda vectors: vectors,
    "layer": lambda vectors: layer_norm(vectors, vectors.shape[-1:]),
    "l2": lambda vectors: normalize(vectors, dim=-1),
}
