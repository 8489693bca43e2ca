"""Names of metrics: every spelling finds its key, every key its parts, and what is wrong is said with the way out."""

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from suprank.evaluation.metric_names import AT_K, FLAT, FULL, MEAN_OF_LEVELS, OVERALL, Metric, parse_metric

PLENTY = settings(deadline=None, max_examples=60)
LINES = st.text(st.characters(codec="utf-8", exclude_characters="\n\r"), min_size=1)


@st.composite
def metrics(draw):
    name = draw(st.sampled_from(AT_K + FULL))
    k = draw(st.integers(1, 10**6)) if name not in FULL or (name in AT_K and draw(st.booleans())) else None
    return Metric(name, k, draw(st.none() | LINES) if name in FLAT else None)


# Worked examples


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("R@10", ("R", 10, None)),
        ("TR@1/genus", ("TR", 1, "genus")),
        ("mAP@R", ("mAP@R", None, None)),
        ("mAP@100", ("mAP", 100, None)),
        ("mAP@R/overall", ("mAP@R", None, OVERALL)),
        ("R@1/mean-of-levels", ("R", 1, MEAN_OF_LEVELS)),
        ("AP/a/b@c", ("AP", None, "a/b@c")),
        ("P@5/ R@1 ", ("P", 5, " R@1 ")),
        ("R-P//", ("R-P", None, "/")),
        ("H-P@3", ("H-P", 3, None)),
        ("NDCG@10", ("NDCG", 10, None)),
        ("NDCG-linear", ("NDCG-linear", None, None)),
        ("MRR@10/genus", ("MRR", 10, "genus")),
        ("recall-all@100", ("recall-all", 100, None)),
    ],
)
def test_a_key_is_a_name_a_k_and_a_level(text, parts):
    assert dataclasses.astuple(parse_metric(text)) == parts
    assert str(parse_metric(text)) == text


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("precision_at_1", "P@1"),
        ("r_precision", "R-P"),
        ("mean_average_precision", "AP"),
        ("mean_average_precision_at_r", "mAP@R"),
        ("mean_reciprocal_rank", "MRR"),
        ("mean_average_precision_at_r/genus", "mAP@R/genus"),
    ],
)
def test_names_of_pytorch_metric_learning_are_known(theirs, ours):
    assert str(parse_metric(theirs)) == ours


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("ndcg_cut_10", "NDCG-linear@10"),
        ("ndcg_cut.10", "NDCG-linear@10"),
        ("recip_rank", "MRR"),
        ("map", "AP"),
        ("map_cut_100", "AP-all@100"),
        ("P_5", "P@5"),
        ("recall_1000", "recall-all@1000"),
        ("success_1", "R@1"),
        ("recall_5/genus", "recall-all@5/genus"),
    ],
)
def test_names_of_trec_eval_are_known(theirs, ours):
    assert str(parse_metric(theirs)) == ours


def test_pytorch_metric_learning_has_no_other_names_than_those_known_or_refused():
    calculator = pytest.importorskip("pytorch_metric_learning.utils.accuracy_calculator").AccuracyCalculator
    for name in calculator(k=10).get_curr_metrics():
        if name in ("AMI", "NMI"):
            with pytest.raises(ValueError, match="clustering"):
                parse_metric(name)
        else:
            assert parse_metric(name)


@pytest.mark.parametrize(
    ("spelling", "key"),
    [
        ("map@r", "mAP@R"),
        ("MAP@R", "mAP@R"),
        ("map@100", "mAP@100"),
        ("ap@100", "mAP@100"),
        ("map", "AP"),
        ("ndcg", "NDCG"),
        ("h-ap", "H-AP"),
        ("WAP", "wAP"),
        ("r@1", "R@1"),
        ("tr@01", "TR@1"),
        ("precision@5", "P@5"),
        (" Average Precision ", "AP"),
        ("h_r@4", "H-R@4"),
    ],
)
def test_common_spellings_are_known_in_any_case(spelling, key):
    assert str(parse_metric(spelling)) == key


def test_the_level_keeps_its_case_and_its_blanks():
    assert parse_metric("ap/ Genus ").level == " Genus "


@pytest.mark.parametrize("key", ["R@1", "TR@2", "P@3", "mAP@4", "H-P@5", "H-R@6", "R@1/genus", "NDCG@7", "MRR@8"])
def test_a_metric_with_a_k_does_not_need_the_full_ranking(key):
    assert not parse_metric(key).full_ranking


@pytest.mark.parametrize("key", ["AP", "mAP@R", "R-P", "MRR", "H-AP", "wAP", "NDCG", "ASI", "ASI/genus"])
def test_the_other_metrics_need_the_full_ranking(key):
    assert parse_metric(key).full_ranking


def test_hierarchical_metrics_are_those_that_grade_items():
    keys = ["H-AP", "wAP", "NDCG", "ASI", "H-P@1", "H-R@1", "ASI/genus", "AP", "AP/genus", "R@1", "mAP@R", "mAP@9", "MRR"]
    assert [key for key in keys if parse_metric(key).hierarchical] == ["H-AP", "wAP", "NDCG", "ASI", "H-P@1", "H-R@1"]


# Laws


@PLENTY
@given(metrics())
def test_the_key_of_a_metric_gives_back_the_metric(metric):
    assert parse_metric(str(metric)) == metric


@PLENTY
@given(metrics())
def test_the_case_of_the_metric_is_irrelevant_but_not_that_of_the_level(metric):
    head, slash, level = str(metric).partition("/")
    assert parse_metric(head.lower() + slash + level) == parse_metric(head.upper() + slash + level) == metric


@PLENTY
@given(st.text())
def test_any_text_is_a_metric_or_is_refused_with_a_value_error(text):
    try:
        metric = parse_metric(text)
    except ValueError:
        return
    assert parse_metric(str(metric)) == metric


# What is refused


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("NDGC", "'NDGC'; the nearest known name is NDCG"),
        ("recal@5", "the nearest name is recall, and that is refused: it may mean R@k"),
        ("mean_avrage_precision_at_r", "the nearest known name is mAP@R"),
        ("precison", "the nearest known name is P@k"),
        ("xyzzy", "choose from R@k, TR@k"),
        ("", "choose from"),
        ("AMI", "clustering, not a ranking"),
        ("nmi/genus", "clustering, not a ranking"),
        ("recall_at_1", "may mean R@k .* recall-all@k .* or TR@k"),
        ("recall@1", "may mean R@k .* recall-all@k .* or TR@k"),
        ("R", "R needs the length k .* write R@1"),
        ("R@0", "k=0 must be an integer of at least 1"),
        ("R@-1", "k='-1' must be an integer"),
        ("R@1.5", "k='1.5' must be an integer"),
        ("R@", "k='' must be an integer"),
        ("R@²", "k='²' must be an integer"),
        ("P@R", "k='r' must be an integer"),
        ("AP@x", "integer of at least 1 or R; write mAP@10"),
        ("R-P@10", "R-P is over the full ranking and takes no k=10; write R-P"),
        ("NDCG@10/genus", "NDCG@10 looks at all levels at once .* write NDCG@10"),
        ("recall-all", "recall-all needs the length k .* write recall-all@1"),
        ("ndcg_cut_", "unknown metric 'ndcg_cut_'"),
        ("H-AP/genus", "H-AP looks at all levels at once .* write H-AP"),
        ("H-R@5/genus", "write H-R@5"),
        ("AP/", "level name '' must be text of one line"),
        ("AP/a\nb", "must be text of one line"),
        ("AP/a\rb", "must be text of one line"),
    ],
)
def test_what_is_no_metric_is_refused_with_the_way_out(text, complaint):
    with pytest.raises(ValueError, match=complaint):
        parse_metric(text)


@pytest.mark.parametrize("k", [0, -3, 1.0, True, "1"])
def test_a_k_that_is_no_length_is_refused(k):
    with pytest.raises(ValueError, match="integer of at least 1"):
        Metric("R", k)


def test_a_metric_is_built_from_its_own_name_only():
    with pytest.raises(ValueError, match="'recall' is none of R, TR"):
        Metric("recall", 1)


def test_a_name_is_text():
    with pytest.raises(TypeError, match="not by 1"):
        parse_metric(1)
