"""Embedders on the Hugging Face Hub: the real client against a small hub on this machine."""

import errno
import json
import re
import time
from pathlib import Path

import pytest
import safetensors.torch
import timm
import torch
from huggingface_hub import EvalResult, ModelCard, constants

from suprank.files.atomic import DiskFullError
from suprank.models import Embedder, HubError, UntrustedCodeError, WeightsError, hub
from suprank.models.model_card import code, markdown
from tests import fake_hub
from tests.models import tiny
from tests.training.runs import recipe

pytestmark = pytest.mark.filterwarnings(fake_hub.OF_THE_CLIENT)


@pytest.fixture(scope="module")
def server():
    with fake_hub.serving() as running:
        yield running


@pytest.fixture
def online(server, tmp_path, monkeypatch):
    """The hub without repositories, as the user "org" sees it who may write."""
    server.repositories.clear()
    server.faults.clear()
    server.asked.clear()
    fake_hub.point_to(server, tmp_path / "cache", monkeypatch)
    return server


def pushed(online, name="org/model", **settings):
    embedder = tiny.embedder(**{"dim": 8, **settings})
    embedder.push_to_hub(name)
    return embedder


def without_network(monkeypatch):
    monkeypatch.setattr("socket.socket.connect", lambda *args: pytest.fail("a connection"))


# There and back


@pytest.mark.parametrize(
    ("backbone", "settings"), [("test_resnet", {"pooling": "gem", "dim": 8}), ("test_vit", {"image_size": 64})]
)
def test_what_is_loaded_from_the_hub_is_what_was_pushed_to_the_last_bit(online, backbone, settings):
    embedder = tiny.embedder(backbone, seed=3, **settings)
    commit = embedder.push_to_hub("org/model", commit_message="First try")
    repository = online.repositories["org/model"]
    assert commit.oid == repository.branches["main"]
    assert repository.messages == ["initial commit", "First try"]
    assert set(repository.files) == {".gitattributes", "README.md", "embedder.json", "model.safetensors"}
    loaded = Embedder.from_pretrained("org/model")
    assert torch.equal(loaded(tiny.images()), embedder(tiny.images()))
    assert loaded.fingerprint() == embedder.fingerprint()
    assert not loaded.training


def test_a_branch_is_made_and_loaded_by_its_name_and_by_its_commit(online):
    first = pushed(online)
    second = tiny.embedder(seed=2, dim=8)
    commit = second.push_to_hub("org/model", branch="experiment")
    assert Embedder.from_pretrained("org/model").fingerprint() == first.fingerprint()
    for name, options in (
        ("org/model", {"revision": "experiment"}),
        (f"org/model@{commit.oid}", {}),
        ("hf-hub:org/model@experiment", {}),
    ):
        assert Embedder.from_pretrained(name, **options).fingerprint() == second.fingerprint()
    tiny.embedder(seed=3, dim=8).push_to_hub("org/model", branch="experiment")  # a branch that is there
    assert online.repositories["org/model"].branches["experiment"] != commit.oid
    with pytest.raises(ValueError, match="name two revisions"):
        Embedder.from_pretrained("org/model@a", revision="b")


def test_a_pull_request_leaves_the_branch_as_it_is(online):
    first = pushed(online)
    second = tiny.embedder(seed=2, dim=8)
    assert second.push_to_hub("org/model", create_pr=True).pr_url == f"{online.url}/org/model/discussions/1"
    assert Embedder.from_pretrained("org/model").fingerprint() == first.fingerprint()
    assert Embedder.from_pretrained("org/model", revision="refs/pr/1").fingerprint() == second.fingerprint()


def test_a_folder_is_loaded_too(online, tmp_path):
    embedder = tiny.embedder()
    embedder.save(tmp_path / "model")
    assert Embedder.from_pretrained(tmp_path / "model").fingerprint() == embedder.fingerprint()
    assert online.asked == []
    with pytest.raises(ValueError, match="is a folder, which has no revision 'v1'"):
        Embedder.from_pretrained(tmp_path / "model", revision="v1")
    with pytest.raises(FileNotFoundError, match=r"there is no folder runs/a/model, and .* must be org/name"):
        Embedder.from_pretrained("runs/a/model")


# Who may


def test_a_private_repository_is_for_those_who_may_read_it(online, monkeypatch):
    tiny.embedder(dim=8).push_to_hub("org/secret", private=True)
    assert online.repositories["org/secret"].private
    Embedder.from_pretrained("org/secret")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", constants.HF_HUB_CACHE + "2")
    monkeypatch.delenv("HF_TOKEN")
    with pytest.raises(HubError, match=r"there is no model org/secret on http\S+, or it is private; .* log in"):
        Embedder.from_pretrained("org/secret")
    Embedder.from_pretrained("org/secret", token=fake_hub.WRITE)


def test_whether_a_token_may_write_is_known_before_any_work(online):
    hub.check_token("org/model")
    with pytest.raises(HubError, match=r"org/model cannot be written to: the token of reader may only read; log in with one"):
        hub.check_token("org/model", fake_hub.READ)
    with pytest.raises(HubError, match=r"org/model cannot be written to \(.*; log in with a token that has write access"):
        hub.check_token("org/model", "hf_expired")


def test_code_is_neither_pushed_nor_run_unless_it_is_trusted(online, tmp_path, monkeypatch, forget_consents):
    monkeypatch.chdir(tmp_path)
    code = "import torch\ndef build():\n    return torch.nn.Conv2d(3, 4, 3)\n"
    (tmp_path / "mine.py").write_text(code)
    embedder = Embedder.create("mine.py:build", image_size=32).eval()
    embedder.push_to_hub("org/mine")
    files = online.repositories["org/mine"].files
    assert set(files) == {".gitattributes", "README.md", "embedder.json", "model.safetensors"}
    assert b"mine.py:build`, which is not part of this repository" in files["README.md"]
    forget_consents()
    with pytest.raises(UntrustedCodeError, match="trust_code=True"):
        Embedder.from_pretrained("org/mine")
    loaded = Embedder.from_pretrained("org/mine", trust_code=True)
    assert torch.equal(loaded(tiny.images(size=32)), embedder(tiny.images(size=32)))


# What goes wrong


def read(name, revision=None, **options):
    return lambda: Embedder.from_pretrained(name, revision=revision, **options)


def push(name, **options):
    return lambda: tiny.embedder().push_to_hub(name, **options)


@pytest.mark.parametrize(
    ("action", "message"),
    [
        (read("org/nothing"), r"there is no model org/nothing on http\S+, or it is private; check the name"),
        (read("org/model", "v9"), r"org/model has no revision 'v9'; name a commit, or a branch or tag that http\S+/org/model"),
        (read("org/model", token="hf_expired"), r"org/model cannot be read \(.*401.*log in with a token that may"),
        (read("org/gated", token=fake_hub.READ), r"org/gated is gated; accept its conditions on http\S+/org/gated, and log in"),
        (read("org/timm"), r"org/timm is not an embedder of suprank: it has no embedder.json, .* hf-hub:org/timm"),
        (read("org/half"), r"org/half is incomplete: it has embedder.json and no model.safetensors; push"),
        (read("org/model", local_files_only=True), r"cannot be downloaded: local_files_only=True, and the cache"),
        (push("org/new", token=fake_hub.READ), r"org/new cannot be written to .*; log in with a token that has write access"),
        (push("org/model", private=True), r"org/model is there already and public, so private=True would not hide"),
    ],
)
def test_what_the_hub_refuses_is_said_in_a_sentence_with_the_way_out(online, action, message):
    pushed(online)
    files = dict(online.repositories["org/model"].files)
    online.add("org/gated", files, gated=True)
    online.add("org/timm", {"config.json": b"{}"})
    online.add("org/half", {"embedder.json": files["embedder.json"]})
    with pytest.raises(HubError, match=message):
        action()
    assert online.repositories["org/model"].files == files


def test_nothing_but_the_two_files_of_an_embedder_is_downloaded(online, tmp_path):
    pushed(online)
    online.repositories["org/model"].commit({"model.py": b"1 / 0", "pytorch_model.bin": b"pickle"})
    Embedder.from_pretrained("org/model", cache_dir=tmp_path / "elsewhere")
    assert {file.name for file in tmp_path.glob("elsewhere/*/snapshots/*/*")} == {"embedder.json", "model.safetensors"}


def hang_up(handler):
    handler.close_connection = True


def cut_off(handler):
    handler.send_response(200)
    handler.send_header("Content-Length", "1000")
    handler.end_headers()
    handler.wfile.write(500 * b"x")
    handler.close_connection = True


@pytest.mark.parametrize("fault", ["refuses", "is slow", "has an error", "breaks off"])
def test_without_the_hub_the_cache_is_used_and_hf_hub_offline_stays_as_it_is(online, monkeypatch, fault):
    embedder = pushed(online)
    Embedder.from_pretrained("org/model")
    online.add("org/another", online.repositories["org/model"].files)
    if fault == "refuses":
        monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    elif fault == "is slow":
        monkeypatch.setattr(hub, "HUB_SECONDS", 0.1)
        online.fault(lambda handler: time.sleep(0.5), "^/api/models")
    elif fault == "has an error":
        online.fault(503, "^/api/models")
    else:
        online.fault(cut_off, "^/org/another/.*safetensors", method="GET")
    start = time.monotonic()
    assert Embedder.from_pretrained("org/model").fingerprint() == embedder.fingerprint()
    message = {
        "has an error": r"has a problem of its own \(error 503\)",
        "breaks off": r"org/another@\w+ cannot be downloaded \(",
    }
    with pytest.raises(HubError, match=message.get(fault, r"^org/another cannot be downloaded: http\S+ does not answer")):
        Embedder.from_pretrained("org/another")
    assert time.monotonic() - start < 20  # a fraction of a second on an idle machine
    assert not constants.HF_HUB_OFFLINE


def test_what_was_loaded_once_needs_no_network_by_its_commit_with_local_files_only_or_offline(online, monkeypatch):
    embedder = pushed(online)
    Embedder.from_pretrained("org/model")
    commit = online.repositories["org/model"].branches["main"]
    without_network(monkeypatch)
    for options in ({"revision": commit}, {"local_files_only": True}, {}):
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", not options)
        assert Embedder.from_pretrained("org/model", **options).fingerprint() == embedder.fingerprint()
    with pytest.raises(HubError, match=r"org/another cannot be downloaded: HF_HUB_OFFLINE is set, and the cache"):
        Embedder.from_pretrained("org/another")


def test_names_that_are_none_are_refused_before_any_request(online):
    for name in ("b", "a/b/c", "-a/b", "a/b--c", "a/b.git", "org/" + 97 * "x"):
        with pytest.raises(ValueError, match="is not the name of a repository"):
            tiny.embedder().push_to_hub(name)
    assert online.asked == []


def test_weights_that_cannot_be_uploaded_leave_the_repository_as_it_was(online):
    embedder = pushed(online)
    before = dict(online.repositories["org/model"].files)
    for path, status, message in (
        ("/lfs/", 500, r"has a problem of its own \(error 500\); try again later"),
        ("/preupload/", hang_up, r"org/model cannot be uploaded .*check the network, or HF_ENDPOINT, and try again"),
        ("/preupload/", 429, r"refuses more requests for now \(error 429\); wait"),
        ("/commit/", 403, r"org/model cannot be written to .*log in with a token that has write access"),
    ):
        online.fault(status, path)
        with pytest.raises(HubError, match=message):
            tiny.embedder(seed=2, dim=8).push_to_hub("org/model")
        online.faults.clear()
    assert online.repositories["org/model"].files == before
    assert Embedder.from_pretrained("org/model").fingerprint() == embedder.fingerprint()


def test_a_full_disk_is_named(online, monkeypatch):
    pushed(online)
    full = OSError(errno.ENOSPC, "No space left on device")
    monkeypatch.setattr("huggingface_hub.file_download.http_get", lambda *args, **kwargs: (_ for _ in ()).throw(full))
    with pytest.raises(DiskFullError, match=r"cannot be written \(the disk is full: No space left.*Make room"):
        Embedder.from_pretrained("org/model")


# The card


def test_code_of_the_page_on_models_runs(online, tmp_path):
    _, commit = on_the_hub(online, name="timm/resnet50.a1_in1k")
    page = (Path(__file__).parents[2] / "docs" / "models.md").read_text()
    names = {"Embedder": Embedder}
    blocks = re.findall(r"^```\{code-block\} python\n(.*?)^```", page, flags=re.MULTILINE | re.DOTALL)
    exec("\n".join(blocks), names)
    assert online.repositories["org/birds"].private
    assert names["embedder"].config.backbone == f"hf-hub:timm/resnet50.a1_in1k@{commit}"


def test_the_card_has_metadata_that_the_hub_reads(online):
    pushed(online)
    card = ModelCard.load("org/model")
    assert (card.data.library_name, card.data.pipeline_tag) == ("suprank", "image-feature-extraction")
    assert {"image-retrieval", "metric-learning", "image-embeddings"} < {*card.data.tags}
    assert 'Embedder.from_pretrained("org/model")' in card.text


NASTY = "a|b {{ 7 * 7 }} {% raw %} <b>*x*</b> `c` [d](e) ~~f~~ $g$ #h\n---\n# i\n| j |"


def test_text_from_files_stays_text_in_the_card():
    escaped = r"a\|b \{\{ 7 \* 7 \}\} \{% raw %\} &lt;b&gt;\*x\*&lt;/b&gt; \`c\` \[d\](e) \~\~f\~\~ \$g\$ \#h --- \# i \| j \|"
    assert markdown(NASTY) == escaped
    assert code(NASTY).count("`") == 2
    assert "|" not in code(NASTY)
    sections = {
        "metrics": {"about": NASTY, "header": ["%", NASTY], "rows": [[NASTY, "1"]], "has_recall": False},
        "gallery": {"file": "gallery.png", "alt": NASTY, "queries": 1},
        "data": {"header": ["split", NASTY], "rows": [[NASTY, "2"]]},
        "training": {
            "config": recipe("m.parquet", model={"backbone": "test_resnet", "pretrained": False, "weights": NASTY}),
            "recipe": 'name = "x"',
            "environment": {NASTY: NASTY},
        },
    }
    result = EvalResult("image-retrieval", NASTY, NASTY, NASTY, 1.0)
    metadata = {"license": NASTY, "datasets": [NASTY], "base_model": None}
    card = tiny.embedder(dim=8).generate_model_card("org/a_b", metadata=metadata, results=[result], **sections)
    assert (card.data.license, card.data.datasets) == (NASTY, [NASTY])
    assert [(one.dataset_name, one.metric_value) for one in card.data.eval_results] == [(NASTY, 1.0)]
    lines = card.text.splitlines()
    assert lines.count(escaped) == 1
    assert f"![{escaped}](gallery.png)" in lines
    assert f"| {escaped} | 1 |" in lines
    assert f"| {escaped} | 2 |" in lines
    assert f"| started from | `test_resnet` with {code(NASTY)} |" in lines
    assert f"| {escaped} | {escaped} |" in lines
    assert [line for line in lines if line.startswith("#")] == [
        *(r"# a\_b", "## How to use it", "## Metrics", "## What it retrieves", "## Data", "## Training", "## Model")
    ]
    assert 'embedder = Embedder.from_pretrained("org/a_b")' in lines


# timm's models on the hub


def on_the_hub(online, architecture="test_resnet", name="timm/some", pickled=False, **entries):
    """A timm model with random weights, as timm writes it; the model and its commit."""
    torch.manual_seed(5)
    net = timm.create_model(architecture, **entries.get("model_args", {})).eval()
    cfg = {**net.pretrained_cfg, "mean": (0.1, 0.2, 0.3), "input_size": (3, 96, 96), "interpolation": "bicubic"}
    left_out = ("architecture", "url", "file", "source", "hf_hub_id", "state_dict")
    config = {
        "architecture": architecture,
        "num_classes": net.num_classes,
        "num_features": net.num_features,
        "pretrained_cfg": {key: value for key, value in cfg.items() if key not in left_out and value is not None},
        **entries,
    }
    weights = {"model.safetensors": safetensors.torch.save(net.state_dict())}
    return net, online.add(name, {"config.json": json.dumps(config).encode(), **weights})


def test_a_timm_model_on_the_hub_embeds_as_timm_itself_does(online):
    on_the_hub(online, "test_vit", model_args={"depth": 2})
    embedder = Embedder.create("hf-hub:timm/some", pretrained=True).eval()
    expected = timm.create_model("hf-hub:timm/some", pretrained=True, num_classes=0).eval()
    images = tiny.images(size=96)
    with torch.inference_mode():
        torch.testing.assert_close(embedder.features(images), expected(images), rtol=0, atol=0)
    assert len(embedder.backbone.net.blocks) == 2
    assert (embedder.input.mean, embedder.input.size, embedder.input.interpolation) == ((0.1, 0.2, 0.3), (96, 96), "bicubic")


def test_pretrained_weights_of_a_timm_name_are_those_that_timm_itself_loads(online):
    """Also where timm would read a file of NumPy by default, and for an image size that resizes position embeddings."""
    for architecture, tag in (
        ("test_resnet", "r160_in1k"),
        ("test_vit", "r160_in1k"),
        ("vit_tiny_patch16_224", "augreg_in21k"),
    ):
        on_the_hub(online, architecture, name=f"timm/{architecture}.{tag}")
        image_size = (96, 96) if "vit" in architecture else None
        sized = {} if image_size is None else {"img_size": image_size}
        expected = timm.create_model(f"{architecture}.{tag}", pretrained=True, num_classes=0, **sized).state_dict()
        found = Embedder.create(f"{architecture}.{tag}", pretrained=True, image_size=image_size).backbone.net.state_dict()
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_it_is_pinned_to_its_commit_and_its_folder_needs_no_hub(online, tmp_path, monkeypatch):
    _, commit = on_the_hub(online)
    embedder = Embedder.create("hf-hub:timm/some@main", pretrained=True, dim=4).eval()
    assert embedder.config.backbone == f"hf-hub:timm/some@{commit}"
    assert embedder.config.hub_backbone.architecture == "test_resnet"
    assert embedder.generate_model_card("org/mine").data.base_model == "timm/some"
    embedder.save(tmp_path / "model")
    on_the_hub(online, "test_vit")  # the repository is another one by now
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "empty"))
    without_network(monkeypatch)
    loaded = Embedder.load(tmp_path / "model")
    assert torch.equal(loaded(tiny.images()), embedder(tiny.images()))
    assert (loaded.config, loaded.fingerprint()) == (embedder.config, embedder.fingerprint())
    assert len(json.loads((tmp_path / "model" / "embedder.json").read_text())["config"]["hub_backbone"]["pretrained_cfg"]) > 5


def test_weights_that_are_missing_are_not_left_random(online):
    """timm itself loads what there is, and says nothing of the rest."""
    net, _ = on_the_hub(online)
    files = online.repositories["timm/some"].files
    state = {key: value for key, value in net.state_dict().items() if not key.startswith("layer2.")}
    online.add("timm/part", {**files, "model.safetensors": safetensors.torch.save(state)})
    with pytest.raises(WeightsError, match=r"does not fit test_resnet: \d+ of the network's \d+ entries are missing"):
        Embedder.create("hf-hub:timm/part", pretrained=True)
    online.add("timm/none", {"config.json": files["config.json"]})
    with pytest.raises(WeightsError, match=r"hf-hub:timm/none@\w+ has no weights, neither model.safetensors nor pytorch_model"):
        Embedder.create("hf-hub:timm/none", pretrained=True)
    assert Embedder.create("hf-hub:timm/none").features_dim == 96  # random on purpose


def test_what_is_no_timm_model_is_refused_with_the_way_out(online):
    pushed(online)
    online.add("org/text", {"config.json": b'{"model_type": "bert"}'})
    online.add("org/new", {"config.json": b'{"architecture": "resnet9000"}'})
    online.add("org/sly", {"config.json": b'{"architecture": "test_resnet", "model_args": {"checkpoint_path": "/etc/passwd"}}'})
    online.add("org/odd", {"config.json": b'{"architecture": "test_resnet", "model_args": {"no_such": 1}}'})
    online.add("org/list", {"config.json": b'{"architecture": "test_resnet", "pretrained_cfg": []}'})
    online.add("org/layer", {"config.json": b'{"architecture": "test_vit", "model_args": {"act_layer": "no_such"}}'})
    for name, message in {
        "org/model": r"is an embedder of suprank, not a timm backbone; load it with Embedder.from_pretrained\('org/model'\)",
        "org/text": r"is not a timm model: its config.json does not describe one",
        "org/new": r"is a resnet9000, which timm \S+ does not have; a newer timm may",
        "org/sly": r"is not a timm model",
        "org/odd": r"timm \S+ does not build hf-hub:org/odd@\w+, a test_resnet",
        "org/list": r"is not a timm model: its config.json does not describe one",
        "org/layer": r"timm \S+ does not build hf-hub:org/layer@\w+, a test_vit",
    }.items():
        with pytest.raises(ValueError, match=message):
            Embedder.create(f"hf-hub:{name}")
    with pytest.raises(HubError, match="there is no model org/nothing"):
        Embedder.create("hf-hub:org/nothing")


def test_a_folder_that_would_have_to_ask_the_hub_is_refused(online, tmp_path):
    on_the_hub(online)
    embedder = Embedder.create("hf-hub:timm/some")
    embedder.save(tmp_path)
    record = json.loads((tmp_path / "embedder.json").read_text())
    record["config"]["hub_backbone"] = None
    (tmp_path / "embedder.json").write_text(json.dumps(record))
    with pytest.raises(ValueError, match="without hub_backbone, so that building it would connect to the Hub"):
        Embedder.load(tmp_path)
