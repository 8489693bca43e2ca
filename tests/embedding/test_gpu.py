"""On a GPU: the embeddings of the CPU, in full and in half precision, and exports that still agree."""

import numpy as np
import pytest

from suprank.data import eval_transform
from suprank.embedding import ImageLoaderSettings, embed_collection, feature_moments, read_embedded
from tests.data.pictures import folder
from tests.models.tiny import embedder

pytestmark = pytest.mark.gpu
READING = ImageLoaderSettings(eval_transform(32, resize=None), batch_size=4, workers=2)


def embedded(tmp_path, name, model, manifest, **settings):
    embed_collection(model, manifest, tmp_path / name, loading=READING, **settings)
    return np.asarray(read_embedded(tmp_path / name, "test").embeddings)


@pytest.mark.parametrize("backbone", ["test_resnet", "test_vit"])
@pytest.mark.parametrize(("precision", "tolerance"), [("fp32", 5e-3), ("bf16", 5e-2), ("fp16", 1e-2)])
def test_a_gpu_gives_the_embeddings_of_the_cpu(tmp_path, backbone, precision, tolerance):
    size = 160 if backbone == "test_vit" else 32
    manifest = folder(tmp_path, count=9, split=["test"] * 9)
    model = embedder(backbone, normalization="layer", dim=16)
    reading = ImageLoaderSettings(eval_transform(size, resize=size), batch_size=4, workers=2)
    found = {}
    for device, chosen in (("cpu", "fp32"), ("cuda", precision)):
        embed_collection(model, manifest, tmp_path / device, loading=reading, device=device, precision=chosen)
        found[device] = np.asarray(read_embedded(tmp_path / device, "test").embeddings)
    np.testing.assert_allclose(found["cuda"], found["cpu"], atol=tolerance)  # convolutions in TF32
    np.testing.assert_allclose(np.linalg.norm(found["cuda"], axis=1), 1, atol=1e-5)


def test_several_scales_and_moments_on_a_gpu(tmp_path):
    manifest, model = folder(tmp_path, count=9, split=["test"] * 9), embedder(pooling="gem")
    on_cpu = embedded(tmp_path, "cpu", model, manifest, device="cpu", scales=(1.0, 0.5))
    on_gpu = embedded(tmp_path, "gpu", model, manifest, device="cuda", scales=(1.0, 0.5))
    np.testing.assert_allclose(on_gpu, on_cpu, atol=5e-3)
    cpu, gpu = (feature_moments(model, manifest, loading=READING, device=device) for device in ("cpu", "cuda"))
    np.testing.assert_allclose(gpu.mean, cpu.mean, atol=1e-2 * np.abs(cpu.mean).max())
