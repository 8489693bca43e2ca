import math
import time

import numpy as np
import pytest

from suprank.hierarchy.clustering import WordCounts, suggested_names
from suprank.hierarchy.clustering.naming import head_word, medoid, telling_word, words

CHURCHES, LAKES = ["church building", "church ruin", "chapel building"], ["lake", "salt lake", "lake building"]


def ones(texts):
    return [1.0] * len(texts)


def test_class_based_tf_idf_by_hand():
    # All labels: building 3, church 2, chapel 1, ruin 1, lake 3, salt 1: 11 words in 2 groups, 5.5 a group.
    counts = WordCounts.of(CHURCHES + LAKES, groups=2)
    assert (counts.counts["building"], counts.counts["lake"], counts.per_group) == (3, 3, 5.5)
    # Of the 6 words of the churches: building 2/6 · log(1 + 5.5/3) = 0.347, church 2/6 · log(1 + 5.5/2) = 0.441,
    # chapel and ruin 1/6 · log(1 + 5.5) = 0.312.
    score = {"building": 2 / 6 * math.log(1 + 5.5 / 3), "church": 2 / 6 * math.log(1 + 5.5 / 2), "ruin": math.log(6.5) / 6}
    assert max(score, key=score.get) == telling_word(CHURCHES, counts, ones(CHURCHES)) == "church"
    assert telling_word(LAKES, counts, ones(LAKES)) == "lake"


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
    assert medoid(["left", " mid  dle ", "up"], rows, [9, 1, 9]) == "mid dle"
    assert medoid(["left", "up"], rows[[0, 2]], [1, 2]) == "up"
    assert medoid(["left", "up"], rows[[0, 2]], [1, 1]) == "up"
    assert medoid([], rows[:0], []) is None


def test_three_ways_give_up_to_three_names_and_equal_ones_once():
    counts = WordCounts.of(CHURCHES + LAKES, groups=2)
    rows = np.array([[1, 0], [0.8, 0.6], [0.8, -0.6]], np.float32)
    assert suggested_names(CHURCHES, counts, rows, [1, 1, 1]) == ["church", "building", "church building"]
    assert suggested_names(["Lake"], counts, rows[:1], [1]) == ["lake"]


def test_labels_without_words_are_named_by_a_label():
    counts = WordCounts.of(["1984", "2001"], groups=1)
    rows = np.array([[1, 0], [0, 0]], np.float32)
    assert suggested_names(["1984", "2001"], counts, rows, [1, 5]) == ["1984"]
    assert suggested_names([" "], WordCounts.of([" "], 1), rows[:1], [1]) == []


def test_ties_between_words_go_to_the_heavier_labels():
    texts, rows = ["salt lake", "sweet river"], np.eye(2, dtype=np.float32)
    counts = WordCounts.of(texts, groups=1)
    assert telling_word(texts, counts, [1, 2]) == "river", "then to the shorter word"
    assert telling_word(texts, counts, [3, 2]) == "lake"
    assert suggested_names(texts, counts, rows, [3, 2]) == ["lake", "salt lake"]


def test_words_keep_their_letters():
    assert words("Straße de l'Église, Nº 3") == ["straße", "l'église", "nº"]
    assert words("寺") == ["寺"]
    assert words("cafe\u0301") == ["café"]


def test_a_group_of_a_large_project_is_named_at_once():
    texts = [f"word{chr(97 + n % 26)} thing{chr(97 + n // 26 % 26)}" for n in range(20_000)]
    counts, rows = WordCounts.of(texts, 600), np.random.default_rng(0).normal(size=(300, 256)).astype(np.float32)
    times = []
    for _ in range(5):
        began = time.process_time()
        assert suggested_names(texts[:300], counts, rows, range(300))
        times.append(time.process_time() - began)
    assert min(times) < 0.02


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 0, 1]])
def test_the_order_of_labels_is_irrelevant(order):
    counts = WordCounts.of(CHURCHES + LAKES, groups=2)
    rows = np.array([[1, 0], [0.8, 0.6], [0.8, -0.6]], np.float32)
    found = suggested_names([CHURCHES[at] for at in order], counts, rows[order], [1, 1, 1])
    assert found == ["church", "building", "church building"]
