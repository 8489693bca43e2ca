"""Our models in mteb, and mteb's tasks as manifests, on a task of a few drawn images: nothing is downloaded.

mteb takes seconds to import, so it is imported when the first test runs, and not while tests are collected.
"""

import io
import json
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

import suprank
from suprank.evaluation import Report
from suprank.evaluation.protocols import mteb_metric
from tests.cli.collection import done, refused
from tests.models.tiny import embedder

ROOT = Path(__file__).parents[2]
LABELS = np.arange(24) // 4
NAMES = [f"bird{number:02}" for number in np.random.default_rng(0).permutation(24)]

pytestmark = [
    pytest.mark.skipif(find_spec("mteb") is None, reason="needs mteb"),
    pytest.mark.filterwarnings("default"),  # those of mteb and datasets are not ours
]


def encoded(picture, kind="PNG", **options):
    content = io.BytesIO()
    picture.save(content, kind, **options)
    return {"bytes": content.getvalue(), "path": None}


def pictures():
    """24 pictures of 6 classes; some are stored in ways that readers of images disagree on."""
    draw = np.random.default_rng(0)
    colors = draw.uniform(0, 255, (6, 3, 4, 3))[LABELS] + draw.uniform(-90, 90, (24, 3, 4, 3))
    drawn = [Image.fromarray(one.clip(0, 255).astype(np.uint8)).resize((72, 60)) for one in colors]
    stored = [encoded(picture) for picture in drawn]
    turned = Image.Exif()
    turned[0x0112] = 6
    stored[3] = encoded(drawn[3], "JPEG", exif=turned)
    transparent = drawn[7].convert("RGBA")
    transparent.putalpha(drawn[8].convert("L"))
    stored[7] = encoded(transparent)
    stored[9] = encoded(Image.fromarray(np.asarray(drawn[9].convert("L")).astype(np.uint16) * 257))
    return stored


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """mteb, our module, and a task on the pictures, whose queries are its corpus."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_OFFLINE", "1")
        from suprank.integrations import mteb as ours  # first: it declares the operators of torchvision

        # isort: split
        import datasets
        import mteb
        from mteb.abstasks.retrieval import AbsTaskRetrieval

        patch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path_factory.mktemp("datasets"))
        datasets.disable_progress_bars()
        columns = {"id": NAMES, "image": pictures()}
        images = datasets.Dataset.from_dict(columns).cast_column("image", datasets.Image())
        judged = {
            name: {other: 1 + number % 2 for number, other in enumerate(NAMES) if LABELS[number] == own and other != name}
            for name, own in zip(NAMES, LABELS, strict=True)
        }

        class Birds(AbsTaskRetrieval):
            metadata = mteb.get_task("CUB200I2IRetrieval").metadata.model_copy(update={"name": "Birds"})
            skip_first_result = True

            def load_data(self, num_proc=None, **_):
                parts = {"corpus": images, "queries": images, "relevant_docs": dict(judged), "top_ranked": None}
                self.dataset, self.data_loaded = {"default": {"test": parts}}, True

        yield SimpleNamespace(mteb=mteb, ours=ours, datasets=datasets, task=Birds, images=images, judged=judged)
        datasets.enable_progress_bars()


@pytest.fixture(scope="module")
def imported(library, tmp_path_factory):
    """The task as a manifest, embedded with the command's function."""
    folder = tmp_path_factory.mktemp("task")
    library.ours.task_manifest(library.task(), folder)
    suprank.embed(embedder(), folder / "manifest.parquet", folder / "embedded", device="cpu", workers=0, batch_size=32)
    return folder


def mteb_scores(library, task):
    model = library.ours.ImageEncoder(embedder(), device="cpu")
    (result,) = library.mteb.evaluate(model, task, cache=None, show_progress_bar=False).task_results
    return result.scores["test"][0]


def assert_same_digits(report, scores):
    """mteb rounds to five decimals, except for MRR."""
    ranked = [name for name in scores if "_at_" in name and not name.startswith("nauc")]
    assert len(ranked) == 6 * 7
    for name in ranked:
        assert round(report[mteb_metric(name)], 5) == round(scores[name], 5), name


@pytest.mark.parametrize("rule", ["first", "id", "keep"])
def test_a_task_has_mtebs_numbers(library, imported, tmp_path, rule):
    task = library.task()
    task.skip_first_result, task.ignore_identical_ids = rule == "first", rule == "id"
    (tmp_path / "qrels.json").write_text((imported / "qrels.json").read_text())  # without task.json
    report = suprank.evaluate(imported / "embedded", truth=f"{tmp_path}/qrels.json:{rule}")
    scores = mteb_scores(library, task)
    assert_same_digits(report, scores)
    if rule == "first":
        assert 0 < scores["main_score"] < 1
        assert suprank.evaluate(imported / "embedded", truth=imported / "qrels.json") == report


def test_images_are_embedded_as_suprank_embed_does(library, imported):
    model = library.ours.ImageEncoder(embedder(), device="cpu")
    loader = library.mteb._create_dataloaders.create_dataloader(library.images, task_metadata=library.task.metadata)
    side = library.mteb.types.PromptType.query
    found = model.encode(
        loader,
        task_metadata=library.task.metadata,
        hf_split="test",
        hf_subset="default",
        prompt_type=side,
        show_progress_bar=False,
    )
    assert np.array_equal(found, np.load(imported / "embedded" / "query" / "embeddings.npy"))
    larger = library.ours.ImageEncoder(embedder(), device="cpu", size=32)
    assert larger.mteb_model_meta.experiment_kwargs == {"size": 32}
    assert larger.mteb_model_meta.revision == model.mteb_model_meta.revision == embedder().fingerprint()[:16]


def test_saved_models_and_runs_are_loaded(library, tmp_path):
    embedder().save(tmp_path / "run" / "model")
    (tmp_path / "run" / "recipe.toml").write_text("")
    for folder, name in ((tmp_path / "run", "suprank/run"), (tmp_path / "run" / "model", "suprank/model")):
        model = library.ours.ImageEncoder(folder, device="cpu")
        assert model.mteb_model_meta.name == name
        assert model.embedder.fingerprint() == embedder().fingerprint()
    with pytest.raises(FileNotFoundError, match="is not a folder; give an Embedder"):
        library.ours.ImageEncoder(tmp_path / "none")


def test_text_is_refused(library):
    model = library.ours.ImageEncoder(embedder(), device="cpu")
    texts = library.datasets.Dataset.from_dict({"text": ["a jay"]})
    metadata = library.mteb.get_task("Flickr30kT2IRetrieval").metadata
    loader = SimpleNamespace(dataset=texts, num_workers=0)
    with pytest.raises(ValueError, match="Flickr30kT2IRetrieval has queries of text, but suprank's models embed images only"):
        model.encode(
            loader,
            task_metadata=metadata,
            hf_split="test",
            hf_subset="default",
            prompt_type=library.mteb.types.PromptType.query,
        )
    with pytest.raises(ValueError, match="supports \\['image'\\], but none overlap"):
        library.mteb.evaluate(model, library.mteb.get_task("NFCorpus"), cache=None)


def test_an_import_keeps_images_as_stored_and_each_once(library, imported):
    found = {path.read_bytes() for path in (imported / "images").iterdir()}
    assert found == {one["bytes"] for one in pictures()}
    assert json.loads((imported / "qrels.json").read_text()) == library.judged
    task = json.loads((imported / "task.json").read_text())
    assert (task["name"], task["self_match"], task["main_score"]) == ("Birds", "first", "hit_rate_at_1")


def repository(library, folder):
    """The files of a dataset's repository, as the hub has them."""
    names = ("corpus", "query", "qrels")
    triples = [(query, item, grade) for query, judged in list(library.judged.items())[:10] for item, grade in judged.items()]
    columns = dict(zip(("query-id", "corpus-id", "score"), map(list, zip(*triples, strict=True)), strict=True))
    for name, part in zip(names, (library.images, library.images, library.datasets.Dataset.from_dict(columns)), strict=True):
        (folder / name).mkdir(parents=True)
        part.to_parquet(str(folder / name / "test-00000-of-00001.parquet"))
    configs = [f"- config_name: {n}\n  data_files:\n  - split: test\n    path: {n}/test-*\n" for n in names]
    (folder / "README.md").write_text("---\nconfigs:\n" + "".join(configs) + "---\n")
    return folder


def test_the_commands_give_mtebs_number_of_a_task_whose_data_are_in_a_folder(library, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    data = repository(library, tmp_path / "cub200_retrieval")
    printed = done("data", "import", "mteb", "CUB200I2IRetrieval", f"data={data}", "--out", "cub").stdout
    assert "query: 10 images, gallery: 24 images" in printed
    embedder().save("model")
    done("embed", "model", "cub/manifest.parquet", "--out", "embedded", "--workers", 0, "--device", "cpu")
    printed = done("evaluate", "embedded", "--truth", "cub/qrels.json", "--out", "report.json").stdout
    task = library.mteb.get_task("CUB200I2IRetrieval")
    task.metadata = task.metadata.model_copy(update={"dataset": {**task.metadata.dataset, "path": str(data)}})
    task.load_data()
    scores = mteb_scores(library, task)
    assert_same_digits(Report.load("report.json"), scores)
    assert f"│ R@1            │         {100 * scores['main_score']:.2f} │" in printed


def test_tasks_that_are_none_are_refused(library, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    message = refused("data", "import", "mteb", "Birds", "--out", "out")
    assert "mteb has no task 'Birds'; choose from CUB200I2IRetrieval, FORBI2IRetrieval," in message
    assert "NFCorpus (Retrieval, t2t) does not retrieve images by an image" in refused(
        "data", "import", "mteb", "NFCorpus", "--out", "out"
    )
    (tmp_path / "empty").mkdir()
    message = refused("data", "import", "mteb", "CUB200I2IRetrieval", "data=empty", "--out", "out")
    assert "the data of CUB200I2IRetrieval cannot be loaded from empty" in message
    with pytest.raises(ValueError, match="Birds has no split 'dev'; choose from test"):
        library.ours.task_manifest(library.task(), tmp_path, split="dev")


def test_the_pages_table_of_tasks_is_mtebs(library):
    rows = [line.strip("| ").split(" | ") for line in (ROOT / "docs" / "evaluation.md").read_text().splitlines()]
    table = {row[0]: row[1:] for row in rows if len(row) == 5 and row[0].startswith("`") and "I2I" in row[0]}
    assert len(table) == 11
    for names, (queries, corpus, first, main) in table.items():
        name = names.partition(",")[0].strip("`")
        for one in [name.replace("Easy", kind) for kind in ("Easy", "Medium", "Hard")] if "Medium" in names else [name]:
            task = library.mteb.get_task(one)
            assert task.skip_first_result == (first == "dropped")
            assert not task.ignore_identical_ids
            assert (f"`{task.metadata.main_score}`", max(task.k_values)) == (main, 1000)
            counts = task.metadata.descriptive_stats["test"]
            assert queries == f"{counts['num_queries']:,}"
            assert corpus in (
                "the same" if counts["num_documents"] == counts["num_queries"] else "",
                f"{counts['num_documents']:,}",
            )
