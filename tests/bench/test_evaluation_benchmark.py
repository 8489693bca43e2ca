"""The benchmark of the evaluation: collections have the promised counts, evaluators agree, and limits are kept."""

import importlib
from functools import cache

import numpy as np
import pytest
import torch
from bench import (
    EVALUATORS,
    SHAPES,
    BenchmarkSettings,
    EvaluationBenchmarkRun,
    EvaluationMeasurement,
    SyntheticCollection,
    evaluation_benchmark,
    evaluators,
    measure_evaluation,
    plan_evaluation,
)
from bench.evaluation_benchmark import measure_here, measure_in_child

from suprank.system import torchvision_operators

torchvision_operators.declare()  # before `importorskip` imports torchmetrics
CPU = torch.device("cpu")
MIB = 2**20
PARTS = {
    "faiss": ["faiss"],
    "pytorch-metric-learning": ["pytorch_metric_learning", "faiss"],
    "torchmetrics": ["torchmetrics", "faiss"],
}


@cache
def measured(name, collection):
    for part in PARTS.get(name, []):
        pytest.importorskip(part)
    found = measure_here(EVALUATORS[name], collection, device=CPU, repeats=1, seconds=60)
    assert found.note == ""
    return found


@cache
def full_size(name):
    return SyntheticCollection.full_size(name).assign_classes()


@pytest.mark.parametrize("name", SHAPES)
def test_a_whole_collection_has_the_promised_counts_and_is_a_tree(name):
    tree, items, queries = full_size(name)
    labels = tree[items]
    assert len(items) == {"sop": 60_502, "inat": 136_093, "gldv2": 761_757, "million": 1_000_000}[name]
    assert len(queries) == {"sop": 60_502, "inat": 136_093, "gldv2": 1_129, "million": 1_000}[name]
    assert tuple(len(np.unique(column)) for column in labels.T) == SHAPES[name].classes
    for fine, coarse in zip(labels.T, labels.T[1:], strict=False):
        assert len(np.unique(fine * len(tree) + coarse)) == len(np.unique(fine))  # one parent each


@pytest.mark.parametrize("items", [5_000, 20_000, 60_502])
def test_products_have_2_to_9_images_whatever_the_size(items):
    sizes = np.bincount(SyntheticCollection("sop", items).assign_classes().items)
    sizes = np.sort(sizes[sizes > 0])[1:]  # one class was cut to fit
    assert (sizes.min(), sizes.max()) == (2, 9)
    assert sizes.mean() == pytest.approx(5.35, abs=0.15)


@pytest.mark.parametrize(("name", "shares"), [("inat", [0.02, 0.4, 0.58]), ("gldv2", [0.16, 0.84])])
def test_the_coarsest_classes_are_very_unequal(name, shares):
    tree, items, _ = full_size(name)
    assert np.sort(np.bincount(tree[items, -1]) / len(items)) == pytest.approx(shares, abs=0.01)


def test_landmarks_are_heavy_tailed():
    sizes = np.sort(np.bincount(full_size("gldv2").items))
    assert (sizes[0], np.median(sizes)) == (1, 5)
    assert sizes[-1] > 2000


def test_embeddings_are_of_unit_length_and_the_same_at_every_call():
    first, again = (SyntheticCollection("inat", 200, 10).embed() for _ in range(2))
    assert all(torch.equal(one, other) for one, other in zip(first, again, strict=True))
    for part, count in ((first.queries, 10), (first.gallery, 200)):
        assert part.shape == (count, 512)
        torch.testing.assert_close(part.norm(dim=-1), torch.ones(count))


def test_the_gallery_is_the_same_for_any_number_of_queries():
    few, many = (SyntheticCollection("gldv2", 300, queries).embed() for queries in (5, 50))
    assert torch.equal(few.gallery, many.gallery)
    assert torch.equal(few.gallery_labels, many.gallery_labels)
    assert torch.equal(SyntheticCollection("gldv2", 300).embed().queries, few.gallery)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("flickr", 10), "there is no shape 'flickr'; choose from sop"),
        (("sop", 60_503), "items=60503 must be from 2 to 60502, which is all of sop; try 60502"),
        (("sop", 1), "items=1 must be from 2 .* try 2"),
        (("sop", 10, 0), "queries=0 must be at least 1"),
    ],
)
def test_impossible_collections_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        SyntheticCollection(*arguments)


@pytest.mark.parametrize("name", [name for name in EVALUATORS if name not in ("suprank", "similarity product alone")])
@pytest.mark.parametrize(
    "collection", [SyntheticCollection("sop", 1500), SyntheticCollection("gldv2", 6000, 300)], ids=lambda one: one.shape
)
def test_every_evaluator_agrees_with_ours(name, collection):
    ours, theirs = measured("suprank", collection), measured(name, collection)
    assert 0.5 < ours.values["R@1"] < 1
    assert theirs.values["R@1"] == pytest.approx(ours.values["R@1"], abs=1e-6)
    for metric in theirs.values.keys() & ours.values.keys():
        assert theirs.values[metric] == pytest.approx(ours.values[metric], abs=1e-6)


def test_ours_gives_the_headline_values_and_the_top_k_alone_gives_fewer():
    full, top = (measured(name, SyntheticCollection("inat", 400)).values for name in ("suprank", "suprank, top-k metrics only"))
    assert set(full) == {"R@1", "AP", "mAP@R", "mAP@100", "H-AP"}
    assert set(top) == {"R@1", "mAP@100"}


def test_what_torchmetrics_gives_on_a_list_is_larger_than_ap():
    collection = SyntheticCollection("sop", 1500)
    assert measured("torchmetrics", collection).values["AP of found"] > measured("suprank", collection).values["AP"]


def test_a_query_alone_in_its_class_is_left_out_of_r1():
    collection = next(
        SyntheticCollection("sop", items)
        for items in range(50, 100)
        if 1 in np.bincount(SyntheticCollection("sop", items).assign_classes().items)
    )
    ours, faiss = (measured(name, collection).values["R@1"] for name in ("suprank", "faiss"))
    assert faiss == pytest.approx(ours, abs=1e-6)


def test_on_a_gpu_the_peer_searches_with_torch_and_finds_the_same(monkeypatch):
    pytest.importorskip("pytorch_metric_learning")
    collection = SyntheticCollection("sop", 300)
    ours = measured("suprank", collection)
    search = evaluators._nearest_neighbors(torch.device("cuda"))
    monkeypatch.setattr(evaluators, "_nearest_neighbors", lambda device: search)
    theirs = measured("pytorch-metric-learning", collection)
    assert theirs.values["mAP@R"] == pytest.approx(ours.values["mAP@R"], abs=1e-6)


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_the_product_is_complete_in_tiles(kind):
    queries, items = torch.randn(70, 8), torch.randn(90, 8)
    found = []

    def product(some, others, out):
        (np.matmul if kind == "numpy" else torch.mm)(some, others, out=out)
        found.append(float(out.sum()))

    scores = torch.empty(32, 40)
    tensors = (queries, items, scores) if kind == "torch" else (queries.numpy(), items.numpy(), scores.numpy())
    evaluators._tiles(*tensors, product)
    assert len(found) == 3 * 3
    assert sum(found) == pytest.approx((queries @ items.T).sum().item(), rel=1e-3)


def test_a_missing_peer_is_a_note(monkeypatch):
    def missing(name):
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr(importlib, "import_module", missing)
    found = measure_here(EVALUATORS["faiss"], SyntheticCollection("sop", 50), device=CPU, repeats=1, seconds=1)
    assert (found.note, found.seconds, found.values) == ("not installed: faiss", None, {})


def test_repeats_end_where_the_next_might_pass_the_limit():
    product = EVALUATORS["similarity product alone"]
    several, one = (
        measure_here(product, SyntheticCollection("sop", 100), device=CPU, repeats=3, seconds=seconds) for seconds in (60, 1e-9)
    )
    assert (several.runs, one.runs) == (3, 1)
    assert several.fastest <= several.seconds


def test_a_process_of_its_own_reports_its_time_memory_and_threads():
    found = measure_in_child(
        EVALUATORS["similarity product alone"],
        SyntheticCollection("sop", 6000),
        BenchmarkSettings(CPU, 1, 60, 2**31, threads=2),
    )
    assert (found.note, found.threads, found.among, found.queries) == ("", 2, True, 6000)
    assert found.cpu_seconds > 0
    assert 16 * MIB < found.extra_bytes < 100 * MIB
    assert found.peak_bytes > found.extra_bytes + 6000 * 512 * 4


def test_an_evaluator_over_the_memory_limit_is_reported():
    found = measure_in_child(
        EVALUATORS["similarity product alone"], SyntheticCollection("sop", 20_000), BenchmarkSettings(CPU, 1, 60, 32 * MIB)
    )
    assert found.note == "out of memory"


def test_the_plan_goes_through_a_shape_by_size_with_all_evaluators_at_each():
    planned = plan_evaluation(["sop", "gldv2"], queries=[100, 10], names=["faiss", "suprank"])
    assert [evaluator.name for evaluator, _ in planned] == ["faiss", "suprank"] * (6 + 2)
    sizes = [(collection.shape, collection.items, collection.queries) for _, collection in planned[::2]]
    assert sizes[:3] == [("sop", 5_000, 10), ("sop", 5_000, 100), ("sop", 20_000, 10)]
    assert sizes[-2:] == [("gldv2", 761_757, 10), ("gldv2", 761_757, 100)]
    assert [collection.size for _, collection in plan_evaluation(["million", "inat"], names=["faiss"])] == [
        "million 1,000 × 1,000,000",
        "inat 136,093 × 136,093",
    ]


def test_an_evaluator_that_failed_is_skipped_at_larger_sizes_of_that_shape_only(monkeypatch):
    def answered(evaluator, collection, settings):
        return evaluation_benchmark.empty_measurement(evaluator, collection, "out of memory")

    monkeypatch.setattr(evaluation_benchmark, "measure_in_child", answered)
    planned = plan_evaluation(["sop", "inat"], items=[100, 200], names=["faiss"])
    found = [one.note for one in measure_evaluation(planned, BenchmarkSettings(CPU))]
    skipped = [f"skipped: out of memory at {name} 100 × 100" for name in ("sop", "inat")]
    assert found == ["out of memory", skipped[0], "out of memory", skipped[1]]


@pytest.fixture
def run():
    def one(evaluator, items, seconds=None, queries=None, shape="sop", **others):
        kind = EVALUATORS[evaluator].kind
        known = {} if seconds is None else {"seconds": seconds, "runs": 1, "fastest": seconds, "cpu_seconds": 2 * seconds}
        return EvaluationMeasurement(evaluator, kind, shape, queries or items, items, 2, queries is None, **known, **others)

    memory = {"extra_bytes": 3 * MIB, "peak_bytes": 300 * MIB, "threads": 2}
    found = [
        one("faiss", 5000, 2.0, values={"R@1": 0.75}, **memory),
        one("suprank", 5000, 2.5, values={"R@1": 0.75, "AP": 0.5, "H-AP": 0.25}, **memory),
        one("pytorch-metric-learning", 5000, note="out of memory"),
        one("faiss", 20_000, 8.0, **memory),
        one("suprank", 20_000, note="stopped: over 900 s"),
        *(one("suprank", 1000, queries / 100, queries=queries, shape="gldv2", **memory) for queries in (10, 20)),
        one("suprank", 1000, 3.0, queries=10, shape="million", **memory),
    ]
    return EvaluationBenchmarkRun.here(found, command="python benchmarks/measure.py evaluation", device=CPU, threads=2)


def test_the_table_compares_with_faiss_and_shows_values_and_notes(run):
    text = run.markdown()
    lines = text.splitlines()
    head = "| evaluator | queries × items | time | × faiss | CPU time | × faiss, CPU | threads | extra memory | peak memory |"
    assert f"{head} R@1 | AP | H-AP |" in lines
    assert "| faiss | 5,000 × 5,000 | 2 s | 1.00 | 4 s | 1.00 | 2 | 3 MiB | 300 MiB | 0.7500 |  |  |" in lines
    assert "| suprank | 5,000 × 5,000 | 2.5 s | 1.25 | 5 s | 1.25 | 2 | 3 MiB | 300 MiB | 0.7500 | 0.5000 | 0.2500 |" in lines
    assert "| pytorch-metric-learning | 5,000 × 5,000 | out of memory |" + "  |" * 9 in lines
    assert "| suprank | 10 × 1,000 | 100 ms |  | 200 ms |  | 2 | 3 MiB | 300 MiB |" in lines
    assert "## sop: Stanford Online Products, test, 2 levels" in lines
    assert "torch threads: 2" in text
    assert "perf_counter" in text


@pytest.mark.parametrize("kept", ["all", "nothing"])
def test_the_figure_is_drawn_whatever_was_measured(run, kept, tmp_path):
    pytest.importorskip("matplotlib")
    from bench.benchmark_plots import draw_evaluation

    found = run.measurements if kept == "all" else ()
    draw_evaluation(EvaluationBenchmarkRun.here(found, command="", device=CPU), tmp_path / "evaluation.png")
    assert (tmp_path / "evaluation.png").read_bytes().startswith(b"\x89PNG")


def test_what_grows_decides_the_panel(run):
    pytest.importorskip("matplotlib")
    from bench.benchmark_plots import _series

    panels = {title: (across, len(found)) for title, (across, found) in _series(run.measurements).items()}
    assert panels == {
        "sop, every item a query": ("items", 5),
        "gldv2, 1,000 items": ("queries", 2),
        "million, 10 queries": ("items", 1),
    }


@pytest.mark.gpu
@pytest.mark.parametrize("name", [name for name, evaluator in EVALUATORS.items() if evaluator.on_gpu])
def test_on_a_gpu_memory_is_counted_by_the_allocator_and_values_are_the_same(name):
    collection = SyntheticCollection("sop", 1500)
    found = measure_here(EVALUATORS[name], collection, device=torch.device("cuda"), repeats=1, seconds=60)
    if found.note.startswith("not installed"):
        pytest.skip(found.note)
    assert found.note == ""
    assert found.seconds > 0
    assert found.peak_bytes > found.extra_bytes > 0
    if found.values:
        assert found.values["R@1"] == pytest.approx(measured("suprank", collection).values["R@1"], abs=1e-3)
