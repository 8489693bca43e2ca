"""torchvision imports beside any torch. Each case is a process of its own: an operator once declared stays."""

import subprocess
import sys
import textwrap

import pytest

from suprank.system import torchvision_operators

HEAD = """
import torch
from suprank.system import torchvision_operators
from suprank.system.torchvision_operators import declare
"""


def run(code):
    command = [sys.executable, "-c", HEAD + textwrap.dedent(code)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_torchvision_and_timm_import_after_the_declaration():
    run(
        """
        declare()
        import torchvision, timm
        from torchvision.transforms import v2
        assert v2.Resize(4)(torch.zeros(3, 8, 8)).shape == (3, 4, 4)
        """
    )


def test_an_import_that_failed_before_succeeds_after_it_and_it_declares_once():
    run(
        """
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
        """
    )


@pytest.mark.parametrize("loaded", [True, False])
def test_it_does_nothing_where_the_real_operators_are_loaded_or_can_be(loaded):
    run(
        f"""
        library = torch.library.Library("torchvision", "DEF")  # stands for the compiled library of a fitting torchvision
        load = lambda path: library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        torch.ops.load_library = load
        if {loaded}:
            load("")
        declare()
        assert not torchvision_operators._declared
        assert torch.ops.torchvision.nms
        """
    )


def test_without_torchvision_the_extra_is_named(monkeypatch):
    monkeypatch.setattr(torchvision_operators, "find_spec", lambda name: None)
    monkeypatch.setattr(torchvision_operators, "_exists", lambda operator: False)
    with pytest.raises(ImportError, match=r'pip install "suprank\[vision\]"'):
        torchvision_operators.declare()


def test_what_imports_torchvision_on_the_way_works_after_the_declaration():
    run("declare(); import lightning, torchmetrics")


def test_what_imports_torchvision_on_the_way_works_in_a_fresh_process():
    run("from suprank.evaluation import RetrievalMetrics")
