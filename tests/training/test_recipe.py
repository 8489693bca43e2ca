"""Recipes read: extended files, presets with methods, overrides, what is refused and suggested; and written, to be read."""

import json
import re
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from suprank.training import recipe_files
from suprank.training.config import TrainConfig
from suprank.training.presets import compose, expected_results, first_sentence, header
from suprank.training.recipe import read_recipe, to_toml
from suprank.training.recipe_files import RecipeError, recipe_name, recipe_text, recipes_folder

SMALLEST = '[data]\nmanifest = "birds.parquet"\n[loss]\nname = "roadmap"\n'


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def written(name, text):
    """The name of a recipe with this text."""
    file = Path(name)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
    return name


def refused(*arguments):
    with pytest.raises(RecipeError) as caught:
        read_recipe(*arguments)
    return str(caught.value)


def test_a_recipe_says_what_it_says_and_the_rest_is_as_usual():
    config = read_recipe(written("mine.toml", SMALLEST + "weight = 0.3\n[images]\ncrop_scale = [0.4, 1]\n"))
    assert config == TrainConfig.model_validate(
        {
            "data": {"manifest": "birds.parquet"},
            "images": {"crop_scale": (0.4, 1.0)},
            "loss": {"name": "roadmap", "weight": 0.3},
        }
    )
    assert config.batch.size == 256


# Extending


def test_the_extending_file_wins_entry_by_entry_and_lists_are_replaced():
    written(
        "parts/base.toml", SMALLEST + 'weight = 0.3\ntau = 0.02\n[data.tests]\na = "a.csv"\n[images]\ncrop_scale = [0.4, 1]\n'
    )
    text = 'extends = "parts/base.toml"\n[loss]\nweight = 0.5\n[data.tests]\nb = "b.csv"\n[images]\ncrop_scale = [0.2, 0.9]\n'
    config = read_recipe(written("mine.toml", text))
    assert (config.loss.name, config.loss.weight, config.loss.tau) == ("roadmap", 0.5, 0.02)
    assert config.data.tests == {"a": "a.csv", "b": "b.csv"}
    assert config.images.crop_scale == (0.2, 0.9)


def test_paths_of_extended_files_are_relative_to_the_file_and_of_several_the_later_wins():
    written("a/one.toml", SMALLEST + "weight = 0.3\ntau = 0.02\n")
    written("b/two.toml", "[loss]\nweight = 0.4\n")
    written("b/both.toml", 'extends = ["../a/one.toml", "two.toml"]\n')
    config = read_recipe(written("mine.toml", 'extends = "b/both.toml"\n'))
    assert (config.loss.weight, config.loss.tau) == (0.4, 0.02)


def test_a_recipe_of_ones_own_can_extend_a_shipped_one():
    config = read_recipe(written("mine.toml", 'extends = "cub/roadmap"\n[data]\nmanifest = "birds.csv"\n'))
    assert config == read_recipe("cub/roadmap", ["data.manifest=birds.csv"])


def test_a_circle_is_refused_with_its_chain(folder):
    written("one.toml", 'extends = "two.toml"\n')
    written("two.toml", 'extends = "./one.toml"\n')
    output = refused("one.toml")
    assert "circle" in output
    assert "one.toml → two.toml → one.toml" in output
    assert "circle" in refused(written("self.toml", 'extends = "self.toml"\n'))


@pytest.mark.parametrize(
    ("extends", "complaint"),
    [
        ("3", "3 should be a file"),
        ("[1]", "[1] should be a file"),
        ('""', "should be a file"),
        ('"gone.toml"', "there is no gone"),
    ],
)
def test_what_cannot_be_extended_is_refused(extends, complaint):
    output = refused(written("mine.toml", f"extends = {extends}\n{SMALLEST}"))
    assert complaint in output
    assert "mine.toml" in output


# A preset with a method


@pytest.fixture
def small(folder, monkeypatch):
    """In place of the shipped recipes: two presets, one without proxies of its own, and three methods."""
    base = "# A set: in short.\n#\n#   suprank train {}/METHOD\n\n[data]\nmanifest = '{}.csv'\n[batch]\nsize = 64\n"
    for preset in ("birds", "cars"):
        written(f"shipped/{preset}/base.toml", base.format(preset, preset))
    written("shipped/birds/_proxies.toml", "[proxies]\nlr = 3.0\n")
    written("shipped/methods/plain.toml", "# Plain: without.\n\n[loss]\nname = 'smooth-ap'\ntau = 0.02\n")
    written("shipped/methods/soft.toml", "# Soft: with.\n\n[loss]\nname = 'nsm'\n[proxies]\n")
    written(
        "shipped/methods/stored.toml", "# Stored: more.\n\n[loss]\nname = 'sup-ap'\n[memory]\nsize = 9\n[batch]\nsize = 32\n"
    )
    monkeypatch.setattr(recipe_files, "recipes_folder", lambda: folder / "shipped")
    return folder / "shipped"


def test_a_preset_with_a_method_is_read_as_a_file_that_extends_both(small):
    config = read_recipe("birds/plain")
    assert config == read_recipe(written("mine.toml", 'extends = ["birds/base", "methods/plain"]\n'))
    assert (config.data.manifest, config.loss.name, config.loss.tau, config.batch.size) == ("birds.csv", "smooth-ap", 0.02, 64)
    stored = read_recipe("birds/stored", ["run.epochs=7"])
    assert (stored.memory.size, stored.batch.size, stored.run.epochs) == (9, 32, 7)  # the method goes over the preset


def test_the_proxies_of_a_preset_are_for_losses_that_have_some(small):
    assert read_recipe("birds/soft").proxies.lr == 3.0
    assert read_recipe("birds/plain").proxies == TrainConfig.model_fields["proxies"].default
    assert read_recipe("cars/soft").proxies == TrainConfig.model_fields["proxies"].default  # cars has none of its own
    assert recipe_text("birds/soft").endswith('\nextends = ["birds/base", "birds/_proxies", "methods/soft"]\n')


def test_what_is_composed_says_what_it_is_and_how_it_is_run(small):
    assert recipe_text("cars/soft").splitlines() == [
        "# Soft on A set: with.",
        "#",
        "#   suprank train cars/soft",
        "#",
        "# Composed of a preset and a method, which say more:",
        "#",
        "#   suprank recipes cars/base",
        "#   suprank recipes methods/soft",
        "",
        'extends = ["cars/base", "methods/soft"]',
    ]


def test_the_result_to_expect_of_a_method_is_in_the_text(small):
    numbers = "note = 'Run once.'\n[\"the paper's (tab:a)\"]\nplain = 'R@1 80.0'\n['measured here']\nsoft = 'R@1 70.0'\n"
    written("shipped/birds/_expected.toml", numbers)
    assert expected_results(small, "birds") == {
        "plain": "Expected, the paper's (tab:a): R@1 80.0. Run once.",
        "soft": "Expected, measured here: R@1 70.0. Run once.",
    }
    assert "#   suprank train birds/soft\n#\n# Expected, measured here: R@1 70.0. Run once.\n#\n# Composed" in recipe_text(
        "birds/soft"
    )
    assert "Expected" not in recipe_text("birds/stored")
    assert expected_results(small, "cars") == {}


def test_a_file_goes_before_what_could_be_composed(small):
    written("shipped/birds/plain.toml", 'extends = ["birds/base", "methods/plain"]\n[loss]\ntau = 0.5\n')
    assert read_recipe("birds/plain").loss.tau == 0.5
    written("birds/soft.toml", SMALLEST)
    assert read_recipe("birds/soft.toml").loss.name == "roadmap"  # a file of one's own, by its path
    assert read_recipe("birds/soft").loss.name == "nsm"


@pytest.mark.parametrize("extends", ['"birds/soft"', '"birds/soft.toml"', '["cars/stored", "birds/soft"]'])
def test_a_recipe_of_ones_own_can_extend_a_preset_with_a_method(small, extends):
    overruled = "[memory]\nsize = 0\n" if "stored" in extends else ""  # nsm has no use for a memory
    config = read_recipe(written("mine.toml", f"extends = {extends}\n[run]\nepochs = 3\n{overruled}"))
    assert config == read_recipe("birds/soft", ["run.epochs=3"])


def test_what_is_wrong_is_blamed_on_the_file_that_says_it(small):
    written("shipped/methods/plain.toml", "# Plain: without.\n\n[loss]\nname = 'smooth-ap'\n[run]\nepochs = 0\n")
    written("shipped/cars/base.toml", (small / "cars/base.toml").read_text().replace("64", "-1"))
    output = refused("cars/plain")
    assert f"batch.size: -1 should be greater than or equal to 1 ({small / 'cars/base.toml'})" in output
    assert f"run.epochs: 0 should be greater than or equal to 1 ({small / 'methods/plain.toml'})" in output
    assert refused("birds/soft", ["memory.size=3"]) == (
        "memory.size=3 is of no use to nsm, which does not compare images with each other; use 0 (birds/soft)."
    )
    written("shipped/birds/base.toml", "# A set: in short.\n#\n#   go\n\nextends = 'gone'\n")
    assert refused("birds/soft") == (
        f"{small / 'birds/base.toml'} extends 'gone', but there is no {small / 'birds/gone'}, nor a recipe of that name."
    )


def test_a_circle_through_a_preset_with_a_method_is_refused(small):
    written("shipped/methods/plain.toml", "# Plain: without.\n\nextends = 'birds/plain'\n[loss]\nname = 'smooth-ap'\n")
    assert f"circle: birds/plain → {small / 'methods/plain.toml'} → birds/plain; take" in refused("birds/plain")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("cub112/fast-pa", "did you mean cub112/fast-ap"),
        ("cub112/roadmp.toml", "did you mean cub112/roadmap"),
        ("fast-ap", "/fast-ap"),
        ("cub112", "cub112 is a preset, and no recipe without a method; try cub112/roadmap"),
        ("methods/fast-ap", "data: this table is missing"),
        ("cub112/base", "loss: this table is missing"),
        ("methods/base", "neither a file nor a recipe"),
        ("cub112/fast-ap/more", "neither a file nor a recipe"),
        ("../cub112/fast-ap", "neither a file nor a recipe"),
        ("../pyproject", "neither a file nor a recipe"),
        ("cub/roadmp", "did you mean cub/roadmap"),
        ("recipes/cub/roadmp.toml", "did you mean cub/roadmap"),
    ],
)
def test_what_cannot_be_composed_is_refused_with_the_way_out(name, message):
    assert message in refused(name)


@pytest.mark.parametrize("name", ["cub112/fast-ap", "cub/roadmap"])
def test_a_recipe_goes_by_its_name_wherever_one_is(name):
    """Of a preset with a method, and of a file."""
    for spelling in (name, f"{name}.toml", f"recipes/{name}.toml"):
        assert read_recipe(spelling).loss.name == name.partition("/")[2]
        assert recipe_name(spelling) == name
    assert recipe_text("cub/roadmap.toml") == (recipes_folder() / "cub/roadmap.toml").read_text(encoding="utf-8")


def test_a_recipe_has_the_name_it_was_shipped_with_or_that_of_its_file():
    assert recipe_name(recipes_folder() / "cub/roadmap.toml") == recipe_name("cub/roadmap") == "cub/roadmap"
    assert recipe_name(written("some/mine.toml", SMALLEST)) == "mine"
    assert "neither" in refused("cub/nothing-like-it-at-all-that-there-is")


def test_without_preset_or_method_nothing_is_composed(small):
    for name in ("birds", "birds/", "/plain", "birds/gone", "gone/plain", "methods/plain", "birds/plain/more", ""):
        assert compose(name, small) is None


# Overrides


@pytest.mark.parametrize(
    ("override", "place", "value"),
    [
        ("data.manifest=cub.parquet", ("data", "manifest"), "cub.parquet"),
        ('data.manifest="cub.parquet"', ("data", "manifest"), "cub.parquet"),
        ("data.manifest=a=b.csv", ("data", "manifest"), "a=b.csv"),
        ("data.manifest=2024-01-01", ("data", "manifest"), "2024-01-01"),
        ("data.root=true\nroot=x", ("data", "root"), "true\nroot=x"),
        ("loss.weight=0.3", ("loss", "weight"), 0.3),
        ("loss.weight=.3", ("loss", "weight"), 0.3),
        ("optimizer.lr=1e-4", ("optimizer", "lr"), 1e-4),
        ("batch.size=64", ("batch", "size"), 64),
        (" batch.size = 64 ", ("batch", "size"), 64),
        ("data.cache_images=true", ("data", "cache_images"), True),
        ("loss.name=happier", ("loss", "name"), "happier"),
        ("memory.size=all", ("memory", "size"), "all"),
        ("images.crop_scale=[0.4,1]", ("images", "crop_scale"), (0.4, 1.0)),
        ("images.size=96", ("images", "size"), 96),
        ("data.tests.far=far.csv", ("data", "tests"), {"far": "far.csv"}),
        ('data.tests={near="near.csv"}', ("data", "tests"), {"near": "near.csv"}),
    ],
)
def test_an_override_is_toml_or_else_text(override, place, value):
    found = read_recipe(written("mine.toml", SMALLEST), [override])
    for name in place:
        found = getattr(found, name)
    assert found == value
    assert type(found) is type(value)


def test_whole_numbers_stand_for_fractions_and_lists_for_tuples():
    overrides = ["images.flip=1", "loss.tau=1", "optimizer.lr=0", "images.crop_scale=[1, 1]", "model.mean=[0, 0, 0]"]
    config = read_recipe(written("mine.toml", SMALLEST), overrides)
    found = (config.images.flip, config.loss.tau, config.optimizer.lr, *config.images.crop_scale, *config.model.mean)
    assert found == (1, 1, 0, 1, 1, 0, 0, 0)
    assert {type(number) for number in found} == {float}


def test_the_last_override_wins_and_none_is_lost():
    config = read_recipe(written("mine.toml", SMALLEST), ["loss.weight=0.3", "loss.tau=0.02", "loss.weight=0.4"])
    assert (config.loss.weight, config.loss.tau) == (0.4, 0.02)


def test_nothing_behind_the_equals_sign_brings_the_default_back():
    file = written("mine.toml", SMALLEST + 'decomposability = "proxies"\n[proxies]\nlr = 3.0\n[batch]\nchunk = 8\n')
    assert read_recipe(file, ["batch.chunk="]).batch.chunk is None
    config = read_recipe(file, ["loss.decomposability=pairs", "proxies="])
    assert config.proxies == TrainConfig.model_fields["proxies"].default
    assert read_recipe(file, ["model.weights="]) == read_recipe(file)  # there was nothing to take out


def test_a_table_given_as_a_whole_completes_that_of_the_recipe_as_one_in_a_file_does():
    text = SMALLEST + "weight = 0.3\ntau = 0.02\n[run]\nepochs = 7\n[data.tests]\nfine = 'f.csv'\n"
    file = written("mine.toml", text)
    loss = read_recipe(file, ['loss={name="roadmap", weight=0.4}']).loss
    assert (loss.weight, loss.tau) == (0.4, 0.02)
    for override in ("run={}", "run={seed=1}"):
        assert read_recipe(file, [override]).run.epochs == 7
    assert read_recipe(file, ["loss=", "loss.name=roadmap"]).loss.tau == 0.01  # so it is replaced
    assert read_recipe(file, ["data.tests={coarse='c.csv'}"]).data.tests == {"fine": "f.csv", "coarse": "c.csv"}


@pytest.mark.parametrize("override", ["loss.weight", "=3", "loss.=3", ".weight=3", "loss..weight=3", "", "  =3"])
def test_an_override_without_key_or_value_is_refused_with_an_example(override):
    output = refused(written("mine.toml", SMALLEST), [override])
    assert repr(override) in output
    assert "loss.weight=0.3" in output


# Unknown names


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("batch_size", "batch.size"),
        ("batchsize", "batch"),
        ("los.weight", "loss"),
        ("loss.wieght", "loss.weight"),
        ("loss.batch_size", "batch.size"),
        ("optimizer.epochs", "run.epochs"),
        ("epochs", "run.epochs"),
        ("lr", "optimizer.lr or proxies.lr"),
        ("optimizer.learning_rate", "[optimizer] has name, lr"),
        ("loss.epoch", "run.epochs"),
        ("model.backbon", "model.backbone"),
    ],
)
@pytest.mark.parametrize("in_file", [True, False])
def test_an_unknown_name_is_refused_with_the_one_that_was_meant(key, meant, in_file):
    override = f"{key}=3"
    if in_file:
        table, _, name = key.rpartition(".")
        output = refused(written("mine.toml", f"[{table}]\n{name} = 3\n" if table else f"{name} = 3\n"))
        assert "(mine.toml)" in output
    else:
        output = refused(written("mine.toml", SMALLEST), [override])
        assert f"({override})" in output
    suggestion = meant if meant.startswith("[") else f"did you mean {meant}?"
    assert suggestion in output


def test_an_entry_has_no_entries():
    file = written("mine.toml", SMALLEST + "[batch]\nsize = 64\n")
    assert refused(file, ["batch.size.more=3"]).startswith("batch.size is an entry and not a table, so it has no 'more'")
    assert refused(file, ["batch.chunk.more=3"]).startswith("batch.chunk: {'more': 3} should be a valid integer")


def test_a_name_without_any_likeness_gets_the_list():
    assert "a recipe has data, images, model, loss" in refused(written("mine.toml", "zzzzzz = 3\n"))


def test_an_unknown_name_is_refused_also_where_it_is_to_be_left_out():
    assert "did you mean batch.chunk?" in refused(written("mine.toml", SMALLEST), ["batch.chonk="])


def test_extends_belongs_in_a_file():
    assert "there is no such key" in refused(written("mine.toml", SMALLEST), ["extends=other.toml"])


def test_an_unknown_name_in_an_extended_file_is_blamed_on_that_file():
    written("base.toml", "[loss]\nnmae = 'roadmap'\n")
    assert "(base.toml)" in refused(written("mine.toml", 'extends = "base.toml"\n'))


def test_every_unknown_name_of_a_file_is_reported_at_once():
    output = refused(written("mine.toml", "epochs = 3\n[loss]\nnmae = 'x'\nwieght = 1\n"))
    for name in ("epochs: ", "loss.nmae: ", "loss.wieght: "):
        assert name in output


# Wrong values


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("loss.weight=2", "loss.weight: 2 should be less than or equal to 1 (loss.weight=2)."),
        ("loss.weight=much", "loss.weight: 'much' should be a valid number (loss.weight=much)."),
        ("engine.precision=fp8", "engine.precision: 'fp8' should be 'fp32', 'bf16' or 'fp16' (engine.precision=fp8)."),
        ("images.crop_scale=[0, 1]", "images.crop_scale: 0 should be greater than 0 (images.crop_scale=[0, 1])."),
        ("memory.size=some", "memory.size: 'some' should be a valid integer, or 'some' should be 'all' (memory.size=some)."),
        ("loss=3", "loss: 3 should be a table; write [loss] and its keys below it (loss=3)."),
        ("data.manifest=", "data.manifest: this entry is missing; a recipe needs it (data.manifest=)."),
        ("loss=", "loss: this table is missing; a recipe needs it (mine.toml)."),
        (
            "batch.images_per_class=3",
            "batch.size=256 must be a multiple of batch.images_per_class=3, because images come in groups of a class; "
            "try 255 or 258 (mine.toml).",
        ),
        ("images.size=true", "images.size: True should be a valid integer (images.size=true)."),
        ("run.epochs=1e2", "run.epochs: 100.0 should be a valid integer (run.epochs=1e2)."),
        ("images.flip='0.5'", "images.flip: '0.5' should be a valid number (images.flip='0.5')."),
        ("images.crop_scale=[true, 1]", "images.crop_scale: True should be a valid number (images.crop_scale=[true, 1])."),
        ("data.cache_images=no", "data.cache_images: 'no' should be true or false (data.cache_images=no)."),
        ("data.levels=species", "data.levels: 'species' should be a list, in brackets (data.levels=species)."),
        ("data.root=3", "data.root: 3 should be a valid string (data.root=3)."),
        ("evaluation.metrics=[1]", "evaluation.metrics: 1 should be a valid string (evaluation.metrics=[1])."),
    ],
)
def test_a_wrong_value_is_reported_in_a_sentence_with_its_origin(override, message):
    assert refused(written("mine.toml", SMALLEST), [override]) == message


def test_several_wrong_values_are_reported_at_once_each_with_its_file():
    written("base.toml", SMALLEST + "weight = 2\n")
    output = refused(written("mine.toml", 'extends = "base.toml"\n[batch]\nsize = 0\n'), ["run.epochs=0"])
    assert output == (
        "loss.weight: 2 should be less than or equal to 1 (base.toml); batch.size: 0 should be greater than or equal to 1 "
        "(mine.toml); run.epochs: 0 should be greater than or equal to 1 (run.epochs=0)."
    )


def test_what_the_chosen_loss_does_not_read_is_refused():
    output = refused(written("mine.toml", SMALLEST), ["loss.name=smooth-ap", "loss.rho=10"])
    keys = "its keys are mixup, k, rank_tau, tau, include_self"
    assert output.startswith(
        f"loss.rho: smooth-ap has no key 'rho'; leave it out: {keys} (loss.rho=10). On the command line KEY"
    )


# Files


def test_a_syntax_error_names_file_and_line():
    output = refused(written("mine.toml", SMALLEST + "weight 0.3\n"))
    assert output.startswith("mine.toml is not TOML at line 5, column 8: ")


def test_a_file_that_is_no_text_is_refused(folder):
    (folder / "mine.toml").write_bytes(b"[data]\nmanifest = '\xff'\n")
    assert refused("mine.toml") == "mine.toml is not text in UTF-8 (byte 19); save it as UTF-8."


def test_a_byte_order_mark_is_no_obstacle(folder):
    (folder / "mine.toml").write_bytes(b"\xef\xbb\xbf" + SMALLEST.encode())
    assert read_recipe(folder / "mine.toml").loss.name == "roadmap"


def test_a_name_like_no_recipe_gets_the_way_to_the_list(folder):
    assert "`suprank recipes` lists" in refused("qqqq")
    (folder / "zz").mkdir()
    assert "zz is a folder" in refused("zz")


def test_a_file_goes_before_a_shipped_recipe_of_its_name():
    assert read_recipe(written("cub/roadmap.toml", SMALLEST)).data.manifest == "birds.parquet"
    assert read_recipe("cub/roadmap").data.manifest == "cub.parquet"  # there is no file of this name


def test_a_header_is_the_comment_before_the_first_other_line():
    assert header("# One.\n#\n#   two\n\n# not this\n") == "One.\n\n  two"


def test_the_first_sentence_of_a_header_may_take_two_lines():
    assert first_sentence("One thing\nis said. Then another.\n\n  two") == "One thing is said"


# Writing


def test_a_config_is_written_as_toml_that_a_person_can_read():
    config = read_recipe(written("mine.toml", SMALLEST), ["optimizer.lr=1e-5", "data.tests={fine='a b.csv'}"])
    lines = to_toml(config).splitlines()
    assert lines[:2] == ["[data]", 'manifest = "birds.parquet"']
    for line in ('tests = {fine = "a b.csv"}', "lr = 1e-05", "crop_scale = [0.16, 1.0]", "tensorboard = true", "size = 256"):
        assert line in lines
    assert not any(line.startswith("root") for line in lines)  # None has no form in TOML, and is what is left out
    tables = [line[1:-1] for line in lines if line.startswith("[")]
    assert tables == list(TrainConfig.model_fields)


def test_every_default_is_written_so_that_the_file_outlives_it():
    config = read_recipe(written("mine.toml", SMALLEST))
    assert tomllib.loads(to_toml(config)) == json.loads(config.model_dump_json(exclude_none=True))


TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)
NUMBER, SHARE = st.floats(1e-12, 1e12), st.floats(1e-12, 1)
OVERRIDES = {
    "data.manifest": TEXT,
    "data.root": TEXT,
    "data.tests": st.dictionaries(TEXT, TEXT, max_size=3),
    "data.levels": st.lists(TEXT, min_size=1, max_size=3, unique=True),
    "data.cache_images": st.booleans(),
    "images.size": st.integers(1, 256),
    "images.crop_scale": st.tuples(SHARE, SHARE).map(sorted),
    "images.crop_ratio": st.tuples(NUMBER, NUMBER).map(sorted),
    "loss.weight": st.floats(0, 1),
    "loss.tau": NUMBER,
    "loss.jump": st.floats(0, 1e12),
    "loss.ks": st.lists(st.integers(1, 99), min_size=1, max_size=4),
    "memory.size": st.one_of(st.integers(0, 10**6), st.just("all")),
    "model.dim": st.integers(1, 4096),
    "model.mean": st.tuples(NUMBER, NUMBER, NUMBER),
    "run.clip_grad_norm": NUMBER,
    "evaluation.metrics": st.lists(st.sampled_from(["R@1", "AP", "mAP@R/a level"]), max_size=3).map(
        lambda some: ["wAP", *some]
    ),
    "evaluation.level_weights": st.dictionaries(TEXT, NUMBER, max_size=3),
    "logging.wandb": TEXT,
}


@given(st.fixed_dictionaries({}, optional=OVERRIDES))
def test_what_is_written_is_read_to_an_equal_config(tmp_path_factory, chosen):
    values = {"data": {"manifest": "m"}, "loss": {"name": "rod-recall"}}
    for key, value in chosen.items():
        table, name = key.split(".")
        values.setdefault(table, {})[name] = value
    config = TrainConfig.model_validate(values)
    file = tmp_path_factory.getbasetemp() / "written.toml"
    file.write_text(to_toml(config), encoding="utf-8", newline="")
    assert read_recipe(file) == config


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("data.root=elsewhere", "data: root has no effect on glyphs, whose images suprank draws itself; leave it out"),
        ("images={squash = true, test_resize = 0}", "images: squash=true resizes test images, but test_resize=0 does not"),
    ],
)
def test_what_nobody_would_read_is_refused(override, message):
    with pytest.raises(RecipeError, match=re.escape(message)):
        read_recipe("glyphs/happier", [override])


def test_each_file_is_read_once_for_each_that_extends_it_however_many_ways_lead_there(monkeypatch):
    """Each of 24 files extends the next one twice: without `done` the last would be read 2²⁴ times."""
    for level in range(24):
        written(f"r{level}.toml", f'extends = ["r{level + 1}.toml", "./r{level + 1}.toml"]\n')
    written("r24.toml", SMALLEST)
    parsed = []
    monkeypatch.setattr(
        recipe_files, "parse_toml", lambda source, parse=recipe_files.parse_toml: parsed.append(1) or parse(source)
    )
    assert read_recipe("r0.toml").loss.name == "roadmap"
    assert len(parsed) == 25


@pytest.mark.parametrize("names", [[f"r{level}.toml" for level in range(60)], ["r0.toml"] * 60])
def test_a_recipe_extends_fifty_files_at_most(names):
    for level in range(60):
        written(f"r{level}.toml", f'extends = "r{level + 1}.toml"\n' if len(set(names)) > 1 else SMALLEST)
    written("mine.toml", f"extends = {json.dumps(names if len(set(names)) == 1 else names[:1])}\n")
    assert "extends more than 50 files, directly or not; merge some of them" in refused("mine.toml")


@pytest.mark.parametrize("text", ["a = " + "[" * 100_000, "a = " + "{a=" * 100_000])
def test_a_recipe_nested_too_deep_is_refused_by_its_name(text):
    with pytest.raises(ValueError, match=r"^deep\.toml is not a readable recipe: maximum recursion depth"):
        read_recipe(written("deep.toml", text))
