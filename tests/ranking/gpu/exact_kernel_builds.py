"""Builds of the kernels of `exact`, for test_kernels.py."""

from tests.ranking.gpu.kernel_builds import compile_kernel


def compile_all(*capabilities):
    for number, capability in enumerate(capabilities):
        compile_for(capability, depth=8 if number else 2)


def compile_for(capability, depth):
    """Compiles each kernel with the options that `fused` uses, and prints its name; no GPU is asked."""
    from suprank.ranking.gpu import exact_kernels as kernels

    compiled(kernels.take, capability, BLOCK=1024)
    compiled(kernels.count_few, capability, BLOCK=1024)
    for steps in (5, 17):
        compiled(kernels.fill_gaps, capability, STEPS=steps, BLOCK=1024)
    for parity in (0, 1):
        compiled(kernels.settle, capability, PARITY=parity, BLOCK=1024)
    compiled(kernels.count_levels, capability, DEPTH=depth, SEGMENT=4096, BLOCK=256)
    compiled(kernels.sum_positives, capability, DEPTH=depth, SEGMENT=4096, BLOCK=256)
    compiled(kernels.sum_top, capability, DEPTH=depth, BLOCK=128)


def compiled(kernel, capability, **constants):
    pointers = {
        **dict.fromkeys(("scores", "into", "thresholds", "falling"), "*fp32"),
        **dict.fromkeys(("relevance", "harmonic", "by_level", "by_query", "at_level", "at_query"), "*fp64"),
        **dict.fromkeys(("counts", "gaps", "place", "sizes", "before", "unsettled", "ks"), "*i32"),
        "item": "*i64",
        "level": "*i8",
    }
    compile_kernel(kernel, capability, lambda name: pointers.get(name, "i32"), 4, constants)
