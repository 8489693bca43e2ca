import math

import numpy as np
import pytest
from sklearn.feature_extraction.text import TfidfVectorizer

from suprank.hierarchy import read_recipe
from suprank.hierarchy.encoders import (
    TfidfEncoder,
    build_encoder,
    encoder_input,
    resolve_prompt,
    unit_rows,
)
from suprank.hierarchy.precomputed import PrecomputedVectors


def encoded(texts):
    return TfidfEncoder().encode(texts, lambda done, total: None)


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
    assert rows.shape == (600, TfidfEncoder.dimensions)
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


YEARS = read_recipe("plain").embed.strip


class Prompted(TfidfEncoder):
    prompted = True


def test_years_in_brackets_go_and_other_brackets_stay():
    assert encoder_input("church building (1172–1954)", YEARS) == "church building"
    assert encoder_input("bath (disused) ", YEARS) == "bath (disused)"
    assert encoder_input("(1172–1954)", YEARS) == "(1172–1954)", "a label is never stripped whole"


def test_a_label_with_braces_is_not_a_prompt():
    assert encoder_input("{} {0}", prompt="a {}!") == "a {} {0}!"


def test_the_prompt_is_the_given_one_else_the_recipes_and_none_for_spelling():
    assert resolve_prompt(Prompted(), None, "A picture of a {}") == "A picture of a {}"
    assert resolve_prompt(Prompted(), "a {}", "A picture of a {}") == "a {}"
    assert resolve_prompt(TfidfEncoder(), None, "A picture of a {}") is None
    with pytest.raises(ValueError, match="tfidf takes no prompt"):
        resolve_prompt(TfidfEncoder(), "a {}", "{}")
    for wrong in ("a", "{} {}"):
        with pytest.raises(ValueError, match="must contain {} once, where the label goes"):
            resolve_prompt(Prompted(), wrong, "{}")


def test_nothing_can_be_put_into_vectors_that_are_made(tmp_path):
    np.savez(tmp_path / "v.npz", labels=np.array(["a"]), embeddings=np.ones((1, 2)))
    made = build_encoder(f"precomputed:{tmp_path / 'v.npz'}")
    assert isinstance(made, PrecomputedVectors)
    assert resolve_prompt(made, None, "A {}") is None
    for asked in ({"prompt": "a {}"}, {"prompt": None, "with_description": True}):
        with pytest.raises(ValueError, match="cannot take in a prompt or a description"):
            resolve_prompt(made, recipe_prompt="{}", **asked)


@pytest.mark.parametrize(
    "written", ["", "word2vec", "tfidf:3", "sentence:", "clip:ViT-B-32", "clip:/weights.pt", "precomputed:"]
)
def test_an_encoder_that_is_none_is_refused_with_those_there_are(written):
    with pytest.raises(ValueError, match="is not an encoder; give tfidf, sentence:MODEL_OR_FOLDER, clip:"):
        build_encoder(written)
