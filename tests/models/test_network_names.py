"""timm's names come from a cache where timm is not imported, and from timm whenever its files have changed."""

from types import SimpleNamespace

import pytest
import timm

from suprank.models import network_names


@pytest.fixture
def fresh(monkeypatch, tmp_path):
    """A process without timm, and with an empty cache; returns the file of the cache."""
    monkeypatch.setattr(network_names, "sys", SimpleNamespace(modules={}))
    monkeypatch.setenv("SUPRANK_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "timm-names.json"


def count_questions(monkeypatch):
    asked = []
    ask = network_names._ask_timm
    monkeypatch.setattr(network_names, "_ask_timm", lambda: asked.append(1) or ask())
    return asked


def test_timm_is_asked_once_and_its_names_are_then_read_from_the_cache(fresh, monkeypatch):
    asked = count_questions(monkeypatch)
    first = network_names.timm_names()
    assert set(first.all) == set(timm.list_models())
    assert first.pretrained == timm.list_models(pretrained=True, include_tags=False)
    assert network_names.timm_names() == first
    assert len(asked) == 1
    assert network_names.network_names("resnet1*", pretrained=True)[:3] == ["resnet18", "resnet101", "resnet10t"]


def test_another_timm_is_asked_again(fresh, monkeypatch):
    asked = count_questions(monkeypatch)
    network_names.timm_names()
    monkeypatch.setattr(network_names, "_timm_key", lambda: "another version")
    network_names.timm_names()
    network_names.timm_names()
    assert len(asked) == 2


@pytest.mark.parametrize("content", [b"", b"{}", b"[1]", b"\xff", b'{"timm": 3'])
def test_a_damaged_cache_is_replaced(fresh, content):
    names = network_names.timm_names()
    fresh.write_bytes(content)
    assert network_names.timm_names() == names
    assert fresh.stat().st_size > 10_000


def test_a_cache_that_cannot_be_written_is_done_without(fresh):
    fresh.parent.write_text("a file where the folder should be")
    assert "test_vit" in network_names.timm_names().all


def test_a_network_that_the_caller_has_registered_is_listed(monkeypatch):
    monkeypatch.setitem(timm.models._registry._model_entrypoints, "my_own_net", lambda **_: None)
    assert network_names.network_names("my_own*") == ["my_own_net"]


def test_an_empty_pattern_matches_every_name():
    assert network_names.network_names("") == network_names.network_names()
