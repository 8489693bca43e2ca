import builtins
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from suprank.models import ExportError, export, export_onnx, export_program
from tests.models import test_head, tiny


def small_embedder():
    return tiny.embedder("test_efficientnet", pooling="gem", normalization="layer", dim=8, image_size=64)


def test_an_onnx_file_gives_the_same_embeddings_for_any_number_of_images(tmp_path):
    import onnxruntime

    embedder, images = small_embedder().with_head(test_head.made(8)), tiny.images(5)
    assert export_onnx(embedder, tmp_path / "model.onnx") < 1e-4
    assert [file.name for file in tmp_path.iterdir()] == ["model.onnx"]
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
    (found,) = session.run(["embeddings"], {"images": images.numpy()})
    np.testing.assert_allclose(found, embedder(images).detach().numpy(), atol=1e-5)


def test_an_onnx_file_of_a_head_gives_the_same_embeddings_for_any_number_of_rows(tmp_path):
    import onnxruntime

    head, rows = test_head.made(normalization="layer", hidden=3), test_head.vectors(7)
    assert export_onnx(head, tmp_path / "head.onnx") < 1e-6
    session = onnxruntime.InferenceSession(tmp_path / "head.onnx", providers=["CPUExecutionProvider"])
    (found,) = session.run(["embeddings"], {"vectors": rows})
    np.testing.assert_allclose(found, test_head.by_hand(head, rows), atol=1e-6)


def test_a_program_gives_the_same_embeddings_for_any_number_of_images(tmp_path):
    embedder, images = tiny.embedder("test_vit", pooling="avg", image_size=32), tiny.images(5, 32)
    assert export_program(embedder, tmp_path / "model.pt2") < 1e-4
    found = torch.export.load(tmp_path / "model.pt2").module()(images)
    torch.testing.assert_close(found, embedder(images))
    assert not embedder.training
    assert all(parameter.requires_grad for parameter in embedder.parameters())


def test_an_export_that_differs_is_refused_and_the_file_before_it_stays(tmp_path, monkeypatch):
    (tmp_path / "model.pt2").write_text("the last good one")
    load = torch.export.load

    class Wrong:
        def __init__(self, file):
            self.program = load(file)

        def module(self):
            return lambda images: self.program.module()(images) + 0.01

    class Small(torch.nn.Module):  # an embedder takes seconds to export
        config, input = SimpleNamespace(backbone="small"), SimpleNamespace(size=(2, 2))

        def forward(self, images):
            return images.flatten(1)

    monkeypatch.setattr(torch.export, "load", Wrong)
    with pytest.raises(ExportError, match=r"by 0\.01, more than 0\.0001.* does not export small"):
        export_program(Small(), tmp_path / "model.pt2")
    assert [file.name for file in tmp_path.iterdir()] == ["model.pt2"]
    assert (tmp_path / "model.pt2").read_text() == "the last good one"


def test_nan_is_a_difference():
    embedder = tiny.embedder()
    with pytest.raises(ExportError, match="by nan"):
        export._difference(embedder, lambda images: embedder(images) * torch.nan, tiny.images(2, 32))


def test_without_onnxruntime_the_error_names_the_extra(tmp_path, monkeypatch):
    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name == "onnxruntime":
            raise ImportError(f"No module named {name!r}", name=name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ImportError, match=r"needs onnxruntime; pip install \"suprank\[export\]\""):
        export_onnx(tiny.embedder(), tmp_path / "model.onnx")


def test_a_program_is_called_pt2(tmp_path):
    with pytest.raises(ValueError, match=r"must end in \.pt2"):
        export_program(tiny.embedder(), tmp_path / "model.pt")
