"""suprank embed: from a folder of pictures to numbers, however often it is interrupted and by however many processes."""

import os
import shutil
import signal
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from suprank import evaluation, open_data
from suprank.cli.main import main
from suprank.data import ImageDataset, Manifest, eval_transform
from suprank.embedding import collection, read_embedded
from suprank.embedding.shards import _Stream
from suprank.evaluation import Report, evaluate
from suprank.explorer.images import unit_embeddings
from suprank.models import Embedder
from suprank.workflows.adaptation import open_training
from tests.cli.collection import done, photographs, refused
from tests.models.tiny import embedder
from tests.training.runs import two_ranks
from tests.waiting import wait_until

FAST = ("--size", 32, "--resize", 0, "--batch-size", 5, "--workers", 0, "--device", "cpu")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """photos/ of 9 classes in 3 groups, their manifest, all for test, and a model."""
    source = tmp_path_factory.mktemp("made")
    photographs(source / "photos")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(source)
        done("data", "import", "folder", "photos", "split=test", "--out", "m.parquet")
    embedder(dim=8).save(source / "model")
    return source


@pytest.fixture(autouse=True)
def folder(made, tmp_path, monkeypatch):
    """The working folder, with a copy of all that."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    Manifest.read("m.parquet", root=tmp_path / "photos").save("m.parquet")
    return tmp_path


def embed(*arguments, manifest="m.parquet", out="e"):
    return done("embed", "model", manifest, "--out", out, *FAST, *arguments)


def refusal(*arguments, model="model", manifest="m.parquet"):
    return refused("embed", model, manifest, "--out", "e", *FAST, *arguments)


def plain(model, manifest, transform):
    """One image at a time: no batches, no files."""
    with torch.inference_mode():
        dataset = ImageDataset(manifest, transform)
        return torch.cat([model(dataset[row].image[None]) for row in range(len(dataset))])


def test_from_a_folder_to_numbers_that_the_library_gives_for_a_plain_loop(folder):
    done("data", "import", "folder", "photos", "--holdout-classes", 0.4, "--out", "split.parquet")
    done("data", "check", "split.parquet")
    done("data", "show", "split.parquet")
    done("models", "create", "test_resnet", "--untrained", "--dim", 16, "--out", "made")
    result = done("embed", "made", "split.parquet", "--out", "e", "--size", 40, "--workers", 0)
    assert result.stdout == "test: e/test\n"
    assert "embedding test" in result.stderr
    assert "16/16" in result.stderr
    shown = done("evaluate", "e", "--device", "cpu", "--out", "r.json").stdout
    assert "16 queries, 16 items" in shown

    model, test = Embedder.load("made").eval(), Manifest.read("split.parquet").split("test")
    side, own = round(40 * model.input.resize / model.input.size[0]), model.input
    transform = eval_transform(40, resize=side, interpolation=own.interpolation, mean=own.mean, std=own.std)
    rows = plain(model, test, transform)
    np.testing.assert_allclose(read_embedded("e", "test").embeddings, rows, atol=1e-5)
    expected = evaluation.evaluate(rows, test.labels, levels=test.levels, device="cpu", progress=False)
    assert Report.load("r.json").means == pytest.approx(dict(expected), abs=1e-5, nan_ok=True)


def test_queries_rank_the_gallery_and_its_distractors_but_never_their_own_image(folder):
    paths = [f"group{group}/class{group}{one}/{image}.png" for group in "012" for one in "01" for image in "012"]
    splits = [split for place in range(6) for split in ("query", "gallery", "distractor" if place > 3 else "gallery")]
    labels = ["" if split == "distractor" else path.split("/")[1] for path, split in zip(paths, splits, strict=True)]
    columns = {
        "path": [*paths, paths[0]],  # the first query is in the gallery too
        "split": [*splits, "gallery"],
        "label_class": [*labels, labels[0]],
        "id": [*(f"photograph {place}" for place in range(len(paths))), "photograph 0"],
    }
    manifest = Manifest.from_columns(columns, root=folder / "photos")
    manifest.save("q.parquet")
    embed(manifest="q.parquet")
    query, gallery = (read_embedded("e", part) for part in ("query", "gallery"))
    assert (len(query.items), len(gallery.items)) == (6, 13)
    assert gallery.items.splits == {"gallery": 11, "distractor": 2}
    done("evaluate", "e", "--device", "cpu", "--per-query", "--out", "r.json", "--save-run", "run.json")
    found = Report.load("r.json")
    assert found.query_ids.tolist() == [f"photograph {3 * place}" for place in range(6)]
    first = dict(evaluation.Run.load("run.json"))["photograph 0"]
    assert "photograph 0" not in [item for item, _ in first]
    assert len(first) == 12

    model = Embedder.load("model").eval()
    transform = eval_transform(32, resize=None, mean=model.input.mean, std=model.input.std)
    rows = plain(model, manifest, transform)
    is_query = np.asarray(columns["split"]) == "query"
    ids = np.asarray(columns["id"])
    expected = evaluation.evaluate(
        rows[is_query],
        manifest.labels[is_query],
        rows[~is_query],
        manifest.labels[~is_query],
        levels=manifest.levels,
        ids=ids[is_query].tolist(),
        gallery_ids=ids[~is_query].tolist(),
        device="cpu",
        progress=False,
    )
    assert found.means == pytest.approx(dict(expected), abs=1e-5, nan_ok=True)


def test_splits_levels_precision_and_scales_can_be_chosen():
    done("data", "import", "folder", "photos", "--holdout-classes", 0.4, "--out", "m.parquet")
    output = embed("--split", "train", "--split", "test", "--quiet").stderr
    assert "options override what model was saved with: image size 32 against 160; resize none against 168" in output
    assert [len(read_embedded("e", part).embeddings) for part in ("train", "test")] == [20, 16]
    shown = done("evaluate", "e", "--level", "group", "--metric", "AP", "--device", "cpu").stdout
    assert "group" in shown
    assert "class" not in shown
    embed("--dtype", "float16", out="half")
    assert read_embedded("half", "test").embeddings.dtype == np.float16
    embed("--scale", 1, "--scale", 0.5, out="scales")
    embed("--precision", "bf16", out="bf16")
    plain, half, scales, bf16 = (np.asarray(read_embedded(out, "test").embeddings) for out in ("e", "half", "scales", "bf16"))
    assert np.abs(half - plain).max() < 1e-3
    assert 0 < np.abs(bf16 - plain).max() < 0.05
    assert np.abs(scales - plain).max() > 1e-3


def test_a_finished_run_is_not_done_again_and_another_is_refused(folder):
    embed()
    written = (folder / "e/test/embeddings.npy").stat()
    embed()
    assert (folder / "e/test/embeddings.npy").stat().st_mtime_ns == written.st_mtime_ns
    assert "e/test has the embeddings of another run: transform is" in refusal("--size", 40)
    embedder(dim=8, seed=1).save("other")
    output = refused("embed", "other", "m.parquet", "--out", "e", *FAST)
    assert "has the embeddings of another run: model is" in output
    assert "Choose another folder, or delete it to start again." in output


def test_a_broken_image_is_named_with_the_way_out(folder):
    (folder / "photos/group1/class10/2.png").write_text("no image")
    output = refusal()
    assert "Invalid value: group1/class10/2.png: is not an image" in output
    assert "on_broken='skip' leaves such images out" in output


def test_broken_images_can_be_left_out_of_embeddings_and_numbers(folder, caplog):
    for name in ("group1/class10/2.png", "group2/class22/3.png"):
        (folder / "photos" / name).write_text("no image")
    embed("--on-broken", "skip")
    assert "skipped group1/class10/2.png" in caplog.text
    result = done("evaluate", "e", "--device", "cpu")
    assert "test: 2 broken images are left out" in result.stderr
    assert "34 queries, 34 items" in result.stdout


def test_a_missing_image_or_root_is_named(folder):
    assert "the root gone is not a folder" in refusal("--root", "gone")
    (folder / "photos/group1/class10/2.png").unlink()
    assert "group1/class10/2.png is not under" in refusal("--out", "e2")


@pytest.mark.parametrize(
    ("given", "arguments", "message"),
    [
        ({"manifest": "gone.parquet"}, (), "gone.parquet: the manifest does not exist"),
        ({"model": "resnet5O"}, (), "resnet50"),
        (
            {"model": "gone/model"},
            (),
            "gone/model is not a folder; give a saved embedder, the name of a timm backbone, hf-hub:org/name for one on the "
            "Hugging Face Hub, or FILE.py:NAME.",
        ),
        ({"model": "photos"}, (), "photos is not a folder of a saved embedder"),
        ({}, ("--weights", "w.pth"), "model is a saved embedder, with weights and settings of its own"),
        ({"model": "test_resnet"}, ("--weights", "gone.pth"), "gone.pth"),
        ({"model": "test_resnet"}, ("--weights", "m.parquet"), "'.parquet' is none of .safetensors, .pth"),
        ({"model": "test_resnet"}, ("--weights", "w.pth"), "w.pth"),
        ({"model": "test_vit"}, ("--weights", "model/model.safetensors"), "does not fit test_vit"),
        ({}, ("--split", "valid"), "there is no split 'valid' here; choose from test."),
        ({}, ("--size", "64", "--resize", "32"), "resize=32 must be at least size=64"),
        ({}, ("--squash",), "squash=True resizes to resize × resize, so it needs a resize"),
        ({}, ("--scale", "0"), "0.0 is not a scale; give numbers above 0"),
        ({}, ("--device", "tpu"), "'tpu' is not a device"),
        ({}, ("--out", "m.parquet"), "m.parquet is a file; name a folder."),
        ({}, ("--batch-size", "0"), "--batch-size"),
    ],
)
def test_what_cannot_be_embedded_is_said_plainly_and_leaves_no_folder(folder, given, arguments, message):
    (folder / "w.pth").write_text("no weights")
    weights = next(Path("model").glob("*.safetensors")).name
    arguments = [argument.replace("model.safetensors", weights) for argument in arguments]
    assert message in refusal(*arguments, **given)
    assert not (folder / "e").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("gone",), "there is no gone; name a folder of `suprank train` or `suprank embed`, a file of embeddings"),
        (("photos",), "photos has no embeddings; name a folder of `suprank train` or `suprank embed`"),
        (("e", "--level", "order"), "e has no level 'order'; choose from class, group."),
        (("e", "--labels", "m.parquet"), "e is a folder, which has its own labels, gallery and ids"),
    ],
)
def test_folders_that_cannot_be_evaluated_are_said_plainly(arguments, message):
    embed()
    assert message in refused("evaluate", *arguments)


def started(forked, *arguments, shard_rows=collection.SHARD_ROWS, pause=0, variables=None):
    """The command line in a process of its own, and group. Not a fork of this one: grpc, of other tests, crashes in forks.

    A batch takes `pause` seconds more, so that there is something left to do when somebody looks.
    """
    return forked.function(partial(_run, [*map(str, arguments)], shard_rows, pause), variables)


def _run(arguments, shard_rows, pause):
    sys.argv = ["suprank", *arguments]
    collection.SHARD_ROWS = shard_rows
    take = _Stream.take
    _Stream.take = lambda *of: time.sleep(pause) or take(*of)
    main()


def test_ctrl_c_stops_plainly_and_the_same_command_goes_on(forked, folder, monkeypatch):
    rows = 320
    lines = ["path,split,label_class", *(f"group0/class00/{row % 4}.png,test,c{row % 4}" for row in range(rows))]
    (folder / "long.csv").write_text("\n".join(lines))
    command = ("embed", "model", "long.csv", "--root", "photos", "--out", "e", *FAST[:-2])
    command = (*command, "--batch-size", 8, "--workers", 1)
    parts = folder / "e/test/parts"
    first = started(forked, *command, shard_rows=8, pause=0.2)
    wait_until((parts / "00001.npy").exists)
    os.killpg(first.pid, signal.SIGINT)  # as a terminal does: to the workers too
    code, _, output = first.end(60)
    assert code == 130, output
    assert output.endswith("\nsuprank: stopped.\n")
    assert "Traceback" not in output
    finished = {part.name: part.stat().st_mtime_ns for part in parts.glob("*.npy")}
    assert 2 <= len(finished) < rows // 8
    assert not (folder / "e/test/embeddings.npy").exists()
    assert "interrupted; give its `suprank embed` again" in refused("evaluate", "e")

    monkeypatch.setattr(collection, "SHARD_ROWS", 8)
    done(*command)
    found = np.asarray(read_embedded("e", "test").embeddings)
    assert len(found) == rows
    np.testing.assert_allclose(found, np.tile(found[:4], (rows // 4, 1)), atol=1e-6)


def test_the_processes_of_a_torchrun_share_the_images(forked):
    embed(out="alone")
    command = ("embed", "model", "m.parquet", "--out", "shared", *FAST)
    processes = [started(forked, *command, variables=variables) for variables in two_ranks()]
    ends = [process.end(120) for process in processes]
    assert [(code, output) for code, output, _ in ends] == [(0, "test: shared/test\n"), (0, "")], ends
    alone, shared = (np.asarray(read_embedded(out, "test").embeddings) for out in ("alone", "shared"))
    np.testing.assert_allclose(alone, shared, atol=1e-6)


def long_run(folder, out, *arguments):
    """A command that embeds 320 images, 8 in a shard."""
    lines = ["path,split,label_class", *(f"group{row % 3}/class{row % 3}0/{row % 4}.png,test,c{row % 3}" for row in range(320))]
    (folder / "long.csv").write_text("\n".join(lines))
    return (
        "embed",
        "model",
        "long.csv",
        "--root",
        "photos",
        "--out",
        out,
        *FAST[:4],
        "--batch-size",
        8,
        "--workers",
        1,
        *arguments,
    )


def test_machines_embed_a_share_each_one_is_killed_and_the_joined_result_is_that_of_one_machine(forked, folder, monkeypatch):
    monkeypatch.setattr(collection, "SHARD_ROWS", 8)
    command, parts = long_run(folder, "e", "--device", "cpu"), folder / "e/test/parts"
    killed = started(forked, *command, "--shard", "1/3", shard_rows=8, pause=0.2)
    wait_until((parts / "00003.npy").exists)
    assert "is embedding shard 1/3 into e/test/parts; wait for it to end." in refused(*command, "--shard", "1/3")
    assert "is embedding a share of the shards into e/test/parts; wait for it to end, or" in refused(*command)
    os.killpg(killed.pid, signal.SIGKILL)
    assert killed.end(60)[0] == -signal.SIGKILL
    assert not (parts / "00039.npy").exists()
    assert "interrupted; give its `suprank embed` again, without a shard" in refused("evaluate", "e")

    others = [started(forked, *command, "--shard", f"{i}/3", shard_rows=8, pause=0.02) for i in (1, 2)]
    others.append(started(forked, *long_run(folder, "alone", "--device", "cpu"), shard_rows=8))
    ends = [process.end(120) for process in others]
    assert [code for code, *_ in ends] == [0, 0, 0], ends
    assert "shards of 1/3 were there" in ends[0][2]
    assert "e/test: 0 of 13 shards of 2/3 were there, 13 computed now.\n" in ends[1][2]
    joined = done(*command)
    assert joined.stdout == "test: e/test\n"
    assert "e/test: 27 of 40 shards were there, 13 computed now, joined.\n" in joined.stderr
    assert (folder / "e/test/embeddings.npy").read_bytes() == (folder / "alone/test/embeddings.npy").read_bytes()
    assert {file.name for file in (folder / "e/test").iterdir()} == {file.name for file in (folder / "alone/test").iterdir()}
    one, shared = read_embedded("alone", "test"), read_embedded("e", "test")
    assert one.items.table.equals(shared.items.table)
    done("evaluate", "alone", "--device", "cpu", "--out", "alone.json")
    done("evaluate", "e", "--device", "cpu", "--out", "e.json")
    assert Report.load("e.json").means == Report.load("alone.json").means


def test_what_reads_embeddings_reads_those_without_broken_images_and_those_of_shares(folder, monkeypatch):
    monkeypatch.setattr(collection, "SHARD_ROWS", 5)
    embed("--split", "test", out="intact")
    (folder / "photos/group1/class10/2.png").write_text("no image")
    left = read_embedded("intact", "test").items.paths.to_pylist().index("group1/class10/2.png")
    for shard in (("--shard", "1/2"), ("--shard", "2/2"), ()):
        embed("--on-broken", "skip", *shard)
    whole, part = read_embedded("intact", "test"), read_embedded("e", "test")
    assert part.broken == 1
    rows = np.delete(np.asarray(whole.embeddings), left, 0)
    np.testing.assert_allclose(np.asarray(part.embeddings), rows, atol=1e-6)
    np.save("rows.npy", np.asarray(part.embeddings))
    part.items.save("rows.parquet")

    data = open_data("e")
    np.testing.assert_allclose(unit_embeddings(data.items, [7, 3]), rows[[7, 3]], atol=1e-6)
    done("evaluate", "rows.npy", "--labels", "rows.parquet", "--device", "cpu", "--out", "rows.json")
    done("evaluate", "e", "--device", "cpu", "--out", "e.json")
    found, expected = (Report.load(name).means for name in ("e.json", "rows.json"))
    assert found == pytest.approx(expected, nan_ok=True)
    assert evaluate(data, device="cpu").means == pytest.approx(found, nan_ok=True)
    assert searched("e") == searched("rows.npy", "--labels", "rows.parquet") != ""
    training, _ = open_training("e")
    np.testing.assert_array_equal(training.queries.embeddings[:], np.load("rows.npy"))


def searched(source, *options):
    """What a search for two rows prints."""
    np.save("queries.npy", np.load("rows.npy")[:2])
    return done("search", source, *options, "--queries", "queries.npy", "--k", 3).stdout


@pytest.mark.parametrize("shard", ["0/16", "17/16", "a/b", "3", "-1/2", "3/16/2", "1.5/2", "²/3"])
def test_a_share_that_cannot_be_is_one_sentence(folder, shard):
    assert f"Invalid value for --shard: {shard!r} is not I/N, with I from 1 to N, such as 3/16." in refusal(f"--shard={shard}")
    assert not (folder / "e").exists()
