import numpy as np
import pytest

from suprank.hierarchy import read_recipe
from suprank.hierarchy.encoders import Precomputed, encoded_text, encoder_of, prompt_for
from suprank.hierarchy.encoders.tfidf import Tfidf

YEARS = read_recipe("plain").embed.strip


class Prompted(Tfidf):
    prompted = True


def test_years_in_brackets_go_and_other_brackets_stay():
    assert encoded_text("church building (1172–1954)", YEARS) == "church building"
    assert encoded_text("bath (disused) ", YEARS) == "bath (disused)"
    assert encoded_text("(1172–1954)", YEARS) == "(1172–1954)", "a label is never stripped whole"


def test_a_label_with_braces_is_not_a_prompt():
    assert encoded_text("{} {0}", prompt="a {}!") == "a {} {0}!"


def test_the_prompt_is_the_given_one_else_the_recipes_and_none_for_spelling():
    assert prompt_for(Prompted(), None, "A picture of a {}") == "A picture of a {}"
    assert prompt_for(Prompted(), "a {}", "A picture of a {}") == "a {}"
    assert prompt_for(Tfidf(), None, "A picture of a {}") is None
    with pytest.raises(ValueError, match="tfidf takes no prompt"):
        prompt_for(Tfidf(), "a {}", "{}")
    for wrong in ("a", "{} {}"):
        with pytest.raises(ValueError, match="must say once, with {}, where the label goes"):
            prompt_for(Prompted(), wrong, "{}")


def test_nothing_can_be_put_into_vectors_that_are_made(tmp_path):
    np.savez(tmp_path / "v.npz", labels=np.array(["a"]), embeddings=np.ones((1, 2)))
    made = encoder_of(f"precomputed:{tmp_path / 'v.npz'}")
    assert isinstance(made, Precomputed)
    assert prompt_for(made, None, "A {}") is None
    for asked in ({"prompt": "a {}"}, {"prompt": None, "with_description": True}):
        with pytest.raises(ValueError, match="made already"):
            prompt_for(made, of_recipe="{}", **asked)


@pytest.mark.parametrize(
    "written", ["", "word2vec", "tfidf:3", "sentence:", "clip:ViT-B-32", "clip:/weights.pt", "precomputed:"]
)
def test_an_encoder_that_is_none_is_refused_with_those_there_are(written):
    with pytest.raises(ValueError, match="is no encoder; give tfidf, sentence:MODEL_OR_FOLDER, clip:"):
        encoder_of(written)
