"""Queries that find themselves: the same tensor, file or rows as gallery, and a wrong self_index are said; the rest is not."""

import time
import warnings

import numpy as np
import pytest
import torch

from suprank.evaluation import QueryInGalleryWarning, evaluate, top_k
from suprank.evaluation.embeddings import Embeddings
from suprank.evaluation.overlap import warn_if_queries_in_gallery

N = 600
ROWS = torch.randn(N, 16, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(N) % 20
SHUFFLED = torch.randperm(N, generator=torch.Generator().manual_seed(1))


def evaluated(queries=ROWS, gallery=ROWS, labels=LABELS, gallery_labels=LABELS, **options):
    options = {"metrics": ["R@1"], "progress": False} | options
    if gallery is None:
        return evaluate(queries, labels, **options)
    return evaluate(queries, labels, gallery, gallery_labels, **options)


def saved(path, rows):
    np.save(path, rows.numpy())
    return path


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda folder: {}, "the gallery is the queries themselves: "),
        (lambda folder: {"gallery": ROWS.numpy(), "queries": ROWS.numpy()}, "the gallery is the queries themselves"),
        (lambda folder: dict.fromkeys(("queries", "gallery"), saved(folder / "q.npy", ROWS)), "the queries themselves"),
        (lambda folder: {"gallery": ROWS.clone()}, "most queries are in the gallery"),
        (lambda folder: {"gallery": ROWS[SHUFFLED], "gallery_labels": LABELS[SHUFFLED]}, "most queries are in the gallery"),
        (lambda folder: {"queries": ROWS[100:150], "labels": LABELS[100:150]}, "50 of 50 queries have an exact copy"),
        (lambda folder: {"gallery": saved(folder / "g.npy", ROWS[SHUFFLED])}, "most queries are in the gallery"),
        (lambda folder: {"ids": [f"q{i}" for i in range(N)], "gallery_ids": [f"g{i}" for i in range(N)]}, "the queries"),
        (lambda folder: {"self_index": torch.full((N,), -1)}, "the gallery is the queries themselves"),
        (
            lambda folder: {"self_index": (torch.arange(N) + 1) % N},
            "self_index leaves out item 1 for query 0, whose copy is item 0",
        ),
        (lambda folder: {"gallery": None, "self_index": (torch.arange(N) + 1) % N}, "self_index leaves out item 1 for query 0"),
    ],
)
def test_a_query_that_finds_itself_is_said_with_the_options_that_help(tmp_path, make, says):
    with pytest.warns(QueryInGalleryWarning) as seen:
        evaluated(**make(tmp_path))
    (warning,) = seen
    assert says in str(warning.message)
    assert all(
        option in str(warning.message) for option in ("self_index", "give ids (of files id_column)", "leave the gallery out")
    )
    assert warning.filename == __file__


def test_the_warning_comes_with_the_inflated_number_and_goes_with_the_option():
    with pytest.warns(QueryInGalleryWarning):
        inflated = evaluated(gallery=ROWS.clone())
    assert inflated["R@1"] == 1
    honest = evaluated(gallery=None)["R@1"]
    assert evaluated(gallery=ROWS.clone(), self_index=torch.arange(N))["R@1"] == honest < 0.2
    assert evaluated(gallery=ROWS.clone(), ids=range(N), gallery_ids=range(N))["R@1"] == honest


def test_searching_warns_too():
    with pytest.warns(QueryInGalleryWarning):
        top_k(ROWS, ROWS, 5, progress=False)


@pytest.mark.parametrize(
    "options",
    [
        {"gallery": None},
        {"gallery": None, "self_index": torch.arange(N)},
        {"gallery": ROWS.roll(1, 1)},
        {"gallery": torch.cat([ROWS[:300], ROWS[300:].neg()])},  # half of them
        {"gallery": torch.cat([ROWS, ROWS[:50]]), "gallery_labels": torch.cat([LABELS, LABELS[:50]]), "self_index": range(N)},
        {"gallery": ROWS.sign(), "queries": ROWS.roll(1, 0).sign()[:, :4], "dim": 4},  # codes of four bits, shared by many
        {"queries": ROWS[:3].clone(), "labels": LABELS[:3]},  # a worked example
    ],
)
def test_ordinary_galleries_are_taken_without_a_word(options):
    if dim := options.pop("dim", None):
        options["gallery"] = options["gallery"][:, :dim].clone()
    options = {name: list(value) if isinstance(value, range) else value for name, value in options.items()}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        evaluated(**options)


def test_a_million_rows_are_looked_at_in_no_time():
    rows = torch.rand(1_000_000, 32)
    queries, gallery = Embeddings.from_source(rows[:1000].clone()), Embeddings.from_source(rows.flip(0))
    start = time.process_time()
    with pytest.warns(QueryInGalleryWarning, match=r"250 of 250 queries that were compared"):
        warn_if_queries_in_gallery(queries, gallery, torch.empty(1000, 0, dtype=torch.int64), self_index=False, stacklevel=2)
    assert time.process_time() - start < 3


# Queries that rank each other

TWICE = torch.cat([ROWS, ROWS])


def test_images_that_are_there_twice_are_said():
    labels = torch.cat([LABELS, LABELS])
    with pytest.warns(UserWarning, match=r"most images are there twice: .* as row 0 has in row 600, .* give both one id"):
        assert evaluated(TWICE, None, labels)["R@1"] == 1
    half = torch.cat([ROWS, ROWS[:180]])
    with warnings.catch_warnings(action="error"):
        evaluated(half, None, torch.cat([LABELS, LABELS[:180]]))  # a minority may be alike
        evaluated(torch.cat([TWICE, ROWS]), None, torch.cat([labels, LABELS]), metrics=["AP"])  # three times is a code
        evaluated(TWICE, None, labels, ids=torch.cat([torch.arange(N), torch.arange(N)]))  # left out by id
        evaluated(TWICE[:4].repeat(2, 1)[:7], None, torch.zeros(7, dtype=torch.long))  # fewer than eight


# Nothing to be found


@pytest.mark.parametrize(
    ("labels", "gallery", "gallery_labels", "reason"),
    [
        ([-1] * N, None, None, "no query has a label"),
        (range(N), None, None, "no other item has a class of the query, at any level"),
        ([0] * N, -ROWS[:9], [-1] * 9, "no item of the gallery has a label"),
        (
            [0] * N,
            -ROWS[:9],
            [1] * 9,
            "no item of the gallery has a class of the query, at any level; are classes named alike in",
        ),
    ],
)
def test_a_report_without_any_number_says_why(labels, gallery, gallery_labels, reason):
    report = evaluated(gallery=gallery, labels=list(labels), gallery_labels=gallery_labels)
    assert f"no metric is defined, because no query has a positive: {reason}" in str(report)
    assert "no metric is defined" not in str(evaluated(gallery=None))
