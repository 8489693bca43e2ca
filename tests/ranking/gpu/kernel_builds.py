"""Builds of the kernels, for test_kernels.py."""


def compile_all(*capabilities):
    """The grid's kernels only for the last: they take long."""
    for capability in capabilities:
        compile_pairs(capability)
    compile_grid(capability)


def compile_pairs(capability):
    """Compiles each kernel with the options that `fused` uses, and prints its name; no GPU is asked."""
    from suprank.ranking import Sigmoid, SupStep, heaviside
    from suprank.ranking.gpu import pair_kernels as kernels
    from suprank.ranking.gpu import pairs as fused

    compiled(kernels.partition, capability, WEIGHTED=True, BLOCK=2048)
    pairs = [fused._encoded(*steps)[0] for steps in ((heaviside, SupStep()), (heaviside, heaviside), (Sigmoid(), Sigmoid()))]
    for smooth, sup, shared in pairs:
        kinds = {"SMOOTH": smooth, "SUP": sup, "SHARED": shared, "WEIGHTED": True, "SLOPED": True, "FAST": True}
        compiled(kernels.forward, capability, **kinds, **fused.FORWARD)
    for smooth, sup, shared in pairs:
        kinds = {"TO_PLUS": smooth, "TO_MINUS": sup, "TO_H": smooth, "SHARED": shared, "FAST": True}
        compiled(kernels.backward, capability, **kinds, **fused.BACKWARD)


def compile_grid(capability):
    """The same for the kernels of the grid."""
    from suprank.ranking.gpu import grid, grid_kernels, list_kernels
    from suprank.ranking.gpu.grid import HIERARCHICAL, MINUS, TILE
    from suprank.ranking.gpu.step_table import TERMS

    compiled(list_kernels.survey, capability, WEIGHTED=True, BLOCK=1024)
    compiled(list_kernels.arrange, capability, IN_WORD=3, WORDS=1, BLOCK=1024)
    compiled(list_kernels.rearrange, capability, BLOCK=1024)
    compiled(list_kernels.exact, capability, WEIGHTED=True, IN_WORD=3, WORDS=1, DEPTH=3, **grid.EXACT)
    for part, backward, cut in ((MINUS, False, 6), (MINUS, True, 6), (HIERARCHICAL, True, 0)):
        compiled(grid_kernels.edges, capability, REVERSED=backward, BLOCK=64)
        kinds = {"KIND": part, "REVERSED": backward, "CUT": cut, "TERMS": TERMS, "TILE": TILE}
        compiled(grid_kernels.spread, capability, COLUMNS=4, **kinds, **grid.SPREAD)
        compiled(grid_kernels.read, capability, FIRST=backward, **kinds, **grid.READ)
    compiled(grid_kernels.connect, capability, TERMS=TERMS, **grid.CONNECT)


def compiled(kernel, capability, num_warps=4, **constants):
    integers = {"items", "search", "total", "depth", "bits", "bins", "tiles", "flip", "above", "rows", "taps", "s_items"}
    indices = {"order", "counts", "slots", "starts"}
    scalars = {"plus_rate", "minus_rate", "rho", "delta", "jump", "height", "rate", "rest"}
    others = {"words": "*i64", "facts": "*fp64", "numbers": "*fp64"}

    def kind(name):
        if name in integers:
            return "i32"
        if name in scalars:
            return "fp32"
        if name.endswith("level") and name != "by_level":
            return "*i8"
        return others.get(name, "*i32" if name in indices else "*fp32")

    compile_kernel(kernel, capability, kind, num_warps, constants)


def compile_kernel(kernel, capability, kind, num_warps, constants):
    """Compile a kernel whose arguments have the types that `kind` names, and print its name."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    source = ASTSource(
        fn=kernel,
        signature={name: "constexpr" if name in constants else kind(name) for name in kernel.arg_names},
        constexprs={(kernel.arg_names.index(name),): value for name, value in constants.items()},
    )
    found = triton.compile(source, target=GPUTarget("cuda", capability, 32), options={"num_warps": num_warps})
    assert len(found.asm["cubin"]) > 0
    print(kernel.__name__)
