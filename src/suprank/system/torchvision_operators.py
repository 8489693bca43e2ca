"""Let torchvision be imported beside a torch that its compiled operators were not built for.

PyPI's torchvision is a CUDA build. Beside a CPU-only torch its library of compiled operators does not load, which torchvision
itself forgives; but it then describes two of those operators to torch, `nms` and `qnms`, and `import torchvision` fails with
"operator torchvision::nms does not exist". We and timm use only its Python parts, which need no compiled operator. So we
declare the two by name: the import passes, and only a call of `torchvision.ops.nms` fails, with torchvision's own explanation.

Call `declare()` above the first import of torchvision or timm.
"""

from importlib.machinery import PathFinder
from importlib.util import find_spec

import torch

_SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"  # as in torchvision's csrc/ops/nms.cpp
_declared: list[torch.library.Library] = []  # the declarations last as long as their library is referenced


def declare() -> None:
    """Declare torchvision's `nms` and `qnms` to torch, unless the real ones are there or can be loaded.

    Does nothing when the operators exist: torchvision is imported, or its operators are loaded, or we declared them before.
    The real ones are tried first, because a real library is refused once its names are declared. Loading them here is what the
    import will do too, and loading twice is harmless. Without torchvision: a ModuleNotFoundError that names our extra.
    """
    if _exists("nms") or _real_ones_load():
        return
    library = torch.library.Library("torchvision", "FRAGMENT")
    for name in ("nms", "qnms"):
        library.define(name + _SCHEMA)
    _declared.append(library)


def _exists(operator: str) -> bool:
    return hasattr(torch.ops.torchvision, operator)


def _real_ones_load() -> bool:
    """Whether torchvision's compiled library loads into this torch; torchvision itself is not imported."""
    package = find_spec("torchvision")
    if package is None:
        said = 'torchvision is not installed; images need it: pip install "suprank[vision]"'
        raise ModuleNotFoundError(said, name="torchvision")
    compiled = PathFinder.find_spec("_C", package.submodule_search_locations)
    if compiled is None or compiled.origin is None:
        return False  # a torchvision built without operators
    try:
        torch.ops.load_library(compiled.origin)
    except (ImportError, OSError):
        return False
    return _exists("nms")
