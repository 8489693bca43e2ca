"""Rank losses in the trainers of sentence-transformers: bi-encoders with graded lists, cross-encoders with lists."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence

from suprank.losses import SmoothNDCG, SupNDCG
from suprank.ranking import IGNORED
from suprank.system import torchvision_operators
from suprank.system.extras import explain_missing_extra

with suppress(ImportError):  # transformers imports torchvision, where there is one
    torchvision_operators.declare()

with explain_missing_extra(__name__):
    from sentence_transformers.base.losses import CachedLossMixin
    from sentence_transformers.base.losses.merged_forward import embed_columns
    from sentence_transformers.cross_encoder import CrossEncoder
    from sentence_transformers.util import (
        SimilarityFunction,
        all_gather,
        all_gather_with_grad,
        batch_to_device,
        get_rank,
        get_world_size,
    )
    from sentence_transformers.util.misc import fullname, similarity_fct_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from jaxtyping import Float, Shaped
    from sentence_transformers import SentenceTransformer
    from torch import Tensor

    from suprank.losses import RetrievalLoss

__all__ = ["BiEncoderRankLoss", "CrossEncoderRankLoss", "lists_to_columns"]

CITATION = r"""
@article{ramzi2023optimization,
  title = {Optimization of Rank Losses for Image Retrieval},
  author = {Ramzi, Elias and Audebert, Nicolas and Rambour, Cl{\'e}ment and Araujo, Andr{\'e} and Bitot, Xavier and
    Thome, Nicolas},
  journal = {arXiv preprint arXiv:2309.08250},
  year = {2023}
}
"""


class BiEncoderRankLoss(CachedLossMixin, nn.Module):  # type: ignore[misc]  # mypy does not read it
    """A rank loss for `SentenceTransformerTrainer`: each query ranks its documents, and those of the other queries.

    `loss` is any rank loss of suprank; the default is `SupNDCG()`. What a row of the dataset holds:

        columns                                        label column        relevant for the query of the row
        query, document_1, ..., document_n             a list of n grades  by its grade; below 0 it is left out
        query, positive, negative_1, ..., negative_n   none                the positive
        query, document (with label="id")              an integer          the documents of rows with the same integer

    The order of columns counts, not their names. Integer grades are levels, for which the gain of NDCG is 2^grade − 1; grades
    in floats are the gain itself. Lists of different lengths become columns with `lists_to_columns`.

    With `in_batch_negatives`, which is the default, the documents of other rows are in the list of each query with grade 0. So
    no document should be in two rows of a batch: choose `BatchSamplers.NO_DUPLICATES`. Without it, a query ranks the documents
    of its own row alone.

    Scores are those of `similarity_fct(queries, documents)`, a matrix; by default the similarity function of the model, which
    is the cosine unless you chose another. τ is a difference of scores: the default of our losses, 0.01, is for cosines. They
    are computed in float32 under autocast too, because bf16 rounds a cosine to steps of 0.004.

    `mini_batch_size` bounds the memory of large batches: texts are embedded that many at a time, twice, with the gradient of
    the whole batch (GradCache, as in `CachedMultipleNegativesRankingLoss`). With `gather_across_devices`, queries rank the
    documents of all processes.

    Example:
        >>> model = SentenceTransformer("microsoft/mpnet-base")  # doctest: +SKIP
        >>> loss = BiEncoderRankLoss(model, SupNDCG(tau=0.02))  # doctest: +SKIP
        >>> SentenceTransformerTrainer(model=model, train_dataset=dataset, loss=loss).train()  # doctest: +SKIP
    """

    def __init__(
        self,
        model: SentenceTransformer,
        loss: RetrievalLoss | None = None,
        *,
        label: Literal["grades", "id"] = "grades",
        in_batch_negatives: bool = True,
        similarity_fct: Callable[[Tensor, Tensor], Tensor] | None = None,
        mini_batch_size: int | None = None,
        gather_across_devices: bool = False,
    ) -> None:
        super().__init__()
        if isinstance(model, CrossEncoder):
            raise ValueError("BiEncoderRankLoss trains a SentenceTransformer; for a CrossEncoder, use CrossEncoderRankLoss.")
        if label not in ("grades", "id"):
            raise ValueError(f"label={label!r} must be 'grades' or 'id': what the label column holds.")
        if not in_batch_negatives and (label == "id" or gather_across_devices):
            option = "label='id'" if label == "id" else "gather_across_devices=True"
            raise ValueError(f"{option} needs in_batch_negatives=True: without them a query ranks only its own row.")
        if mini_batch_size is not None and mini_batch_size < 1:
            raise ValueError(f"mini_batch_size={mini_batch_size} must be 1 or more, or None to embed the batch at once.")
        self.model = model
        self.loss = _rank_loss(SupNDCG() if loss is None else loss)
        self.label: Literal["grades", "id"] = label
        self.in_batch_negatives = in_batch_negatives
        self.similarity_fct = similarity_fct or SimilarityFunction.to_similarity_fn(model.similarity_fn_name)
        self.mini_batch_size = mini_batch_size
        self.uses_gradient_cache = mini_batch_size is not None  # MatryoshkaLoss reads it
        self.gather_across_devices = gather_across_devices

    def forward(self, sentence_features: Iterable[dict[str, Tensor]], labels: Tensor | None) -> Tensor:
        features = list(sentence_features)
        self._check_columns(len(features) - 1, labels)
        if self.mini_batch_size is not None:
            return super().forward_cached(features, labels)
        return self._from_embeddings(embed_columns(self.model, features), labels)

    def calculate_loss(self, reps: list[list[Tensor]], labels: Tensor | None = None, *, with_backward: bool = False) -> Tensor:
        """The loss of embeddings in mini-batches, one list for each column: the part of GradCache that `forward` calls."""
        loss = self._from_embeddings([torch.cat(column) for column in reps], labels)
        if not with_backward:
            return loss
        loss.backward()
        return loss.detach()

    def _check_columns(self, documents: int, labels: Tensor | None) -> None:
        if documents < 1:
            raise ValueError("The dataset needs a query column and at least one document column, in this order.")
        if self.label == "id":
            if labels is None or labels.ndim != 1 or labels.dtype.is_floating_point:
                raise ValueError(
                    f"label='id' needs a label column with one integer in each row, but it {_describe(labels)}; rows with the "
                    f"same integer are relevant for each other."
                )
            if documents > 1:
                raise ValueError(f"label='id' needs the columns (query, document), but there are {documents} document columns.")
        elif labels is not None and (labels.ndim != 2 or labels.shape[1] != documents):
            raise ValueError(
                f"There are {documents} document column(s), so the label column must hold a list of {documents} grade(s) in "
                f"each row, but it {_describe(labels)}. If it says which rows belong together, set label='id'; without a label "
                f"column the first document is relevant and the others are not."
            )
        if documents == 1 and not self.in_batch_negatives:
            raise ValueError(
                "A row has one document, and there is nothing to rank; add document columns or set in_batch_negatives=True."
            )

    def _from_embeddings(self, embeddings: Sequence[Tensor], labels: Tensor | None) -> Tensor:
        queries, columns = embeddings[0], list(embeddings[1:])
        gathers = self.gather_across_devices and get_world_size() > 1
        documents = [all_gather_with_grad(column) for column in columns] if gathers else columns
        scores = self._similarity(queries, torch.cat(documents))
        if self.label == "id":
            assert labels is not None  # checked by `forward`
            ids = all_gather(labels) if gathers else labels
            return self.loss.from_scores(scores, labels[:, None] == ids[None, :])

        grades = _positive_first(queries, len(columns)) if labels is None else labels
        if not self.in_batch_negatives:
            own = scores.unflatten(1, (len(columns), -1)).diagonal(dim1=0, dim2=2)
            return self.loss.from_scores(own.T, grades)
        padding = grades < 0
        if gathers:
            padding = all_gather(padding.to(torch.uint8)).bool()
        row = torch.arange(len(queries), device=grades.device)
        relevance = grades.new_zeros(len(queries), len(columns), len(padding))
        relevance[row, :, row + (get_rank() * len(queries) if gathers else 0)] = grades
        relevance.masked_fill_(padding.T, IGNORED)  # padding is no document of the other queries either
        return self.loss.from_scores(scores, relevance.flatten(1))

    def _similarity(self, queries: Float[Tensor, "queries dim"], documents: Float[Tensor, "documents dim"]) -> Tensor:
        with torch.autocast(queries.device.type, enabled=False):
            scores = self.similarity_fct(_at_least_float32(queries), _at_least_float32(documents))
        if scores.shape != (len(queries), len(documents)):
            raise ValueError(
                f"similarity_fct returned the shape {tuple(scores.shape)} for {len(queries)} queries and {len(documents)} "
                f"documents; it must return a matrix, as sentence_transformers.util.cos_sim does."
            )
        return scores

    def get_config_dict(self) -> dict[str, Any]:
        """The settings of this loss, for the model card."""
        return {
            "loss": repr(self.loss),
            "label": self.label,
            "in_batch_negatives": self.in_batch_negatives,
            "similarity_fct": similarity_fct_name(self.similarity_fct),
            "mini_batch_size": self.mini_batch_size,
            "gather_across_devices": self.gather_across_devices,
        }

    @property
    def citation(self) -> str:
        return CITATION


class CrossEncoderRankLoss(nn.Module):
    """A rank loss for `CrossEncoderTrainer`, with the lists of its `LambdaLoss`.

    `loss` is any rank loss of suprank; the default is `SmoothNDCG(tau=1.0)`. What a row of the dataset holds:

        columns                                        label column
        query, [document_1, ..., document_n]           [grade_1, ..., grade_n]

    Lists may have different lengths. Integer grades are levels, for which the gain of NDCG is 2^grade − 1; grades in floats are
    the gain itself. A grade below 0 leaves the document out. Queries without a relevant document are left out of the mean.

    Scores are `activation_fn(logits)`, by default the logits. τ is a difference of scores, and logits spread more than cosines,
    so do not take the default of our losses, 0.01; `suggest_tau` proposes a τ for a model that ranks already.

    `mini_batch_size` pairs go through the model at a time; as in `LambdaLoss`, None stands for the number of queries in the
    batch, and 0 for all pairs at once.
    """

    def __init__(
        self,
        model: CrossEncoder,
        loss: RetrievalLoss | None = None,
        *,
        activation_fn: nn.Module | None = None,
        mini_batch_size: int | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(model, CrossEncoder):
            raise ValueError("CrossEncoderRankLoss trains a CrossEncoder; for a SentenceTransformer, use BiEncoderRankLoss.")
        if model.num_labels != 1:
            raise ValueError(
                f"The model has {model.num_labels} output labels, but a ranking needs one score for each pair: "
                f"CrossEncoder(..., num_labels=1)."
            )
        self.model = model
        self.loss = _rank_loss(SmoothNDCG(tau=1.0) if loss is None else loss)
        self.activation_fn = activation_fn or nn.Identity()
        self.mini_batch_size = mini_batch_size

    def forward(
        self, inputs: list[list[Any]], labels: list[Tensor] | Tensor | None, prompt: str | None = None, task: str | None = None
    ) -> Tensor:
        queries, documents, grades = self._lists(inputs, labels)
        pairs = [(query, document) for query, row in zip(queries, documents, strict=True) for document in row]
        size = len(queries) if self.mini_batch_size is None else self.mini_batch_size
        logits = torch.cat([self._logits(chunk, prompt, task) for chunk in _chunks(pairs, size)])
        scores = self.activation_fn(_at_least_float32(logits))
        return self.loss.from_scores(
            pad_sequence(list(scores.split([len(row) for row in documents])), batch_first=True),
            pad_sequence(grades, batch_first=True, padding_value=IGNORED),
        )

    def _lists(
        self, inputs: list[list[Any]], labels: list[Tensor] | Tensor | None
    ) -> tuple[list[Any], list[Sequence[Any]], list[Tensor]]:
        """The queries, documents and grades of a batch, without the rows that have no documents."""
        if len(inputs) != 2:
            raise ValueError(f"The dataset needs the columns (query, documents), but there are {len(inputs)} columns.")
        queries, documents = inputs
        if any(isinstance(row, str) for row in documents):
            raise ValueError("The second column of the dataset holds texts, but must hold a list of documents in each row.")
        if labels is None or isinstance(labels, torch.Tensor):
            raise ValueError(
                f"The label column must hold a list of grades in each row, one for each document, but it {_describe(labels)}."
            )
        for number, (row, grades) in enumerate(zip(documents, labels, strict=True)):
            if len(row) != len(grades):
                raise ValueError(f"Row {number} of the batch has {len(row)} document(s), but {len(grades)} grade(s).")
        rows = [number for number, row in enumerate(documents) if len(row)]
        if not rows:
            raise ValueError("No row of the batch has a document; leave such rows out of the dataset.")
        return [queries[row] for row in rows], [documents[row] for row in rows], [labels[row] for row in rows]

    def _logits(self, pairs: list[tuple[Any, Any]], prompt: str | None, task: str | None) -> Float[Tensor, " pairs"]:
        features = self.model.preprocess(pairs, prompt=prompt, task=task)
        return self.model(batch_to_device(features, self.model.device))["scores"].view(-1)

    def get_config_dict(self) -> dict[str, Any]:
        """The settings of this loss, for the model card."""
        return {
            "loss": repr(self.loss),
            "activation_fn": fullname(self.activation_fn),
            "mini_batch_size": self.mini_batch_size,
        }

    @property
    def citation(self) -> str:
        return CITATION


def lists_to_columns(
    queries: Sequence[str], documents: Sequence[Sequence[str]], grades: Sequence[Sequence[float]]
) -> dict[str, list[Any]]:
    """The columns query, document_1, ..., document_n and label of graded lists, for `BiEncoderRankLoss`.

    A list that is shorter than the longest is filled up with its last document, which gets the grade −1 there: it is left out.
    Give the result to `datasets.Dataset.from_dict`.

    Example:
        >>> lists_to_columns(["tea", "jam"], [["green tea", "kettle"], ["plum jam"]], [[3, 1], [2]])
        {'query': ['tea', 'jam'], 'document_1': ['green tea', 'plum jam'], 'document_2': ['kettle', 'plum jam'],
         'label': [[3, 1], [2, -1]]}
    """
    if not len(queries) == len(documents) == len(grades):
        raise ValueError(f"There are {len(queries)} queries, {len(documents)} lists of documents and {len(grades)} of grades.")
    for query, row, row_grades in zip(queries, documents, grades, strict=True):
        if isinstance(row, str) or len(row) != len(row_grades) or not row:
            raise ValueError(f"The query {query!r} needs a list of at least one document, and a grade for each of them.")
    longest = max(map(len, documents), default=0)
    missing = [longest - len(row) for row in documents]
    filled = [[*row, *[row[-1]] * count] for row, count in zip(documents, missing, strict=True)]
    columns = {f"document_{number + 1}": [row[number] for row in filled] for number in range(longest)}
    label = [[*row, *[IGNORED] * count] for row, count in zip(grades, missing, strict=True)]
    return {"query": list(queries), **columns, "label": label}


def _rank_loss(loss: RetrievalLoss) -> RetrievalLoss:
    if not isinstance(loss, nn.Module) or not hasattr(loss, "from_scores"):
        name = loss.__name__ if isinstance(loss, type) else type(loss).__name__
        hint = f"{name}(), an instance" if isinstance(loss, type) else "SupNDCG(tau=0.02)"
        raise ValueError(f"loss={name} must be a rank loss of suprank.losses, such as {hint}.")
    return loss


def _positive_first(queries: Tensor, columns: int) -> Tensor:
    grades = torch.zeros(len(queries), columns, dtype=torch.long, device=queries.device)
    grades[:, 0] = 1
    return grades


def _at_least_float32(values: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    return values.float() if values.element_size() < 4 else values


def _chunks(pairs: list[Any], size: int) -> list[list[Any]]:
    size = size if size > 0 else len(pairs)
    return [pairs[start : start + size] for start in range(0, len(pairs), size)]


def _describe(labels: Shaped[Tensor, "..."] | None) -> str:
    if labels is None:
        return "is missing"
    numbers = "floats" if labels.dtype.is_floating_point else "integers"
    return f"holds {numbers} of shape {tuple(labels.shape)}"
