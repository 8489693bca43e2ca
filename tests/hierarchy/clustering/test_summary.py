import math
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import adjusted_rand_score, silhouette_score

from suprank.hierarchy.clustering import WordCounts, suggested_names, summary
from suprank.hierarchy.clustering.summary import (
    central_label,
    distinctive_word,
    head_word,
    label_words,
    seed_agreement,
    silhouette,
    size_statistics,
    stability,
)
from suprank.hierarchy.encoders import unit_rows

CHURCHES, LAKES = ["church building", "church ruin", "chapel building"], ["lake", "salt lake", "lake building"]


def ones(texts):
    return [1.0] * len(texts)


def test_class_based_tf_idf_by_hand():
    # All labels: building 3, church 2, chapel 1, ruin 1, lake 3, salt 1: 11 words in 2 groups, 5.5 a group.
    counts = WordCounts.from_texts(CHURCHES + LAKES, groups=2)
    assert (counts.counts["building"], counts.counts["lake"], counts.per_group) == (3, 3, 5.5)
    # Of the 6 words of the churches: building 2/6 · log(1 + 5.5/3) = 0.347, church 2/6 · log(1 + 5.5/2) = 0.441,
    # chapel and ruin 1/6 · log(1 + 5.5) = 0.312.
    score = {"building": 2 / 6 * math.log(1 + 5.5 / 3), "church": 2 / 6 * math.log(1 + 5.5 / 2), "ruin": math.log(6.5) / 6}
    assert max(score, key=score.get) == distinctive_word(CHURCHES, counts, ones(CHURCHES)) == "church"
    assert distinctive_word(LAKES, counts, ones(LAKES)) == "lake"


def test_the_head_word_is_the_last_before_a_preposition_and_outside_brackets():
    assert head_word(CHURCHES, ones(CHURCHES)) == "building"
    texts = ["quarter of Hamburg", "city quarter", "Hamburg"]
    assert head_word(texts, ones(texts)) == "quarter"
    assert head_word(["lake (salt)", "salt lake (1900–1950)"], [1, 1]) == "lake"
    assert head_word(["lake", "river"], [1, 1]) is None, "none is common"
    assert head_word(["salt lake"], [1]) == "lake"
    assert head_word(["of"], [1]) == "of"
    assert head_word(["1984"], [1]) is None


def test_the_medoid_is_nearest_to_all_and_ties_go_to_the_heavier_then_the_shorter():
    rows = np.array([[1, 0], [math.sqrt(0.5), math.sqrt(0.5)], [0, 1]], np.float32)
    assert central_label(["left", " mid  dle ", "up"], rows, [9, 1, 9]) == "mid dle"
    assert central_label(["left", "up"], rows[[0, 2]], [1, 2]) == "up"
    assert central_label(["left", "up"], rows[[0, 2]], [1, 1]) == "up"
    assert central_label([], rows[:0], []) is None


def test_three_ways_give_up_to_three_names_and_equal_ones_once():
    counts = WordCounts.from_texts(CHURCHES + LAKES, groups=2)
    rows = np.array([[1, 0], [0.8, 0.6], [0.8, -0.6]], np.float32)
    for order in ([0, 1, 2], [2, 0, 1]):  # of the labels, which is irrelevant
        found = suggested_names([CHURCHES[at] for at in order], counts, rows[order], [1, 1, 1])
        assert found == ["church", "building", "church building"]
    assert suggested_names(["Lake"], counts, rows[:1], [1]) == ["lake"]


def test_labels_without_words_are_named_by_a_label():
    counts = WordCounts.from_texts(["1984", "2001"], groups=1)
    rows = np.array([[1, 0], [0, 0]], np.float32)
    assert suggested_names(["1984", "2001"], counts, rows, [1, 5]) == ["1984"]
    assert suggested_names([" "], WordCounts.from_texts([" "], 1), rows[:1], [1]) == []


def test_ties_between_words_go_to_the_heavier_labels():
    texts, rows = ["salt lake", "sweet river"], np.eye(2, dtype=np.float32)
    counts = WordCounts.from_texts(texts, groups=1)
    assert distinctive_word(texts, counts, [1, 2]) == "river", "then to the shorter word"
    assert distinctive_word(texts, counts, [3, 2]) == "lake"
    assert suggested_names(texts, counts, rows, [3, 2]) == ["lake", "salt lake"]


def test_words_keep_their_letters():
    assert label_words("Straße de l'Église, Nº 3") == ["straße", "l'église", "nº"]
    assert label_words("寺") == ["寺"]
    assert label_words("cafe\u0301") == ["café"]


def test_a_group_of_a_large_project_is_named_at_once():
    texts = [f"word{chr(97 + n % 26)} thing{chr(97 + n // 26 % 26)}" for n in range(20_000)]
    counts, rows = WordCounts.from_texts(texts, 600), np.random.default_rng(0).normal(size=(300, 256)).astype(np.float32)
    times = []
    for _ in range(5):
        began = time.process_time()
        assert suggested_names(texts[:300], counts, rows, range(300))
        times.append(time.process_time() - began)
    assert min(times) < 0.02


def test_sizes_by_hand():
    assert size_statistics(np.array([0, 0, 0, 1, 2, 2])) == {"median": 2.0, "largest": 3, "singletons": 1}


def test_silhouette_by_hand_and_by_scikit_learn():
    # Two pairs at right angles: within 0, to the other pair 1 by the cosine, so 1 for all.
    rows = np.array([[1, 0], [1, 0], [0, 1], [0, 1]], np.float32)
    assert silhouette(rows, np.array([0, 0, 1, 1])) == pytest.approx(1)
    rng = np.random.default_rng(0)
    rows, clusters = unit_rows(rng.normal(size=(60, 5))), rng.integers(4, size=60)
    assert silhouette(rows, clusters) == pytest.approx(silhouette_score(rows, clusters, metric="cosine"))


def test_silhouette_is_undefined_for_one_cluster_and_for_labels_alone():
    rows = np.eye(3, dtype=np.float32)
    assert silhouette(rows, np.zeros(3, np.int64)) is None
    assert silhouette(rows, np.arange(3)) is None


def test_silhouette_of_many_is_that_of_a_fixed_sample(monkeypatch):
    rng = np.random.default_rng(0)
    rows, clusters = unit_rows(rng.normal(size=(300, 5)) + 3 * np.eye(5)[np.arange(300) % 5]), np.arange(300) % 5
    whole = silhouette(rows, clusters)
    monkeypatch.setattr(summary, "SILHOUETTE_SAMPLE", 200)
    sampled = silhouette(rows, clusters)
    assert sampled == silhouette(rows, clusters)
    assert sampled != whole
    assert sampled == pytest.approx(whole, abs=0.05)


def test_agreement_is_the_adjusted_rand_index_with_each_other_run():
    run, others = np.array([0, 0, 1, 1]), [np.array([1, 1, 0, 0]), np.array([0, 1, 0, 1])]
    assert seed_agreement(run, others) == {"mean": 0.25, "least": -0.5, "most": 1.0, "runs": 2}
    assert adjusted_rand_score(run, others[1]) == -0.5
    assert seed_agreement(run, []) is None


def test_stability_by_hand():
    run = np.array([0, 0, 0, 1, 1])
    other = np.array([5, 5, 2, 2, 2])
    # {a, b, c} overlaps {a, b} by 2/3 and {c, d, e} by 1/5; {d, e} overlaps {c, d, e} by 2/3.
    assert stability(run, [other]).tolist() == pytest.approx([2 / 3, 2 / 3])
    assert stability(run, [other, run]).tolist() == pytest.approx([5 / 6, 5 / 6])
    assert stability(run, []) is None


@given(st.lists(st.integers(0, 4), min_size=1, max_size=25), st.randoms(use_true_random=False))
def test_stability_is_the_best_overlap_of_sets(drawn, random):
    run = np.unique(drawn, return_inverse=True)[1]
    other = np.array([random.randrange(4) for _ in drawn])
    sets = lambda labels: [set(np.flatnonzero(labels == one)) for one in np.unique(labels)]  # noqa: E731
    expected = [max(len(one & two) / len(one | two) for two in sets(other)) for one in sets(run)]
    assert stability(run, [other]).tolist() == pytest.approx(expected)
