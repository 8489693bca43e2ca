"""Our losses in the trainers of sentence-transformers, with small BERTs built from a configuration: nothing is downloaded.

sentence-transformers takes seconds to import, so it is imported when the first test runs, and not while tests are collected.
"""

import copy
import multiprocessing
import re
import runpy
import sys
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from suprank.losses import SmoothNDCG, SupAP, SupNDCG

ROOT = Path(__file__).parents[2]

pytestmark = [
    pytest.mark.skipif(
        not all(map(find_spec, ("sentence_transformers", "accelerate", "datasets"))),
        reason="needs sentence-transformers[train], which suprank[all] brings",
    ),
    pytest.mark.filterwarnings("default"),  # those of transformers and datasets are not ours
]

QUERIES = ["red cup", "plum jam", "green tea"]
DOCUMENTS = [["a red cup", "a green cup", "red plum"], ["jam of plum", "plum"], ["green tea", "tea", "a green plum"]]
GRADES = [[3, 2, 1], [2, 0], [3, 1, 0]]
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "of", "red", "green", "cup", "plum", "jam", "tea"]


@pytest.fixture(scope="module")
def library():
    """The modules under test, imported late."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_OFFLINE", "1")
        from suprank.integrations import sentence_transformers as ours  # first: it declares the operators of torchvision

        # isort: split
        import datasets
        import sentence_transformers
        import transformers
        from sentence_transformers import cross_encoder

        transformers.utils.logging.disable_progress_bar()
        yield SimpleNamespace(ours=ours, st=sentence_transformers, cross=cross_encoder, hf=transformers, datasets=datasets)


@pytest.fixture(scope="module")
def saved(library, tmp_path_factory):
    """A bi-encoder and a cross-encoder without dropout."""
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

    folder = tmp_path_factory.mktemp("bert")
    torch.manual_seed(0)
    config = library.hf.BertConfig(
        vocab_size=len(WORDS),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=16,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        initializer_range=0.5,
        num_labels=1,
    )
    tokenizer = library.hf.BertTokenizer(vocab={word: number for number, word in enumerate(WORDS)})
    for name, network in (("bi", library.hf.BertModel), ("cross", library.hf.BertForSequenceClassification)):
        network(config).save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
    transformer = Transformer(str(folder / "bi"))
    bi_encoder = library.st.SentenceTransformer(modules=[transformer, Pooling(16)], device="cpu")
    return bi_encoder, library.cross.CrossEncoder(str(folder / "cross"), device="cpu")


@pytest.fixture
def bi_encoder(saved):
    return copy.deepcopy(saved[0])


@pytest.fixture
def cross_encoder(saved):
    return copy.deepcopy(saved[1])


def features(model, *columns):
    return [model.preprocess(list(column)) for column in columns]


def embeddings(model, texts):
    return model(model.preprocess(list(texts)))["sentence_embedding"]


def cosines(model, queries, documents):
    normalize = torch.nn.functional.normalize
    return normalize(embeddings(model, queries), dim=1) @ normalize(embeddings(model, documents), dim=1).T


@pytest.fixture
def columns(library):
    """Lists of different lengths as columns: the query's, three of documents, and the grades."""
    found = library.ours.lists_to_columns(QUERIES, DOCUMENTS, GRADES)
    label = torch.tensor(found.pop("label"))
    return list(found.values()), label


def test_a_query_ranks_its_graded_documents_and_those_of_the_others_as_negatives(library, bi_encoder, columns):
    texts, label = columns
    flat = [document for row in DOCUMENTS for document in row]
    relevance = torch.zeros(3, len(flat), dtype=torch.long)
    for row, first in enumerate((0, 3, 5)):
        relevance[row, first : first + len(GRADES[row])] = torch.tensor(GRADES[row])
    wanted = SupNDCG(tau=0.1).from_scores(cosines(bi_encoder, QUERIES, flat), relevance)
    found = library.ours.BiEncoderRankLoss(bi_encoder, SupNDCG(tau=0.1))(features(bi_encoder, *texts), label)
    torch.testing.assert_close(found, wanted)


def test_without_in_batch_negatives_a_query_ranks_its_own_documents(library, bi_encoder, columns):
    texts, label = columns
    loss = SmoothNDCG(tau=0.1)
    wanted = [
        loss.from_scores(cosines(bi_encoder, [query], row), torch.tensor([grades]))
        for query, row, grades in zip(QUERIES, DOCUMENTS, GRADES, strict=True)
    ]
    adapter = library.ours.BiEncoderRankLoss(bi_encoder, loss, in_batch_negatives=False)
    torch.testing.assert_close(adapter(features(bi_encoder, *texts), label), torch.stack(wanted).mean())


def test_the_text_of_a_document_with_a_grade_below_0_does_not_matter(library, bi_encoder, columns):
    texts, label = columns
    assert label[1, 2] == -1
    adapter = library.ours.BiEncoderRankLoss(bi_encoder)
    before = adapter(features(bi_encoder, *texts), label)
    texts[3][1] = "plum jam"  # the query itself
    assert adapter(features(bi_encoder, *texts), label) == before
    label[1, 2] = 0
    assert adapter(features(bi_encoder, *texts), label) > before


def test_without_labels_the_first_document_is_the_positive(library, bi_encoder, columns):
    texts, _ = columns
    adapter = library.ours.BiEncoderRankLoss(bi_encoder, SupAP(tau=0.1))
    grades = torch.tensor([[1, 0, 0]] * 3)
    inputs = features(bi_encoder, *texts)
    assert adapter(inputs, None) == adapter(inputs, grades)
    assert adapter(inputs[:2], None) == adapter(inputs[:2], grades[:, :1])


def test_ids_say_which_rows_belong_together(library, bi_encoder):
    documents = ["a red cup", "jam", "red plum"]
    wanted = SupAP(tau=0.1).from_scores(
        cosines(bi_encoder, QUERIES, documents), torch.tensor([[1, 0, 1], [0, 1, 0], [1, 0, 1]])
    )
    adapter = library.ours.BiEncoderRankLoss(bi_encoder, SupAP(tau=0.1), label="id")
    torch.testing.assert_close(adapter(features(bi_encoder, QUERIES, documents), torch.tensor([7, 4, 7])), wanted)


def gradients(model):
    return {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}


def test_mini_batches_have_the_value_and_the_gradients_of_the_batch(library, bi_encoder, columns):
    texts, label = columns
    twin = copy.deepcopy(bi_encoder)
    loss = SmoothNDCG(tau=0.1)
    whole = library.ours.BiEncoderRankLoss(bi_encoder, loss)(features(bi_encoder, *texts), label)
    parts = library.ours.BiEncoderRankLoss(twin, loss, mini_batch_size=2)(features(twin, *texts), label)
    torch.testing.assert_close(parts, whole)
    whole.backward()
    parts.backward()
    wanted = gradients(bi_encoder)
    assert any("word_embeddings" in name and gradient.abs().sum() > 0 for name, gradient in wanted.items())
    torch.testing.assert_close(gradients(twin), wanted)


def test_the_similarity_is_the_models_own_and_in_float32_under_autocast(library, bi_encoder, columns):
    texts, label = columns
    bi_encoder.similarity_fn_name = "dot"
    adapter = library.ours.BiEncoderRankLoss(bi_encoder, SmoothNDCG(tau=1.0))
    assert adapter.get_config_dict()["similarity_fct"] == "dot_score"
    seen = []

    def dot_score(queries, documents):
        seen.append((queries @ documents.T).dtype)
        return queries @ documents.T

    given = library.ours.BiEncoderRankLoss(bi_encoder, SmoothNDCG(tau=1.0), similarity_fct=dot_score)
    assert given(features(bi_encoder, *texts), label) == adapter(features(bi_encoder, *texts), label)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        given(features(bi_encoder, *texts), label)
    assert seen == [torch.float32, torch.float32]


def _half(library, model, texts, label, folder, rank):
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    own = slice(2 * rank, 2 * rank + 2)
    adapter = library.ours.BiEncoderRankLoss(model, SmoothNDCG(tau=0.1), gather_across_devices=True)
    loss = adapter(features(model, *(column[own] for column in texts)), label[own])
    loss.backward()
    torch.save((loss.detach(), gradients(model)), folder / f"{rank}.pt")
    torch.distributed.destroy_process_group()


def test_two_processes_that_gather_have_the_loss_of_one(library, bi_encoder, columns, tmp_path, monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    texts, label = columns
    texts, label = [[*column, "a"] for column in texts], torch.cat([label, torch.tensor([[1, 0, 2]])])
    context = multiprocessing.get_context("fork")
    arguments = (library, bi_encoder, texts, label, tmp_path)
    processes = [context.Process(target=_half, args=(*arguments, rank)) for rank in (0, 1)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    (first, first_gradients), (second, second_gradients) = (torch.load(tmp_path / f"{rank}.pt") for rank in (0, 1))
    whole = library.ours.BiEncoderRankLoss(bi_encoder, SmoothNDCG(tau=0.1))(features(bi_encoder, *texts), label)
    whole.backward()
    torch.testing.assert_close((first + second) / 2, whole.detach())
    averaged = {name: (gradient + second_gradients[name]) / 2 for name, gradient in first_gradients.items()}  # as DDP does
    torch.testing.assert_close(averaged, gradients(bi_encoder))


def options(folder, epochs):
    return {
        "output_dir": str(folder),
        "num_train_epochs": epochs,
        "per_device_train_batch_size": 3,
        "learning_rate": 0.01,
        "logging_strategy": "epoch",
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": True,
    }


def losses(trainer):
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def test_the_trainer_lowers_the_loss_of_a_bi_encoder_and_the_model_card_names_it(library, bi_encoder, tmp_path):
    dataset = library.datasets.Dataset.from_dict(library.ours.lists_to_columns(QUERIES, DOCUMENTS, GRADES))
    trainer = library.st.SentenceTransformerTrainer(
        model=bi_encoder,
        args=library.st.SentenceTransformerTrainingArguments(**options(tmp_path, 8), batch_sampler="no_duplicates"),
        train_dataset=dataset,
        loss=library.ours.BiEncoderRankLoss(bi_encoder, SupNDCG(tau=0.05)),
    )
    trainer.train()
    assert losses(trainer)[-1] < 0.5 * losses(trainer)[0]
    bi_encoder.save_pretrained(str(tmp_path / "model"))
    card = (tmp_path / "model" / "README.md").read_text()
    assert "- loss:BiEncoderRankLoss\n- loss:SupNDCG\n" in card
    assert '"loss": "SupNDCG(k=None, rank_tau=1.0, tau=0.05' in card
    assert "Optimization of Rank Losses for Image Retrieval" in card


def raw_scores(model, query, documents):
    return model.predict([(query, one) for one in documents], activation_fn=torch.nn.Identity(), convert_to_tensor=True)


@pytest.mark.parametrize("mini_batch_size", [None, 2, 0])
def test_a_cross_encoder_ranks_lists_of_different_lengths(library, cross_encoder, mini_batch_size):
    loss = SmoothNDCG(tau=0.5)
    lists = zip(QUERIES, DOCUMENTS, GRADES, strict=True)
    wanted = [
        loss.from_scores(raw_scores(cross_encoder, query, row)[None], torch.tensor([grades])) for query, row, grades in lists
    ]
    adapter = library.ours.CrossEncoderRankLoss(cross_encoder, loss, mini_batch_size=mini_batch_size)
    found = adapter([QUERIES, DOCUMENTS], [torch.tensor(row) for row in GRADES])
    torch.testing.assert_close(found, torch.stack(wanted).mean())
    found.backward()
    assert any(gradient.abs().sum() > 0 for name, gradient in gradients(cross_encoder).items() if "word_embeddings" in name)


def test_a_cross_encoder_leaves_out_documents_below_grade_0_and_rows_without_documents(library, cross_encoder):
    adapter = library.ours.CrossEncoderRankLoss(cross_encoder)
    wanted = adapter([["red cup"], [["a red cup", "tea"]]], [torch.tensor([2, 0])])
    documents = [["a red cup", "jam", "tea"], []]
    found = adapter([["red cup", "tea"], documents], [torch.tensor([2, -1, 0]), torch.tensor([])])
    torch.testing.assert_close(found, wanted)


def test_the_activation_is_applied_to_logits(library, cross_encoder):
    scores = torch.sigmoid(raw_scores(cross_encoder, QUERIES[0], DOCUMENTS[0]))[None]
    wanted = SmoothNDCG(tau=0.1).from_scores(scores, torch.tensor(GRADES[:1]))
    adapter = library.ours.CrossEncoderRankLoss(cross_encoder, SmoothNDCG(tau=0.1), activation_fn=torch.nn.Sigmoid())
    torch.testing.assert_close(adapter([QUERIES[:1], DOCUMENTS[:1]], [torch.tensor(GRADES[0])]), wanted)
    assert adapter.get_config_dict()["activation_fn"] == "torch.nn.modules.activation.Sigmoid"


def test_the_trainer_lowers_the_loss_of_a_cross_encoder_on_the_lists_of_lambda_loss(library, cross_encoder, tmp_path):
    dataset = library.datasets.Dataset.from_dict({"query": QUERIES, "docs": DOCUMENTS, "labels": GRADES})
    for loss in (library.cross.losses.LambdaLoss, library.ours.CrossEncoderRankLoss):
        model = copy.deepcopy(cross_encoder)
        trainer = library.cross.CrossEncoderTrainer(
            model=model,
            args=library.cross.CrossEncoderTrainingArguments(**options(tmp_path, 8)),
            train_dataset=dataset,
            loss=loss(model),
        )
        trainer.train()
    assert losses(trainer)[-1] < 0.5 * losses(trainer)[0]
    assert model.model_card_data.citations["CrossEncoderRankLoss"].startswith("\n@article{ramzi2023optimization")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"loss": torch.nn.CrossEntropyLoss()}, "loss=CrossEntropyLoss must be a rank loss of suprank.losses, such as SupNDCG"),
        ({"loss": SupAP}, r"loss=SupAP must be a rank loss of suprank.losses, such as SupAP\(\), an instance"),
        ({"label": "ids"}, "label='ids' must be 'grades' or 'id'"),
        ({"label": "id", "in_batch_negatives": False}, "label='id' needs in_batch_negatives=True"),
        ({"gather_across_devices": True, "in_batch_negatives": False}, "gather_across_devices=True needs in_batch_negatives"),
        ({"mini_batch_size": 0}, "mini_batch_size=0 must be 1 or more, or None"),
    ],
)
def test_settings_of_the_bi_encoder_that_make_no_sense_are_refused(library, bi_encoder, settings, said):
    with pytest.raises(ValueError, match=said):
        library.ours.BiEncoderRankLoss(bi_encoder, **settings)


@pytest.mark.parametrize(
    ("documents", "label", "settings", "said"),
    [
        (0, None, {}, "needs a query column and at least one document column"),
        (1, None, {"in_batch_negatives": False}, "there is nothing to rank"),
        (1, torch.tensor([0.1, 0.9, 0.3]), {}, r"a list of 1 grade.* holds floats of shape \(3,\)\. If it .* set label='id'"),
        (2, torch.tensor([[1], [1], [0]]), {}, r"There are 2 document column.* holds integers of shape \(3, 1\)"),
        (1, None, {"label": "id"}, "label='id' needs a label column with one integer in each row, but it is missing"),
        (1, torch.tensor([0.5, 1, 2]), {"label": "id"}, "label='id' needs .* but it holds floats"),
        (2, torch.tensor([0, 1, 1]), {"label": "id"}, "label='id' needs the columns .* there are 2 document columns"),
        (1, None, {"similarity_fct": lambda one, other: (one * other).sum(1)}, "must return a matrix"),
    ],
)
def test_columns_that_the_bi_encoder_cannot_read_are_refused(library, bi_encoder, documents, label, settings, said):
    adapter = library.ours.BiEncoderRankLoss(bi_encoder, **settings)
    with pytest.raises(ValueError, match=said):
        adapter(features(bi_encoder, *[QUERIES] * (1 + documents)), label)


@pytest.mark.parametrize(
    ("inputs", "labels", "said"),
    [
        ([QUERIES], [], "needs the columns .query, documents., but there are 1"),
        ([["tea"], ["green tea"]], torch.tensor([1]), "holds texts, but must hold a list of documents"),
        ([["tea"], [["green tea"]]], torch.tensor([1]), r"must hold a list of grades .* holds integers of shape \(1,\)"),
        ([["tea"], [["green tea"]]], None, "must hold a list of grades in each row, one for each document, but it is missing"),
        ([["tea"], [["green tea"]]], [torch.tensor([1, 0])], r"Row 0 of the batch has 1 document\(s\), but 2 grade"),
        ([["tea"], [[]]], [torch.tensor([])], "No row of the batch has a document"),
    ],
)
def test_lists_that_the_cross_encoder_cannot_read_are_refused(library, cross_encoder, inputs, labels, said):
    with pytest.raises(ValueError, match=said):
        library.ours.CrossEncoderRankLoss(cross_encoder)(inputs, labels)


def test_a_model_of_the_other_kind_is_refused(library, bi_encoder, cross_encoder):
    with pytest.raises(ValueError, match="for a CrossEncoder, use CrossEncoderRankLoss"):
        library.ours.BiEncoderRankLoss(cross_encoder)
    with pytest.raises(ValueError, match="for a SentenceTransformer, use BiEncoderRankLoss"):
        library.ours.CrossEncoderRankLoss(bi_encoder)
    config = next(module.config for module in cross_encoder.modules() if hasattr(module, "config"))
    config.num_labels = 3
    with pytest.raises(ValueError, match="The model has 3 output labels, but a ranking needs one score"):
        library.ours.CrossEncoderRankLoss(cross_encoder)


def test_lists_become_columns_of_one_length(library):
    found = library.ours.lists_to_columns(["tea", "jam"], [["green tea", "cup"], ["plum jam"]], [[3, 1], [2]])
    assert found == {
        "query": ["tea", "jam"],
        "document_1": ["green tea", "plum jam"],
        "document_2": ["cup", "plum jam"],
        "label": [[3, 1], [2, -1]],
    }
    with pytest.raises(ValueError, match="There are 1 queries, 2 lists of documents and 1 of grades"):
        library.ours.lists_to_columns(["tea"], [["tea"], ["jam"]], [[1]])
    with pytest.raises(ValueError, match="The query 'tea' needs a list of at least one document, and a grade for each"):
        library.ours.lists_to_columns(["tea"], [["tea", "jam"]], [[1]])


def test_the_example_improves_the_ranking_of_unseen_queries(library, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["text_search.py", "--epochs", "2"])
    runpy.run_path(str(ROOT / "examples" / "text_search.py"), run_name="__main__")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "21 queries to train, 6 to test"
    for line, name in zip(lines[1:], ("bi-encoder", "cross-encoder"), strict=True):
        before, after = map(float, re.fullmatch(rf"{name} +NDCG@10 (\S+) → (\S+)", line).groups())
        assert after > before + 0.02


def test_the_code_of_the_guide_runs(library, bi_encoder, cross_encoder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(library.st, "SentenceTransformer", lambda name: bi_encoder)
    monkeypatch.setattr(library.cross, "CrossEncoder", lambda name, **settings: cross_encoder)
    page = (ROOT / "docs" / "text.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```", page, flags=re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 3
    exec("\n".join(blocks), {})


def test_the_api_page_has_every_public_name(library):
    api = (ROOT / "docs" / "api.md").read_text()
    documented = re.findall(r"^\.\. [\w:]+:: suprank\.integrations\.sentence_transformers\.(\w+)$", api, flags=re.MULTILINE)
    assert sorted(documented) == sorted(library.ours.__all__)
