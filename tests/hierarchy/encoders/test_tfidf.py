import math

import numpy as np
import pytest
from sklearn.feature_extraction.text import TfidfVectorizer

from suprank.hierarchy.encoders.protocol import unit_rows
from suprank.hierarchy.encoders.tfidf import MOST_DIMENSIONS, Tfidf


def encoded(texts):
    return Tfidf().encode(texts, lambda done, total: None)


def made_up(many):
    rng = np.random.default_rng(0)
    parts = ["ba", "ke", "li", "mo", "nu", "ra", "se", "ti"]
    return ["".join(rng.choice(parts, 3)) + " " + "".join(rng.choice(parts, 3)) for _ in range(many)]


def test_a_cosine_by_hand():
    # "ab" and "abc" within words, with the blanks at their ends: " ab", "ab ", " ab " and " ab", "abc", "bc ", " abc", ...
    first, second = {" ab", "ab ", " ab "}, {" ab", "abc", "bc ", " abc", "abc ", " abc "}
    common, own = 1.0, math.log(3 / 2) + 1  # scikit-learn's idf of pieces in both and in one of the two labels
    lengths = [math.sqrt(common**2 + (len(pieces) - 1) * own**2) for pieces in (first, second)]
    rows = encoded(["ab", "ABC"])
    assert (rows @ rows.T).tolist() == pytest.approx(np.array([[1, 1 / math.prod(lengths)], [1 / math.prod(lengths), 1]]))


@pytest.mark.parametrize("many", [1, 2, 3])
def test_a_few_labels_need_no_reduction(many):
    rows = encoded(["lake", "salt lake", "church"][:many])
    assert rows.dtype == np.float32
    assert np.linalg.norm(rows, axis=1) == pytest.approx(1)


def test_many_labels_keep_their_cosines_about_in_256_dimensions():
    texts = made_up(600)
    rows = encoded(texts)
    assert rows.shape == (600, MOST_DIMENSIONS)
    exact = TfidfVectorizer(analyzer="char_wb", ngram_range=(3, 5)).fit_transform(texts)
    gap = np.abs(rows @ rows.T - (exact @ exact.T).toarray())
    assert gap.mean() < 0.02


def test_the_same_texts_give_the_same_bytes():
    texts = made_up(400)
    assert encoded(texts).tobytes() == encoded(texts).tobytes()


def test_labels_without_letters_to_compare_are_zeros():
    assert not encoded(["", "  "]).any()
    assert encoded(["lake", " "]).any(axis=1).tolist() == [True, False]


def test_unit_rows_leave_zeros_and_drop_what_is_faint():
    assert unit_rows(np.array([[3.0, 4.0], [0, 0], [1e-7, 0]]), 1e-5).tolist() == pytest.approx(
        np.array([[0.6, 0.8], [0, 0], [0, 0]])
    )
