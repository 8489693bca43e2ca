"""suprank recipes: the list, one of them, the losses; refusals."""

import tomllib

import pytest

from suprank.training.config import LossConfig, TrainConfig
from suprank.training.loss_names import LOSSES
from suprank.training.recipe import all_recipes, read_recipe, recipes_folder
from tests.cli.collection import done, refused


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def rows(text):
    """The cells of a printed table: columns stand at least two spaces apart, and what goes on in the next line is indented."""
    found = []
    for line in filter(str.strip, text.splitlines()):
        cells = [cell.strip() for cell in line.split("  ") if cell.strip()]
        if line.startswith("   "):
            found[-1][-1] += f" {cells[-1]}"
        else:
            found.append(cells)
    return found


def test_all_recipes_are_listed_with_what_they_are():
    listed = rows(done("recipes").stdout)
    assert listed[0] == ["recipe", "network", "what"]
    assert [row[0] for row in listed[2:]] == list(all_recipes())
    assert ["sop/roadmap", "resnet50", "ROADMAP on Stanford Online Products: Sup-AP and L*_DG"] in listed
    assert next(row for row in listed if row[0] == "hgldv2/happier")[1] == "hgldv2-start"


def test_a_recipe_is_printed_as_it_stands():
    assert done("recipes", "cub/roadmap").stdout == (recipes_folder() / "cub/roadmap.toml").read_text(encoding="utf-8")


def test_a_recipe_is_printed_with_every_entry(folder):
    said = done("recipes", "sop/happier-f", "--resolved").stdout
    assert "extends" not in said
    assert list(tomllib.loads(said)) == list(TrainConfig.model_fields)
    (folder / "mine.toml").write_text(said, encoding="utf-8")
    assert read_recipe("mine.toml") == read_recipe("sop/happier-f")


def test_a_file_of_ones_own_can_be_resolved(folder):
    (folder / "mine.toml").write_text('extends = "cub/roadmap"\n[run]\nepochs = 3\n', encoding="utf-8")
    assert tomllib.loads(done("recipes", "mine.toml", "--resolved").stdout)["run"]["epochs"] == 3


def test_the_losses_are_listed_with_the_entries_they_read():
    listed = rows(done("recipes", "--losses").stdout)
    assert listed[0] == ["loss", "what", "reads, of [loss]"]
    assert [row[0] for row in listed[2:]] == list(LOSSES)
    assert ["smooth-recall", "Smooth-R@k", "tau, ks, rank_tau, include_self, mixup"] in listed
    (roadmap,) = (row for row in listed if row[0] == "roadmap")
    shared, pairs, proxies = roadmap[2].split("; ")
    assert shared.split(", ")[:2] == ["weight", "decomposability"]
    assert pairs == "with pairs: positive_floor, negative_ceiling, average"
    assert proxies == "with proxies: temperature"


@pytest.mark.parametrize("name", all_recipes())
def test_a_printed_recipe_is_the_same_recipe_in_any_folder(name, folder):
    (folder / "mine.toml").write_text(done("recipes", name).stdout)
    assert read_recipe("mine.toml") == read_recipe(name)


@pytest.mark.parametrize("name", LOSSES)
def test_what_the_list_says_is_read_is_what_the_config_takes(name):
    listed = next(row for row in rows(done("recipes", "--losses").stdout) if row[0] == name)[2]
    unlike = {"tau": 0.5, "mixup": True, "ks": (3,), "temperature": 0.5, "average": "violating", "decay": 2.0, "rho": 5.0}
    for entry, value in unlike.items():
        choice = {"decomposability": "proxies" if entry == "temperature" else "pairs"} if LOSSES[name].combined else {}
        if entry in listed.replace(";", ",").replace(":", ",").replace(" ", ",").split(","):
            assert getattr(LossConfig.model_validate({"name": name, entry: value} | choice), entry) == value
        else:
            with pytest.raises(ValueError, match=f"does not read {entry}"):
                LossConfig.model_validate({"name": name, entry: value} | choice)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("sop/roadmp",), "did you mean sop/roadmap"),
        (("sop/roadmp", "--resolved"), "did you mean sop/roadmap"),
        (("--resolved",), "--resolved prints one recipe; name it, such as sop/roadmap."),
        (("--losses", "sop/roadmap"), "--losses lists losses and takes no recipe"),
        (("sop/base", "--resolved"), "loss: this table is missing"),
    ],
)
def test_what_makes_no_sense_is_refused_with_the_way_out(arguments, complaint):
    assert complaint in refused("recipes", *arguments)
