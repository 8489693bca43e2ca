"""The header names both models, how each read its images, and what makes a comparison unfair; recipes belong to runs."""

from dataclasses import replace

import pytest

from suprank import open_data
from suprank.evaluation.provenance import Provenance
from suprank.explorer.report.header import header
from suprank.explorer.report.table_sections import recipe_section
from tests.explorer.report.reading import of, parsed
from tests.explorer.report.test_page import small
from tests.explorer.runs import embeddings, run

RESNET = Provenance("resnet50", 24_557_120, size=112, resize=0)


@pytest.fixture(scope="module")
def sources(runs):
    """A run, the same before training on images read otherwise, and a folder of embeddings of which nothing is known."""
    data = open_data(runs[0])
    unlike = replace(RESNET, parameters=23_000_000, size=224, resize=256)
    trained = replace(data.origin, made_by=RESNET)
    frozen = replace(data.origin, frozen=True, made_by=unlike, recipe=None)
    embedded = replace(data.origin, made_by=None, recipe=None)
    named = zip(("better", "better before training", "embedded"), (trained, frozen, embedded), strict=True)
    return tuple(replace(data, name=name, origin=origin) for name, origin in named)


def columns(*sources):
    return {one.name: (one.values, one.differs) for one in header(sources).columns}


def test_one_model_is_described_by_facts(sources):
    found = header(sources[:1], [("Unreadable images", "2")])
    assert not found.columns
    facts = dict(found.facts)
    assert facts["Test images"] == "24 images, each a query"
    assert (facts["Classes"], facts["Unreadable images"]) == ("12 class, 3 group", "2")
    assert (facts["Backbone"], facts["Parameters"]) == ("resnet50", "24.6 M")
    assert (facts["Image size"], facts["Resize"]) == ("112 pixels", "none")
    assert (facts["Interpolation, precision"], facts["Dimensions"]) == ("bilinear, fp32", "16")
    assert (facts["Loss"], facts["Epochs"]) == ("happier", "2")


def test_two_models_stand_side_by_side_and_what_makes_them_unlike_is_marked(sources):
    trained, frozen, _ = sources
    found = columns(trained, frozen)
    assert found["Backbone"] == (("resnet50", "resnet50"), False)
    assert found["Image size"] == (("112 pixels", "224 pixels"), True)
    assert found["Resize"] == (("none", "short side to 256"), True)
    assert found["Parameters"] == (("24.6 M", "23.0 M"), False), "heads of other widths may be compared"
    assert found["Loss"] == (("happier", "not trained"), False)
    assert "Interpolation, precision" not in found, "it is the same"
    half = replace(
        trained,
        origin=replace(trained.origin, made_by=replace(RESNET, resize=128, squash=True, precision="fp16", scales=(1.0, 0.5))),
    )
    assert columns(trained, half)["Resize"] == (("none", "both sides to 128"), True)
    assert columns(trained, half)["Interpolation, precision"] == (("bilinear, fp32", "bilinear, fp16, scales 1, 0.5"), True)


def test_what_a_folder_does_not_record_is_not_invented(sources):
    trained, _, embedded = sources
    found = columns(trained, embedded)
    assert found["Backbone"] == (("resnet50", "not recorded"), False)
    assert found["Loss"] == (("happier", "not recorded"), False)
    assert set(columns(embedded, embedded)) == {"Dimensions"}


@pytest.mark.usefixtures("undrawn")
def test_the_page_marks_the_differences_and_the_verdict_warns_of_them(sources):
    trained, frozen, _ = sources
    found = parsed(small(trained, frozen))
    (table,) = of(found, "table", class_="models")
    marked = [" ".join(one.text.split()) for one in of(found, "th", class_="differs") if table in one.above]
    assert marked == ["Image size ≠(differs)", "Resize ≠(differs)"]
    (warning,) = of(found, "p", class_="warning")
    assert warning.within(id="verdict")
    assert "not directly comparable. better and better before training differ in more than training" in warning.text
    (training,) = of(found, "section", id="training")
    assert "better before training was not trained, so it has no curves." in training.text
    assert "different losses" not in training.text
    assert [one.text for one in of(found, "li") if training in one.above] == ["better"], "the legend names what is drawn"
    (recipe,) = of(found, "section", id="recipe")
    assert "better before training is the backbone before training, so it has no recipe of its own." in recipe.text
    assert "differ" not in recipe.text
    assert "happier" in recipe.text
    assert "–" not in recipe.text


def test_only_runs_have_recipes_and_equal_ones_are_said_to_be_equal(sources):
    trained, _, embedded = sources
    assert recipe_section([embedded]) is None
    one = recipe_section([trained])
    assert (one.title, one.about, one.collapsed) == ("Recipe", (), True)
    assert one.content["columns"] == [(0, "better")]
    second = recipe_section([embedded, trained])
    assert (second.title, second.content["columns"]) == ("Recipe of better", [(1, "better")])
    assert second.about == ("embedded is a folder of embeddings, which has no recipe.",)
    assert recipe_section([trained, trained]).content["different"] == []


def test_a_frozen_source_is_known_as_one(runs, tmp_path):
    """`frozen` is set where the embeddings of RUN/frozen are read, and nowhere else."""
    folder = run(tmp_path / "run", runs[2])
    embeddings(folder / "frozen" / "embeddings", runs[2])
    assert not open_data(folder).origin.frozen
    before = open_data(folder, frozen=True)
    assert (before.name, before.origin.frozen, before.origin.recipe) == ("run before training", True, None)
