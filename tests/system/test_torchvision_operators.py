"""torchvision imports beside any torch. Each case is a fork of one process that has torch: an operator once declared stays."""

import json
import subprocess
import sys
import textwrap

import pytest

from suprank.system import torchvision_operators

FORK = """
import gc
gc.disable()  # all that is imported stays
import json, os, sys, traceback
import torch
from suprank.system import torchvision_operators
from suprank.system.torchvision_operators import declare

errors = {}
for name, code in json.load(sys.stdin).items():
    reading, writing = os.pipe()
    if os.fork() == 0:
        with open(writing, "w") as pipe:
            try:
                exec(code, globals())
            except BaseException:
                pipe.write(traceback.format_exc())
        os._exit(0)
    os.close(writing)
    with open(reading) as pipe:
        errors[name] = pipe.read()
    if os.wait()[1]:
        errors[name] += "it died"
print(json.dumps(errors))
"""

FITTING = """
library = torch.library.Library("torchvision", "DEF")  # stands for the compiled library of a fitting torchvision
load = lambda path: library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
torch.ops.load_library = load
"""

CASES = {
    "torchvision and packages that import it do so after the declaration": """
        declare()
        import torchvision, timm
        from torchvision.transforms import v2
        assert v2.Resize(4)(torch.zeros(3, 8, 8)).shape == (3, 4, 4)
        """,
    "an import that failed before succeeds after it, and it declares once": """
        try:
            import torchvision
            declarations = 0  # this torchvision fits this torch
        except RuntimeError as error:
            assert "operator torchvision::nms does not exist" in str(error)
            declarations = 1
        declare()
        import torchvision
        declare()
        assert len(torchvision_operators._declared) == declarations
        try:
            torchvision.ops.nms(torch.zeros(1, 4), torch.zeros(1), 0.5)
        except RuntimeError as error:
            assert declarations and "Couldn't load custom C++ ops" in str(error)
        """,
    "it does nothing if the real operators are loaded": f"""{FITTING}
load("")
declare()
assert not torchvision_operators._declared
assert torch.ops.torchvision.nms
""",
    "it does nothing if the real operators can be loaded": f"""{FITTING}
declare()
assert not torchvision_operators._declared
assert torch.ops.torchvision.nms
""",
    "our packages that import torchvision, here through torchmetrics, work without it": (
        "from suprank.evaluation import RetrievalMetrics"
    ),
}


@pytest.fixture(scope="module")
def errors():
    """The traceback of each case, "" where it succeeded."""
    cases = json.dumps({name: textwrap.dedent(code) for name, code in CASES.items()})
    done = subprocess.run([sys.executable, "-c", FORK], input=cases, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("case", CASES)
def test_torchvision_is_imported_beside_any_torch(errors, case):
    assert errors[case] == ""


def test_without_torchvision_the_extra_is_named(monkeypatch):
    monkeypatch.setattr(torchvision_operators, "find_spec", lambda name: None)
    monkeypatch.setattr(torchvision_operators, "_exists", lambda operator: False)
    with pytest.raises(ImportError, match=r'pip install "suprank\[vision\]"'):
        torchvision_operators.declare()
