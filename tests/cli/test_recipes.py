"""suprank recipes: the list, one of them, the losses; refusals."""

import tomllib

import pytest
from typer.testing import CliRunner

from suprank.cli.app import app
from suprank.paper.contents import recipes_of_the_paper
from suprank.training.config import TrainConfig
from suprank.training.loss_specs import CombinedSpec, loss_specs, parse_loss
from suprank.training.presets import compositions, methods, presets
from suprank.training.recipe import read_recipe
from suprank.training.recipe_files import all_recipes, recipe_text, recipes_folder
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


def test_presets_and_methods_and_what_is_neither_are_listed_with_what_they_are():
    listed = rows(done("recipes").stdout)
    heads = [row[0] for row in listed]
    further = sorted(set(all_recipes()) - set(compositions(recipes_folder())))
    at = [heads.index(kind) for kind in ("preset", "method", "further recipe")]
    assert heads[at[0] + 2 : at[1]] == list(presets(recipes_folder()))
    assert heads[at[1] + 2 : at[2]] == list(methods(recipes_folder()))
    assert heads[at[2] + 2 : -2] == further
    assert ["fast-ap", "FastAP: AP of a soft histogram of distances"] in listed
    assert ["inat-full", "iNaturalist 2018 with seven levels: the setting of inat-base"] in listed
    assert ["cub/roadmap-vit", "ROADMAP on CUB-200-2011 with a memory and ViT-B/16"] in listed
    assert "suprank train cub112/fast-ap" in heads[-2]


@pytest.mark.parametrize("arguments", [(), ("sop",), ("dyml-product",), ("cub112",)])
def test_lists_fit_into_a_small_terminal_and_break_no_name(arguments):
    lines = CliRunner().invoke(app, ["recipes", *arguments], env={"COLUMNS": "80", "TERM": "dumb"}).stdout.splitlines()
    assert max(map(len, lines)) <= 80
    names = {line.split()[0] for line in lines if line.strip() and not line.startswith("   ")}
    assert names >= {row[0] for row in rows(done("recipes", *arguments).stdout) if "/" in row[0] and " " not in row[0]}


def test_the_recipes_of_a_preset_with_results_are_listed_with_their_networks():
    listed = rows(done("recipes", "sop").stdout)
    assert listed[0] == ["recipe", "network", "what"]
    known = {name for name in {*all_recipes(), *recipes_of_the_paper()} if name.startswith("sop/")}
    assert [row[0] for row in listed[2:-2]] == sorted(known)
    assert len(known) > 25
    assert ["sop/roadmap", "resnet50", "ROADMAP on Stanford Online Products: Sup-AP and L*_DG"] in listed
    assert listed[-1] == ["What they share: suprank recipes sop/base"]
    assert next(row for row in rows(done("recipes", "hgldv2").stdout) if row[0] == "hgldv2/happier")[1] == "hgldv2-start"


def test_a_preset_without_results_says_how_it_is_used():
    assert done("recipes", "cub112").stdout.splitlines() == [
        "cub112/METHOD is a recipe for every method that suprank recipes lists.",
        "What they share: suprank recipes cub112/base",
    ]


def test_a_recipe_is_printed_as_it_stands_with_the_papers_results_below():
    file = (recipes_folder() / "cub/roadmap.toml").read_text(encoding="utf-8")
    results = "#   tab:general_results_sop: R@1 69.4, R@2 79.4, R@4 87.2, R@8 92.1\n"
    assert done("recipes", "cub/roadmap").stdout == (
        f"{file}\n# The paper's results; `suprank paper LABEL` reproduces a table:\n#\n{results}"
    )


def test_a_recipe_without_a_file_is_printed_as_it_is_composed():
    output = done("recipes", "cub112/fast-ap").stdout
    assert output == recipe_text("cub112/fast-ap")
    assert tomllib.loads(output) == {"extends": ["cub112/base", "methods/fast-ap"]}


def test_a_recipe_is_printed_with_every_entry(folder):
    output = done("recipes", "sop/happier-f", "--resolved").stdout
    assert "extends" not in output
    assert list(tomllib.loads(output)) == list(TrainConfig.model_fields)
    (folder / "mine.toml").write_text(output, encoding="utf-8")
    assert read_recipe("mine.toml") == read_recipe("sop/happier-f")


def test_a_file_of_ones_own_can_be_resolved(folder):
    (folder / "mine.toml").write_text('extends = "cub/roadmap"\n[run]\nepochs = 3\n', encoding="utf-8")
    assert tomllib.loads(done("recipes", "mine.toml", "--resolved").stdout)["run"]["epochs"] == 3


def test_the_losses_are_listed_with_their_keys():
    listed = rows(done("recipes", "--losses").stdout)
    assert listed[0] == ["loss", "what", "keys of [loss]"]
    assert [row[0] for row in listed[2:]] == [*loss_specs(), "FILE.py:CLASS"]
    assert ["smooth-recall", "Smooth-R@k", "mixup, ks, rank_tau, tau, include_self"] in listed
    (roadmap,) = (row for row in listed if row[0] == "roadmap")
    assert {"weight", "decomposability", "temperature", "positive_floor"} <= set(roadmap[2].split(", "))


@pytest.mark.parametrize("name", ["cub/roadmap-vit", "dyml-animal/happier", "inat-full/arcface"])
def test_a_printed_recipe_is_the_same_recipe_in_any_folder(name, folder):
    (folder / "mine.toml").write_text(done("recipes", name).stdout)
    assert read_recipe("mine.toml") == read_recipe(name)


@pytest.mark.parametrize("name", loss_specs())
def test_the_keys_in_the_list_are_those_that_the_config_takes(name):
    listed = loss_specs()[name].key_names()
    unlike = {"tau": 0.5, "mixup": True, "ks": (3,), "temperature": 0.5, "average": "violating", "decay": 2.0, "rho": 5.0}
    for key, value in unlike.items():
        combined = issubclass(loss_specs()[name], CombinedSpec)
        choice = {"decomposability": "proxies" if key == "temperature" else "pairs"} if combined else {}
        if key in listed:
            assert getattr(parse_loss({"name": name, key: value} | choice), key) == value
        else:
            with pytest.raises(ValueError, match=f"{name} has no key '{key}'"):
                parse_loss({"name": name, key: value} | choice)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("sop/roadmp",), "did you mean sop/roadmap"),
        (("sop/roadmp", "--resolved"), "did you mean sop/roadmap"),
        (("cub112/fast-pa",), "did you mean cub112/fast-ap"),
        (("cub112", "--resolved"), "cub112 is a preset, and no recipe without a method"),
        (("--resolved",), "--resolved prints one recipe; name it, such as sop/roadmap."),
        (("--losses", "sop/roadmap"), "--losses lists losses and takes no recipe"),
        (("sop/base", "--resolved"), "loss: this table is missing"),
    ],
)
def test_what_makes_no_sense_is_refused_with_the_way_out(arguments, complaint):
    assert complaint in refused("recipes", *arguments)
