"""A folder to look at: a run's test images are embedded once, as training judged them, and kept."""

import os
import time
from functools import partial

import numpy as np
import pytest
import torch

from suprank import open_data
from suprank.data import Manifest
from suprank.evaluation import evaluate
from suprank.explorer.images import read_picture
from suprank.training.recipe import read_recipe
from suprank.training.validation import Validator
from suprank.workflows.run_embeddings import embeddings_folder, image_embedder, load_run_model
from tests.explorer import runs
from tests.models.tiny import embedder

RECIPE = """
[data]
manifest = "{manifest}"
workers = 0
{more}
[images]
size = 32
test_resize = 36

[loss]
name = "happier"
"""


AS_THE_RECIPE_READS = {"image_size": 32, "resize": 36}


def made(folder, manifest, more="", *, model=True):
    """A run that has a recipe and a model, and nothing embedded yet."""
    folder.mkdir()
    manifest.save(folder.parent / "m.parquet")
    (folder / "recipe.toml").write_text(RECIPE.format(manifest=folder.parent / "m.parquet", more=more))
    if model:
        embedder(dim=8, **AS_THE_RECIPE_READS).save(folder / "model")
    return folder


@pytest.fixture
def pictures(tmp_path):
    return runs.collection(tmp_path / "data")


def test_test_images_are_embedded_as_training_judges_them(tmp_path, pictures):
    run = made(tmp_path / "run", pictures)
    output = []
    data = open_data(run, device="cpu", progress=lambda *values: output.append(values))
    assert output[-1] == ("run: embedding test", 24, 24)
    model, reading = load_run_model(run)
    judge = Validator.from_config(read_recipe(run / "recipe.toml"), pictures)
    with torch.inference_mode():
        judged = judge(reading.before(model), device="cpu", progress=lambda *_: None)["test"]
    assert evaluate(data, metrics=["H-AP"])["H-AP"] == pytest.approx(judged["H-AP"])


def test_what_is_embedded_is_kept_even_when_all_else_is_gone(tmp_path, pictures):
    run = made(tmp_path / "run", pictures)
    before = open_data(run, device="cpu").queries.embeddings[:]
    (tmp_path / "m.parquet").unlink()
    for file in (run / "model").iterdir():
        file.unlink()
    output = []
    assert (open_data(run, progress=lambda *values: output.append(values)).queries.embeddings[:] == before).all()
    assert output == []


def test_a_model_that_is_copied_is_the_same_and_another_one_is_embedded_anew(tmp_path, pictures, caplog):
    caplog.set_level("INFO", "suprank")
    run = made(tmp_path / "run", pictures)
    before = open_data(run, device="cpu").queries.embeddings[:]
    later = time.time() + 10
    os.utime(run / "model" / "model.safetensors", (later, later))
    output = []
    open_data(run, device="cpu", progress=lambda *values: output.append(values))
    assert output == []
    embedder(dim=8, seed=1).save(run / "model")
    os.utime(run / "model" / "model.safetensors", (later, later))
    after = open_data(run, device="cpu").queries.embeddings[:]
    assert not np.allclose(before, after)
    assert "earlier model" in caplog.text


def test_another_model_is_noticed_whatever_the_times_of_its_files(tmp_path, pictures):
    run = made(tmp_path / "run", pictures)
    before = open_data(run, device="cpu").queries.embeddings[:]
    embedder(dim=8, seed=1, **AS_THE_RECIPE_READS).save(run / "model")
    for file in (run / "model").iterdir():
        os.utime(file, (0, 0))  # as of a copy that keeps the times of an older model
    assert not np.allclose(before, open_data(run, device="cpu").queries.embeddings[:])


def test_a_copied_run_is_neither_embedded_anew_nor_is_its_model_loaded(tmp_path, pictures, monkeypatch):
    run = made(tmp_path / "run", pictures)
    open_data(run, device="cpu")
    later = time.time() + 10
    for file in (run / "model").iterdir():
        os.utime(file, (later, later))
    monkeypatch.setattr("suprank.workflows.run_embeddings.load_run_model", None)
    assert len(open_data(run, device="cpu").queries) == 24


def test_an_interrupted_embedding_is_gone_on_with(tmp_path):
    whole = runs.collection(tmp_path / "data", splits=("test", "distractor"))
    run = made(tmp_path / "run", whole)
    assert len(open_data(run, device="cpu").items) == 24
    (run / "embeddings" / "test" / "embeddings.npy").unlink()
    output = []
    data = open_data(run, device="cpu", progress=lambda *values: output.append(values))
    assert {what for what, *_ in output} >= {"run: embedding test"}
    assert (len(data.queries), len(data.items)) == (12, 24)


def test_further_test_sets_have_folders_of_their_own(tmp_path, pictures):
    fine = pictures.take(np.arange(8))
    fine.save(tmp_path / "fine.parquet")
    train = pictures.with_columns(split=["train"] * 24)
    run = made(tmp_path / "run", train, more=f'tests = {{ fine = "{tmp_path / "fine.parquet"}" }}')
    data = open_data(run, device="cpu")
    assert (data.origin.test, len(data.queries)) == ("fine", 8), "its manifest has no test images of its own"
    assert embeddings_folder(run, "fine").name == "embeddings-fine"
    with pytest.raises(ValueError, match="only train; choose test='fine'"):
        open_data(run, test="test", device="cpu")
    with pytest.raises(ValueError, match="no test set 'coarse'; choose from test, fine"):
        open_data(run, test="coarse")


def test_a_folder_of_embeddings_is_read_as_it_is(tmp_path, pictures):
    assert len(open_data(runs.embeddings(tmp_path / "e", pictures)).queries) == 24


def test_a_run_without_a_model_is_refused_and_one_that_trains_has_its_best(tmp_path, pictures):
    run = made(tmp_path / "run", pictures, model=False)
    with pytest.raises(FileNotFoundError, match="has no model yet"):
        open_data(run, device="cpu")
    embedder(dim=8).save(run / "best")
    assert len(open_data(run, device="cpu").queries) == 24


def test_a_run_that_cannot_be_written_to_says_what_to_do(tmp_path, pictures, monkeypatch):
    run = made(tmp_path / "run", pictures)
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(PermissionError, match="suprank embed .*model MANIFEST"):
        open_data(run, device="cpu")


def test_the_recipe_of_an_earlier_version_is_refused_with_what_to_do(tmp_path, pictures):
    run = made(tmp_path / "run", pictures)
    recipe = run / "recipe.toml"
    recipe.write_text(recipe.read_text() + "\n[memory]\nsomething_gone = 1\n")
    with pytest.raises(ValueError, match=r"does not read: .*something_gone.*suprank embed .*model MANIFEST --out DIR"):
        open_data(run, device="cpu")


def test_a_picture_is_embedded_as_the_test_images_are(tmp_path, pictures):
    run = made(tmp_path / "run", pictures)
    data = open_data(run, device="cpu")
    embedding = image_embedder(partial(load_run_model, run), "cpu")
    assert embedding(read_picture(data.queries, 5)) == pytest.approx(data.queries.embeddings[[5]][0], abs=1e-5)


def test_a_manifest_of_train_alone_has_nothing_to_look_at(tmp_path, pictures):
    run = made(tmp_path / "run", Manifest.from_columns(pictures.with_columns(split=["train"] * 24).table, root=pictures.root))
    with pytest.raises(ValueError, match="no test images to look at"):
        open_data(run, device="cpu")


def replace_image(manifest, row, by):
    """Give an image the bytes of another one, and an old time."""
    file = manifest.root / manifest.paths[row].as_py()
    file.write_bytes((manifest.root / manifest.paths[by].as_py()).read_bytes())
    os.utime(file, (0, 0))


def test_images_that_were_replaced_under_the_same_names_are_embedded_anew(tmp_path, pictures, caplog):
    caplog.set_level("INFO", "suprank")
    run = made(tmp_path / "run", pictures)
    before = open_data(run, device="cpu").queries.embeddings[:]
    replace_image(pictures, 5, by=20)
    after = open_data(run, device="cpu").queries.embeddings[:]
    assert after[5] == pytest.approx(before[20], abs=1e-6)
    assert "images that were replaced since (1 of 24, the first pictures/" in caplog.text


def test_a_copy_of_the_images_is_the_same_and_is_read_only_once(tmp_path, pictures, monkeypatch):
    run = made(tmp_path / "run", pictures)
    open_data(run, device="cpu")
    for path in pictures.paths.to_pylist():
        os.utime(pictures.root / path, (1, 1))
    output = []
    open_data(run, device="cpu", progress=lambda *values: output.append(values))
    monkeypatch.setattr("suprank.data.contents.hash_images", None)
    open_data(run, device="cpu", progress=lambda *values: output.append(values))
    assert output == []


def test_labels_that_were_corrected_are_those_of_the_manifest_and_nothing_is_embedded(tmp_path, pictures, caplog):
    run = made(tmp_path / "run", pictures)
    before = open_data(run, device="cpu")
    names = pictures.table["label_class"].to_pylist()
    pictures.with_columns(label_class=[names[4], *names[1:]]).save(tmp_path / "m.parquet")
    output = []
    after = open_data(run, device="cpu", progress=lambda *values: output.append(values))
    assert output == []
    assert (after.queries.manifest.table["label_class"].to_pylist()[0], names[0]) == (names[4], names[1])
    assert evaluate(before, metrics=["R@1"], ks=[1]).means != evaluate(after, metrics=["R@1"], ks=[1]).means
    assert caplog.text.count("the labels (class) are replaced by those of the manifest.") == 1


def test_a_manifest_of_other_images_is_embedded_anew(tmp_path, pictures):
    run = made(tmp_path / "run", pictures)
    open_data(run, device="cpu")
    pictures.take(np.arange(16)).save(tmp_path / "m.parquet")
    assert len(open_data(run, device="cpu").queries) == 16
