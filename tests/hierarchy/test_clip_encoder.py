"""The adapter of open_clip: beside a stand-in for the library, and with the real one where it is installed."""

import json
import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

from suprank.hierarchy import encoders
from suprank.hierarchy.encoders import build_encoder
from suprank.system import torchvision_operators


class QuickGELU(torch.nn.Module):
    pass


class StandIn(torch.nn.Module):
    """What the adapter uses of a CLIP model; a text is its first two tokens."""

    def __init__(self, weight, quick):
        super().__init__()
        self.visual, self.act = torch.nn.Linear(1, 1), QuickGELU() if quick else torch.nn.GELU()
        self.scale = torch.nn.Parameter(torch.tensor(float(weight)))

    def encode_text(self, tokens):
        return self.scale * tokens[:, :2]


@pytest.fixture
def stand_in(monkeypatch, tmp_path):
    def create_model(name, pretrained, require_pretrained):
        assert require_pretrained, "never weights drawn at random"
        if pretrained != "openai" and not Path(pretrained).is_file():
            raise RuntimeError(f"no weights {pretrained}\nand more")
        return StandIn(2 if pretrained == "openai" else Path(pretrained).read_text(), pretrained == "openai")

    module = ModuleType("open_clip")
    module.create_model = create_model
    module.get_tokenizer = lambda name: lambda texts: torch.tensor([[ord(text[0]), ord(text[1]), 0] for text in texts])
    monkeypatch.setitem(sys.modules, "open_clip", module)
    monkeypatch.setattr(encoders, "version", lambda name: "3")
    (tmp_path / "w.pt").write_text("2")
    return tmp_path


def test_texts_go_through_the_text_tower_of_a_model_from_a_file(stand_in):
    encoder = build_encoder(f"clip:ViT-B-32/{stand_in / 'w.pt'}", batch_size=2, device="cpu")
    told = []
    rows = encoder.encode(["ab", "cd", "ef"], lambda done, total: told.append((done, total)))
    assert rows.dtype == np.float32
    assert rows.tolist() == [[2 * ord(one), 2 * ord(other)] for one, other in ("ab", "cd", "ef")]
    assert told == [(2, 3), (3, 3)]
    assert encoder._model.visual is None


def test_a_tag_and_a_file_of_the_same_weights_differ_only_where_they_compute_otherwise(stand_in):
    of_file = build_encoder(f"clip:ViT-B-32/{stand_in / 'w.pt'}").fingerprint()
    of_tag = build_encoder("clip:ViT-B-32/openai").fingerprint()
    assert of_file["weights"] == of_tag["weights"]
    assert (of_file["quick_gelu"], of_tag["quick_gelu"]) == (False, True)
    (stand_in / "w.pt").write_text("3")
    assert build_encoder(f"clip:ViT-B-32/{stand_in / 'w.pt'}").fingerprint()["weights"] != of_file["weights"]


def test_weights_that_cannot_be_loaded_are_named_with_the_way_to_give_a_file(stand_in):
    said = r"'ViT-B-32' with the weights 'nothing' cannot be loaded \(no weights nothing\); .*clip:MODEL//path/to/weights.pt"
    with pytest.raises(ValueError, match=said):
        build_encoder("clip:ViT-B-32/nothing")


@pytest.mark.filterwarnings("default")
@pytest.mark.skipif(find_spec("open_clip") is None, reason="needs open_clip_torch")
def test_a_real_text_tower_from_a_file_gives_what_open_clip_gives(tmp_path):
    torchvision_operators.declare()
    import open_clip

    config = {
        "embed_dim": 16,
        "vision_cfg": {"image_size": 32, "layers": 1, "width": 64, "patch_size": 16},
        "text_cfg": {"context_length": 77, "vocab_size": 49408, "width": 32, "heads": 2, "layers": 1},
    }
    (tmp_path / "tiny-text.json").write_text(json.dumps(config))
    open_clip.add_model_config(tmp_path / "tiny-text.json")
    model = open_clip.create_model("tiny-text").eval()
    torch.save(model.state_dict(), tmp_path / "w.pt")
    texts = ["A picture of a church", "A picture of a salt lake", "A picture of a bridge"]
    with torch.inference_mode():
        expected = model.encode_text(open_clip.get_tokenizer("tiny-text")(texts)).numpy()
    encoder = build_encoder(f"clip:tiny-text/{tmp_path / 'w.pt'}", batch_size=2, device="cpu")
    assert encoder.encode(texts, lambda done, total: None) == pytest.approx(expected, abs=1e-5)
