"""Which code of others is run, and which is not: consent is for a source, a name and a role."""

import os
import sys
from pathlib import Path

import pytest

from suprank.executors import local
from suprank.system import custom_code
from suprank.system.custom_code import CONSENTS, CustomCodeError, UntrustedCodeError, require_consent, trusting
from suprank.training import TrainConfig, read_recipe
from suprank.training.code_copies import find_sources

MINE = """
import os
import sys
from pathlib import Path

Path("was-run").touch()

class MyLoss:
    class Inner: ...

def build(): ...
"""
RECIPE = '[data]\nmanifest = "m.parquet"\n[loss]\nname = "mine.py:MyLoss"\n[model]\nbackbone = "mine.py:build"\n'


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch, forget_consents):
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(MINE)
    Path("stranger.toml").write_text(RECIPE)
    return tmp_path


def asked(name="mine.py:MyLoss", role="loss", named_in="stranger.toml"):
    """Whether the user's consent is missing."""
    try:
        require_consent(name, role, named_in)
    except UntrustedCodeError:
        return True
    finally:
        assert not Path("was-run").exists()
    return False


def test_consent_is_remembered_for_the_same_source_name_and_role(monkeypatch):
    assert asked()
    with trusting(True):
        assert not asked()
    monkeypatch.setattr(custom_code, "_consents", set())  # in another process
    assert not asked()
    assert not asked(named_in="another.toml")
    assert asked(role="backbone")
    assert asked("mine.py:build")
    Path("mine.py").write_text(MINE + "# changed\n")
    assert asked()
    Path("mine.py").write_text(MINE)
    assert not asked()


def test_consent_is_not_kept_beside_the_code(forget_consents, folder):
    require_consent("mine.py:MyLoss", "loss", None)
    assert {file.name for file in folder.iterdir()} == {"mine.py", "stranger.toml"}
    forget_consents()
    assert asked()


def test_naming_code_oneself_is_consent():
    assert not asked(named_in=None)
    assert not asked()


def test_an_error_names_what_would_be_run_and_asks_nothing(folder):
    with pytest.raises(UntrustedCodeError) as raised:
        find_sources(read_recipe("stranger.toml"), folder)
    for part in ("stranger.toml needs code", "its loss is mine.py:MyLoss", "its backbone is mine.py:build", "trust_code=True"):
        assert part in str(raised.value)
    digest = require_consent("mine.py:MyLoss", "loss", None).sha256
    assert str(raised.value).count(f"{folder / 'mine.py'} (SHA-256 {digest[:12]})") == 2


def test_a_folder_that_cannot_be_written_remembers_nothing_and_stops_nobody(monkeypatch, folder):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(folder / "mine.py"))
    with trusting(True):
        assert not asked()
    assert not asked()
    monkeypatch.setattr(custom_code, "_consents", set())
    assert asked()


def test_a_process_that_is_started_has_the_consents_of_the_one_that_starts_it(monkeypatch, forget_consents):
    require_consent("mine.py:MyLoss", "loss", None)
    handed = custom_code.handed_consents()
    forget_consents()
    assert asked()
    monkeypatch.setenv(CONSENTS, handed[CONSENTS])
    assert not asked()
    assert custom_code.handed_consents() == handed
    assert local._environment(0, 1, ())[CONSENTS].split() == handed[CONSENTS].split()


def test_trust_ends_with_its_block_and_is_not_taken_back_within():
    with trusting(True), trusting(False):
        assert not asked()
    assert asked("mine.py:build", "backbone")


# What a config knows


def needs(config, folder):
    """The roles for which the user's consent is missing."""
    try:
        find_sources(config, folder)
    except UntrustedCodeError as error:
        return [role for role in ("loss", "backbone") if f"its {role} is" in str(error)]
    return []


def test_a_file_that_names_code_is_no_consent_and_an_override_is(folder):
    assert needs(read_recipe("stranger.toml"), folder) == ["loss", "backbone"]
    assert needs(read_recipe("stranger.toml", ["loss.arguments.margin=1", "model.pretrained=false"]), folder) == [
        "loss",
        "backbone",
    ]
    assert needs(read_recipe("stranger.toml", ["loss={name='mine.py:MyLoss'}", "loss.arguments.margin=1"]), folder) == [
        "backbone"
    ]
    assert needs(read_recipe("stranger.toml", ["model.backbone=mine.py:build"]), folder) == []


def test_a_file_that_is_named_like_an_override_is_none(folder):
    Path("loss.name=x").write_text(RECIPE)
    Path("outer.toml").write_text('extends = "loss.name=x"\n')
    assert needs(read_recipe("outer.toml", ["loss.arguments.margin=1"]), folder) == ["loss", "backbone"]


def test_what_is_left_to_the_recipe_of_a_run_is_named_by_a_file(folder):
    Path("run.toml").write_text(RECIPE)
    Path("own.toml").write_text('[data]\nmanifest = "m.parquet"\n[loss]\nname = "roadmap"\n')
    config = read_recipe("own.toml", ["model.backbone=auto"], saved="run.toml")
    assert config.model.backbone == "mine.py:build"
    assert needs(config, folder) == ["backbone"]


def test_a_config_made_in_python_is_consent_and_one_of_a_file_stays_without(folder):
    config = read_recipe("stranger.toml")
    for build in (lambda: config.embedder, lambda: config.loss.load(), lambda: config.loss.search_space()):
        with pytest.raises(UntrustedCodeError, match="stranger.toml needs code"):
            build()
    copied = config.model_copy(update={"run": config.run.model_copy(update={"seed": 1})})
    assert needs(copied, folder) == ["loss", "backbone"]
    loss = {"name": "mine.py:MyLoss"}
    own = TrainConfig(data={"manifest": "m.parquet"}, loss=loss, model={"backbone": "mine.py:build"})
    assert needs(own, folder) == []
    assert not Path("was-run").exists()
    own.loss.load()
    assert Path("was-run").exists()


# What a name means


@pytest.mark.parametrize("name", ["mine.py:os.system", "mine.py:os", "mine.py:Path.home", "shutil:os.system"])
def test_a_name_must_be_defined_in_its_file_and_not_imported_into_it(name):
    with pytest.raises(CustomCodeError, match="imports (os|Path); name the file or the module that defines it"):
        require_consent(name, "loss", None)
    with pytest.raises(CustomCodeError):
        custom_code.load(name)
    assert not Path("was-run").exists()


def test_functions_of_the_system_are_not_the_files_own():
    with trusting(True), pytest.raises(CustomCodeError, match="os:system: os has no system"):
        require_consent("os:system", "loss", "stranger.toml")
    assert require_consent("mine.py:MyLoss.Inner", "loss", None).path == Path("mine.py")
    with pytest.raises(CustomCodeError, match="has no MyLoss.os"):
        require_consent("mine.py:MyLoss.os", "loss", None)


@pytest.mark.parametrize("source", [b"def (", b"\0", b"(" * 100_000])
def test_what_is_not_python_is_refused_before_it_is_run(source):
    Path("mine.py").write_bytes(source)
    with pytest.raises(CustomCodeError, match="mine.py is not Python"):
        require_consent("mine.py:MyLoss", "loss", "stranger.toml")


def test_packages_are_not_imported_to_find_a_module_and_belong_to_its_hash(monkeypatch, folder):
    monkeypatch.syspath_prepend(folder)
    package = folder / "stranger_package" / "inner"
    package.mkdir(parents=True)
    trap = "from pathlib import Path\nPath('was-run').touch()\n"
    for file in (package.parent / "__init__.py", package / "__init__.py"):
        file.write_text(trap)
    (package / "module.py").write_text(MINE)
    name = "stranger_package.inner.module:MyLoss"
    assert asked(name)
    with trusting(True):
        assert not asked(name)
    assert not asked(name)
    (package.parent / "__init__.py").write_text(trap + "# changed\n")
    assert asked(name)
    assert "stranger_package" not in sys.modules
    with pytest.raises(
        CustomCodeError, match="no module 'stranger_package.other'; .* on PYTHONPATH, also if that is the current"
    ):
        require_consent("stranger_package.other:MyLoss", "loss", None)
    assert not Path("was-run").exists()


def test_what_has_no_source_file_is_never_remembered(monkeypatch, folder):
    config = Path(os.environ["XDG_CONFIG_HOME"])
    assert asked("zlib:crc32")
    with trusting(True):
        assert not asked("zlib:crc32")
    assert not list(config.rglob("*"))
    monkeypatch.setattr(custom_code, "_consents", set())
    assert asked("zlib:crc32")


def test_modules_beside_a_file_do_not_take_the_place_of_installed_ones():
    Path("this_helper.py").write_text("value = 3")
    Path("colorsys.py").write_text("raise RuntimeError")
    Path("mine.py").write_text("import colorsys, this_helper\ndef build(): return this_helper.value")
    sys.modules.pop("colorsys", None)
    before = list(sys.path)
    assert custom_code.load("mine.py:build")() == 3
    assert sys.path == before


def test_the_folder_for_settings_is_the_systems(monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setenv("XDG_CONFIG_HOME", "relative")
    places = {"linux": "/home/me/.config", "darwin": "/home/me/Library/Application Support"}
    for system, place in places.items():
        monkeypatch.setattr(sys, "platform", system)
        assert custom_code.config_folder() == Path(place, "suprank")
