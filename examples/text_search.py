"""Train a bi-encoder and a cross-encoder on graded lists: `python examples/text_search.py`, under a minute on a CPU.

`products.csv` has 21 queries for training and 6 for the test, with 6 graded documents each. Grade 3 is what was asked for, 2
differs in one property, 1 is another product with the same properties, and 0 is something else. Both models are small BERTs
with random weights, so that nothing is downloaded.

The NDCG@10 of the test queries is printed before and after training. The bi-encoder ranks all documents of the test for each
query; the cross-encoder re-ranks the six of the query.
"""

from __future__ import annotations

import argparse
import csv
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

# First, because it makes a torchvision importable that does not fit torch (docs/install.md), which transformers imports.
from suprank.integrations.sentence_transformers import BiEncoderRankLoss, CrossEncoderRankLoss, lists_to_columns

# isort: split
import torch
from datasets import Dataset
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.cross_encoder import CrossEncoder, CrossEncoderTrainer, CrossEncoderTrainingArguments
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
from transformers import BertConfig, BertForSequenceClassification, BertModel, BertTokenizer, PrinterCallback, set_seed
from transformers.utils.logging import disable_progress_bar

from suprank.evaluation import evaluate_run
from suprank.losses import SmoothNDCG, SupNDCG

Grades = dict[str, dict[str, int]]
"""Query → document → grade."""

Run = dict[str, dict[str, float]]
"""Query → document → score."""


def read_grades(path: Path, split: str) -> Grades:
    grades: Grades = defaultdict(dict)
    with path.open(encoding="utf-8", newline="") as file:
        rows = csv.DictReader(file)
        if missing := {"split", "query", "document", "grade"} - set(rows.fieldnames or ()):
            raise SystemExit(f"{path} has no column {', '.join(sorted(missing))}")
        for row in rows:
            if row["split"] == split:
                grades[row["query"]][row["document"]] = int(row["grade"])
    return dict(grades)


def save_small_bert(folder: Path, grades: Grades, *, with_score: bool) -> str:
    """Write a BERT with random weights, and a tokenizer whose vocabulary are the words of the training texts."""
    texts = [text for query, documents in grades.items() for text in (query, *documents)]
    words = sorted({word for text in texts for word in text.split()})
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]
    config = BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=128,
        max_position_embeddings=64,
        num_labels=1,
    )
    network = BertForSequenceClassification(config) if with_score else BertModel(config)
    network.save_pretrained(folder)
    BertTokenizer(vocab={word: number for number, word in enumerate(vocabulary)}).save_pretrained(folder)
    return str(folder)


def search(model: SentenceTransformer, test: Grades) -> Run:
    """The scores of all documents of the test for each of its queries."""
    documents = sorted({document for row in test.values() for document in row})
    scores = model.similarity(model.encode(list(test)), model.encode(documents)).tolist()
    return {query: dict(zip(documents, row, strict=True)) for query, row in zip(test, scores, strict=True)}


def rerank(model: CrossEncoder, test: Grades) -> Run:
    """The scores of each query's own documents."""
    return {
        query: dict(zip(documents, model.predict([(query, one) for one in documents]).tolist(), strict=True))
        for query, documents in test.items()
    }


def ndcg_at_10(run: Run, grades: Grades) -> float:
    """The mean NDCG@10 over queries, with gain 2^grade − 1."""
    return evaluate_run(run, grades, ["NDCG@10"])["NDCG@10"]


def training_options(folder: Path, epochs: int, seed: int) -> dict[str, Any]:
    return {
        "output_dir": str(folder / "trainer"),
        "num_train_epochs": epochs,
        "per_device_train_batch_size": 7,
        "learning_rate": 1e-3,
        "seed": seed,
        "save_strategy": "no",
        "logging_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "dataloader_pin_memory": torch.cuda.is_available(),
    }


def train_bi_encoder(train: Grades, test: Grades, folder: Path, *, epochs: int, seed: int) -> tuple[float, float]:
    """NDCG@10 before and after training."""
    transformer = Transformer(save_small_bert(folder / "bi-encoder", train, with_score=False))
    model = SentenceTransformer(modules=[transformer, Pooling(transformer.get_embedding_dimension())])
    before = ndcg_at_10(search(model, test), test)
    columns = lists_to_columns(
        list(train), [list(row) for row in train.values()], [list(row.values()) for row in train.values()]
    )
    trainer = SentenceTransformerTrainer(
        model=model,
        args=SentenceTransformerTrainingArguments(**training_options(folder, epochs, seed)),
        train_dataset=Dataset.from_dict(columns),
        loss=BiEncoderRankLoss(model, SupNDCG(tau=0.01)),
    )
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    return before, ndcg_at_10(search(model, test), test)


def train_cross_encoder(train: Grades, test: Grades, folder: Path, *, epochs: int, seed: int) -> tuple[float, float]:
    """NDCG@10 before and after training."""
    model = CrossEncoder(save_small_bert(folder / "cross-encoder", train, with_score=True))
    before = ndcg_at_10(rerank(model, test), test)
    lists = {
        "query": list(train),
        "documents": [list(row) for row in train.values()],
        "label": [list(row.values()) for row in train.values()],
    }
    trainer = CrossEncoderTrainer(
        model=model,
        args=CrossEncoderTrainingArguments(**training_options(folder, epochs, seed)),
        train_dataset=Dataset.from_dict(lists),
        loss=CrossEncoderRankLoss(model, SmoothNDCG(tau=1.0)),
    )
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    return before, ndcg_at_10(rerank(model, test), test)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--data",
        type=Path,
        default=Path(__file__).with_name("products.csv"),
        help="CSV file with the columns split, query, document and grade (default: products.csv)",
    )
    parser.add_argument("--epochs", type=int, default=10, help="passes over the training queries (default: 10)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the weights and of the order of queries (default: 0)")
    options = parser.parse_args()
    if not options.data.is_file():
        parser.error(f"--data {options.data}: there is no such file")
    disable_progress_bar()
    train, test = (read_grades(options.data, split) for split in ("train", "test"))
    print(f"{len(train)} queries to train, {len(test)} to test")
    for name, train_model in (("bi-encoder", train_bi_encoder), ("cross-encoder", train_cross_encoder)):
        set_seed(options.seed)
        with tempfile.TemporaryDirectory() as folder:
            before, after = train_model(train, test, Path(folder), epochs=options.epochs, seed=options.seed)
        print(f"{name:<14} NDCG@10 {before:.3f} → {after:.3f}")


if __name__ == "__main__":
    main()
