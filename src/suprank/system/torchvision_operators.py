"""Make torchvision importable with a torch that its compiled operators were not built for.

PyPI's torchvision is a CUDA build. With a CPU-only torch its library of compiled operators does not load, which torchvision
itself tolerates; but it then describes two of those operators to torch, `nms` and `qnms`, and `import torchvision` fails with
"operator torchvision::nms does not exist". We and timm use only its Python parts, which need no compiled operator. So we
declare the two by name: the import passes, and only a call of `torchvision.ops.nms` fails, with torchvision's own explanation.

Call `declare()` above the first import of torchvision or timm.
"""

from importlib.machinery import PathFinder
from importlib.util import find_spec

import torch

_SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"  # as in torchvision's csrc/ops/nms.cpp
_declared: list[torch.library.Library] = []  # a declaration lasts as long as its library is referenced


def declare() -> None:
    """Declare torchvision's `nms` and `qnms` to torch, unless the real ones exist or can be loaded.

    The real ones are tried first, because torch refuses a real library once its names are declared. Loading it here is what the
    import will do too, and loading twice is harmless. Without torchvision, a ModuleNotFoundError names our extra.
    """
    if _exists("nms") or _load_compiled_operators():
        return
    library = torch.library.Library("torchvision", "FRAGMENT")
    for name in ("nms", "qnms"):
        library.define(name + _SCHEMA)
    _declared.append(library)


def _exists(operator: str) -> bool:
    return hasattr(torch.ops.torchvision, operator)


def _load_compiled_operators() -> bool:
    """Load torchvision's compiled library into torch, without importing torchvision; return whether that worked."""
    package = find_spec("torchvision")
    if package is None:
        message = 'torchvision is not installed; images need it: pip install "suprank[vision]"'
        raise ModuleNotFoundError(message, name="torchvision")
    compiled = PathFinder.find_spec("_C", package.submodule_search_locations)
    if compiled is None or compiled.origin is None:
        return False  # a torchvision built without operators
    try:
        torch.ops.load_library(compiled.origin)
    except (ImportError, OSError):
        return False
    return _exists("nms")
