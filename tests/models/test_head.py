"""A head: what it computes, against plain NumPy in float64; its files; on top of an embedder; and as a matrix."""

import hashlib
import json
import math
from functools import partial

import numpy as np
import pytest
import torch

from suprank.data import ImageBatch
from suprank.models import Embedder, ExportError, Head, HeadConfig, WeightsError, embed, export, export_matrix
from suprank.models import head as head_module
from suprank.models.inference import multiscale
from tests.models import tiny


def made(in_features=6, out_features=4, normalization="l2", hidden=0, *, seed=0):
    """A head with random weights in all of its layers, the same each time."""
    head = Head(HeadConfig(in_features=in_features, out_features=out_features, normalization=normalization, hidden=hidden))
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.normal_(0, 0.5, generator=draw)
    return head.eval()


def vectors(rows=5, width=6, *, seed=0):
    return np.random.default_rng(seed).normal(1, 2, (rows, width)).astype(np.float32)


def by_hand(head, rows):
    """The definition, row by row, in float64."""
    state = {name: value.double().numpy() for name, value in head.state_dict().items()}
    embeddings = []
    for x in rows.astype(np.float64):
        if head.config.normalization == "l2":
            x = x / math.sqrt(sum(x**2))
        elif head.config.normalization == "layer":
            x = (x - x.mean()) / math.sqrt(((x - x.mean()) ** 2).mean() + 1e-5)
        if head.config.hidden:
            inner = state["expand.weight"] @ x + state["expand.bias"]
            inner = np.array([u * 0.5 * (1 + math.erf(u / math.sqrt(2))) for u in inner])
            x = x + state["contract.weight"] @ inner + state["contract.bias"]
        y = state["linear.weight"] @ x + state["linear.bias"]
        embeddings.append(y / math.sqrt(sum(y**2)))
    return np.array(embeddings)


@pytest.mark.parametrize("hidden", [0, 3])
@pytest.mark.parametrize("normalization", ["none", "layer", "l2"])
def test_a_head_is_normalization_mlp_linear_and_l2(normalization, hidden):
    head = made(normalization=normalization, hidden=hidden)
    expected = by_hand(head, vectors())
    np.testing.assert_allclose(head(torch.from_numpy(vectors())).detach().numpy(), expected, atol=1e-6)
    np.testing.assert_allclose(head.transform(vectors()), expected, atol=1e-6)


def test_an_mlp_starts_as_the_identity():
    torch.manual_seed(0)
    head = Head(HeadConfig(in_features=6, out_features=4, hidden=3))
    plain = Head(HeadConfig(in_features=6, out_features=4))
    plain.linear.load_state_dict(head.linear.state_dict())
    np.testing.assert_array_equal(head.transform(vectors()), plain.transform(vectors()))


@pytest.mark.parametrize("rows", [0, 1, 7, 8])
def test_blocks_do_not_change_what_is_computed(rows, monkeypatch):
    head = made(hidden=3)
    expected = head.transform(vectors(rows))
    assert expected.shape == (rows, 4)
    monkeypatch.setattr(head_module, "_BLOCK_BYTES", 4 * 6 * 3)  # three rows at a time
    np.testing.assert_allclose(head.transform(vectors(rows)), expected, atol=1e-7)


def test_embeddings_may_be_half_or_double_or_on_disk_and_broken_ones_stay_nan(tmp_path):
    head, rows = made(), vectors()
    rows[2] = np.nan
    np.save(tmp_path / "rows.npy", rows.astype(np.float16))
    mapped = head.transform(np.load(tmp_path / "rows.npy", mmap_mode="r"))
    np.testing.assert_array_equal(mapped, head.transform(rows.astype(np.float16).astype(np.float64)))
    assert np.isnan(mapped).all(1).tolist() == [False, False, True, False, False]
    assert mapped.dtype == np.float32


@pytest.mark.parametrize("shape", [(5, 7), (6,), (0, 4), (2, 3, 6)])
def test_another_shape_is_refused(shape):
    with pytest.raises(ValueError, match=r"the embeddings are \[.*\], but this head takes \[rows, 6\]\."):
        made().transform(np.zeros(shape, np.float32))
    with pytest.raises(ValueError, match="but this head takes"):
        made()(torch.zeros(shape))


def test_autocast_does_not_round_what_a_head_computes():
    head, rows = made(hidden=3), torch.from_numpy(vectors())
    with torch.autocast("cpu", torch.bfloat16):
        rounded = torch.nn.functional.linear(rows, head.linear.weight)
        under_autocast = head(rows)
    assert rounded.dtype == torch.bfloat16, "autocast is on"
    assert torch.equal(under_autocast, head(rows))


# Files


def test_a_saved_head_is_the_same_head_with_its_record(tmp_path):
    head = made(hidden=3)
    head.training_record = {"loss": "roadmap", "AP": [0.1, 0.2]}
    head.save(tmp_path / "new" / "head")
    assert sorted(file.name for file in (tmp_path / "new" / "head").iterdir()) == ["head.json", "head.safetensors"]
    loaded = Head.load(tmp_path / "new" / "head")
    assert (loaded.config, loaded.training_record, loaded.training) == (head.config, head.training_record, False)
    assert loaded.fingerprint() == head.fingerprint()
    np.testing.assert_array_equal(loaded.transform(vectors()), head.transform(vectors()))


def test_a_fingerprint_tells_heads_apart():
    others = [made(seed=1), made(normalization="none"), made(hidden=3), made(out_features=3)]
    assert len({head.fingerprint() for head in (made(), *others)}) == 5
    recorded = made()
    recorded.training_record = {"loss": "roadmap"}
    assert recorded.fingerprint() == made().fingerprint(), "it is about what is computed"


@pytest.mark.parametrize("missing", ["head.json", "head.safetensors"])
def test_a_folder_that_lacks_a_file_says_which(tmp_path, missing):
    made().save(tmp_path)
    (tmp_path / missing).unlink()
    with pytest.raises(FileNotFoundError, match=f"not the folder of a head: it has no {missing}; `suprank adapt` writes one"):
        Head.load(tmp_path)


def test_what_is_no_head_is_named(tmp_path):
    tiny.embedder().save(tmp_path / "model")
    (tmp_path / "rows.npy").write_bytes(b"")
    with pytest.raises(FileNotFoundError, match=r"it does not exist; `suprank adapt` writes one\."):
        Head.load(tmp_path / "nothing")
    with pytest.raises(FileNotFoundError, match=r"it is a file; give the folder with head\.json and head\.safetensors\."):
        Head.load(tmp_path / "rows.npy")
    with pytest.raises(FileNotFoundError, match="it is that of a model, which has its head inside, if it has one; give it as"):
        Head.load(tmp_path / "model")


@pytest.mark.parametrize("damage", [lambda data: data[:-1], lambda data: data[:-1] + b"\x01", lambda data: b""])
def test_damaged_weights_are_refused(tmp_path, damage):
    made().save(tmp_path)
    weights = tmp_path / "head.safetensors"
    weights.write_bytes(damage(weights.read_bytes()))
    with pytest.raises(WeightsError, match=r"head\.safetensors is not the file that head\.json describes.*copy the head again"):
        Head.load(tmp_path)


def test_weights_of_another_shape_than_the_settings_are_refused(tmp_path):
    made().save(tmp_path)
    record = json.loads((tmp_path / "head.json").read_text())
    record["config"]["out_features"] = 5
    (tmp_path / "head.json").write_text(json.dumps(record))
    with pytest.raises(
        WeightsError, match=r"do not fit its settings: 2 have another shape .*\bis \[4, 6\] in the file and \[5, 6\]"
    ):
        Head.load(tmp_path)


def test_settings_of_any_size_take_no_memory_and_weights_that_are_none_are_refused_by_name(tmp_path):
    made().save(tmp_path)
    record = json.loads((tmp_path / "head.json").read_text())
    record["config"]["in_features"] = record["config"]["out_features"] = 10**6
    (tmp_path / "head.json").write_text(json.dumps(record))
    with pytest.raises(WeightsError, match="do not fit its settings"):
        Head.load(tmp_path)
    (tmp_path / "head.safetensors").write_bytes(b"damaged")
    record["weights_sha256"] = hashlib.sha256(b"damaged").hexdigest()
    (tmp_path / "head.json").write_text(json.dumps(record))
    with pytest.raises(ValueError, match=r"head\.safetensors is not a readable safetensors file"):
        Head.load(tmp_path)


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"format": 2}, r"has format 2, and suprank .* reads 1; a newer suprank may read it"),
        ({"config": {"in_features": 0, "out_features": 4}}, r"does not describe a head: config\.in_features: Input should be"),
        ({"config": {"in_features": 6, "out_features": 4, "normalization": "l1"}}, r"config\.normalization: Input should be"),
        ({"dropout": 0.1}, r"does not describe a head: dropout: Extra inputs are not permitted"),
    ],
)
def test_settings_that_are_no_heads_are_refused(tmp_path, entries, message):
    made().save(tmp_path)
    record = json.loads((tmp_path / "head.json").read_text())
    (tmp_path / "head.json").write_text(json.dumps({**record, **entries}))
    with pytest.raises(ValueError, match=message):
        Head.load(tmp_path)


@pytest.mark.parametrize("text", ["{", "[]", "\xff"])
def test_settings_that_are_no_json_are_refused(tmp_path, text):
    made().save(tmp_path)
    (tmp_path / "head.json").write_text(text, encoding="latin-1")
    with pytest.raises(ValueError, match="head.json (is not a readable description of a head|has format None)"):
        Head.load(tmp_path)


# On an embedder


def test_images_go_through_model_and_head():
    embedder, head = tiny.embedder(dim=6), made(hidden=3)
    before = embedder(tiny.images()).detach()
    adapted = embedder.with_head(head)
    assert adapted.dim == 4
    np.testing.assert_array_equal(adapted(tiny.images()).detach(), head(before).detach())
    assert torch.equal(embedder(tiny.images()), before), "the embedder itself is not changed"
    assert torch.equal(adapted.before_head(tiny.images()), before)
    listed = [parameter for group in adapted.parameter_groups().values() for parameter in group]
    assert len(listed) == len(set(listed)) == len([*adapted.parameters()])


def test_an_embedder_with_a_head_is_saved_in_two_files_and_has_a_fingerprint_of_its_own(tmp_path):
    embedder = tiny.embedder(dim=6)
    adapted = embedder.with_head(made())
    adapted.save(tmp_path)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["embedder.json", "model.safetensors"]
    loaded = Embedder.load(tmp_path)
    assert torch.equal(loaded(tiny.images()), adapted(tiny.images()))
    assert loaded.config.head == made().config
    assert loaded.head.fingerprint() == made().fingerprint()
    prints = [one.fingerprint() for one in (loaded, adapted, embedder, embedder.with_head(made(seed=1)))]
    assert prints[0] == prints[1]
    assert len(set(prints)) == 3


def test_a_head_that_does_not_fit_names_both_widths_and_heads_do_not_stack():
    embedder = tiny.embedder(dim=6)
    with pytest.raises(ValueError, match=r"takes embeddings of width 7, but those of this model \(test_resnet\) have width 6"):
        embedder.with_head(made(7))
    with pytest.raises(ValueError, match="takes embeddings of width 7, but those of this model"):
        Embedder.create("test_resnet", dim=6, head=HeadConfig(in_features=7, out_features=4))
    with pytest.raises(ValueError, match="already has a head, and heads do not stack"):
        embedder.with_head(made(6, 6)).with_head(made(6, 6))
    with pytest.raises(ValueError, match="has a head, trained for its present projection"):
        embedder.with_head(made()).with_projection(torch.zeros(6, embedder.features_dim), None)


def test_a_head_follows_the_mean_of_several_scales_and_is_not_rounded_by_the_precision():
    embedder, head = tiny.embedder(dim=6), made()
    adapted = embedder.with_head(head)
    scaled = multiscale(embedder, tiny.images()).detach()
    np.testing.assert_array_equal(multiscale(adapted, tiny.images()).detach(), head(scaled).detach())
    batch = ImageBatch(tiny.images(), torch.empty((2, 0), dtype=torch.int64), torch.arange(2), ())
    run = partial(embed, batches=[batch], precision="bf16")
    ((_, before),), ((_, after),) = run(embedder), run(adapted)
    np.testing.assert_allclose(after, head.transform(before), atol=1e-6)


def test_a_half_precision_model_has_a_half_precision_head():
    adapted = tiny.embedder(dim=6).with_head(made(hidden=3))
    exact, rounded = adapted(tiny.images()), adapted.to(torch.bfloat16)(tiny.images().bfloat16())
    assert rounded.dtype == torch.float32
    torch.testing.assert_close(rounded, exact, atol=0.1, rtol=0)


# Exports


@pytest.mark.parametrize("normalization", ["none", "layer", "l2"])
def test_three_lines_of_numpy_reproduce_a_head_from_its_matrix(tmp_path, normalization):
    head, x = made(normalization=normalization), vectors()
    assert export_matrix(head, tmp_path / "head.npz") < 1e-6
    assert [file.name for file in tmp_path.iterdir()] == ["head.npz"]
    matrix = np.load(tmp_path / "head.npz")
    assert {name: (matrix[name].shape, matrix[name].dtype.str) for name in ("weight", "bias")} == {
        "weight": ((4, 6), "<f4"),
        "bias": ((4,), "<f4"),
    }
    if matrix["normalization"] == "l2":
        x = x / np.linalg.norm(x, axis=1, keepdims=True)
    elif matrix["normalization"] == "layer":
        x = (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5)
    y = x @ matrix["weight"].T + matrix["bias"]
    y = y / np.linalg.norm(y, axis=1, keepdims=True)
    np.testing.assert_allclose(y, head.transform(vectors()), atol=1e-6)


@pytest.mark.parametrize("normalization", ["none", "l2"])
def test_without_a_bias_a_head_is_a_matrix_product(tmp_path, normalization):
    head = made(normalization=normalization)
    torch.nn.init.zeros_(head.linear.bias)
    export_matrix(head, tmp_path / "head.npz")
    y = vectors() @ np.load(tmp_path / "head.npz")["weight"].T
    cosines = (y @ y.T) / np.linalg.norm(y, axis=1) / np.linalg.norm(y, axis=1)[:, None]
    transformed = head.transform(vectors())
    np.testing.assert_allclose(transformed @ transformed.T, cosines, atol=1e-5)


def test_vectors_of_zeros_are_mapped_as_by_torch(tmp_path):
    for normalization in ("none", "layer", "l2"):
        head = made(normalization=normalization)
        export_matrix(head, tmp_path / "head.npz")
        found = export._apply_matrix(np.load(tmp_path / "head.npz"), np.zeros((2, 6), np.float32))
        np.testing.assert_allclose(found, head.transform(np.zeros((2, 6))), atol=1e-6)


def test_what_is_no_matrix_is_refused_and_nothing_is_written(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match=r"has an MLP of width 3, so that it is no matrix; export it as \.onnx, or train"):
        export_matrix(made(hidden=3), tmp_path / "head.npz")
    with pytest.raises(ValueError, match=r"head\.npy must end in \.npz"):
        export_matrix(made(), tmp_path / "head.npy")
    monkeypatch.setattr(export, "_apply_matrix", lambda matrix, rows: rows[:, :4])
    with pytest.raises(ExportError, match=r"differ from the head's by .*, more than 0\.0001; .* does not export this head"):
        export_matrix(made(), tmp_path / "head.npz")
    assert not [*tmp_path.iterdir()]
