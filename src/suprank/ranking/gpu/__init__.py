"""Everything that runs in Triton kernels. Nothing else knows of it but `suprank.ranking.seam`, to which importing it adds it.

A function of the name of a plain one stands for it (`by_kernels`), and Triton compiles those of `*_kernels.py`. `exact`, for
metrics, is imported when it is chosen.
"""

from suprank.ranking.gpu import batch, grid, pairs

__all__ = ["batch", "grid", "pairs"]
