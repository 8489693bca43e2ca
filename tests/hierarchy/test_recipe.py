"""Recipes: those that come with the package, and what a file of one's own may get wrong."""

import pytest

from suprank.hierarchy.recipe import Recipe, read_recipe, recipe_names


def test_the_recipe_of_h_gldv2_says_what_the_paper_says():
    recipe = read_recipe("hgldv2")
    assert recipe.levels == ("landmark", "hierarchical_label", "natural_or_human_made")
    assert recipe.top == ("human-made", "natural")
    assert recipe.clean.several == "single-only"
    assert {"Q4167836", "Q4167410"} <= {stop.qid for stop in recipe.clean.stop}  # category, disambiguation page
    assert recipe.items.whole_numbers
    published = (recipe.export.id, recipe.export.source, recipe.export.type, *recipe.levels[1:])
    assert published == ("landmark_id", "category", "supercategory", "hierarchical_label", "natural_or_human_made")


@pytest.mark.parametrize("name", recipe_names())
def test_every_recipe_survives_json(name):
    recipe = read_recipe(name)
    assert Recipe.model_validate_json(recipe.model_dump_json()) == recipe
    assert recipe.depth == len(recipe.levels) - 1


def test_a_recipe_of_ones_own_is_called_after_its_file(tmp_path):
    file = tmp_path / "birds.toml"
    file.write_text('title = "Birds"\nlevels = ["species", "family"]\n[clean]\nleast_items = 2\n')
    recipe = read_recipe(str(file))
    assert (recipe.name, recipe.levels, recipe.clean.least_items) == ("birds", ("species", "family"), 2)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("title = ", "birds.toml is not a readable recipe"),
        ('levels = ["a", "b"]', "title: Field required"),
        ('title = "x"\nlevels = ["a"]', "must be two or more different names"),
        ('title = "x"\nlevels = ["a", "a"]', "must be two or more different names"),
        ('title = "x"\ntop = ["a", "b"]', "give three or more levels"),
        ('title = "x"\nlevels = ["a", "b", "c"]\ntop = ["a b", "a  B"]', "must be different names"),
        ('title = "x"\nlevels = ["a", "b", "c"]\ntop = ["a", " "]', "none of them empty"),
        ('title = "x"\nlevels = ["a", "label"]', "groups cannot be called 'label'"),
        ('title = "x"\nlevels = ["a", "kind"]\n[export]\ntype = "kind"', "groups cannot be called 'kind'"),
        ('title = "x"\n[scrape]\nrate = inf', "scrape.rate: Input should be a finite number"),
        ('title = "x"\n[scrape]\nlanguages = []', "scrape.languages"),
        ('title = "x"\n[scrape]\ntopic_of = { Q1 = "p301" }', "scrape.topic_of.Q1"),
        ('title = "x"\n[embed]\nstrip = ["("]', r"strip '\(' is not a regular expression: missing \)"),
        ('title = "x"\n[cluster]\nseed = 4294967296', "cluster.seed"),
        ('title = "x"\n[clean]\nseverel = "first"', "clean.severel: there is no such entry; did you mean clean.several"),
        ('title = "x"\n[clean]\nzzz = 1', "clean.zzz: there is no such entry$"),
        ('title = "x"\n[clean]\nseveral = "any"', "clean.several"),
        ('title = "x"\n[clean]\nstop = [{ qid = "q1", reason = "" }]', "clean.stop.0.qid"),
        ('title = "x"\n[clean]\nstop_text = [{ reason = "" }]', "give either begins or equals"),
        ('title = "x"\n[embed]\nprompt = "A picture"', "must contain {} once, where the label goes"),
        ('title = "x"\n[lint]\nalike = 2', "lint.alike"),
        ('title = "x"\n[clean]\nleast_items = true', "clean.least_items: Input should be a valid integer"),
        ('title = "x"\n[items]\nwhole_numbers = "no"', "items.whole_numbers: Input should be a valid boolean"),
    ],
)
def test_what_is_wrong_is_named_with_its_entry(tmp_path, text, complaint):
    (tmp_path / "birds.toml").write_text(text)
    with pytest.raises(ValueError, match=complaint):
        read_recipe(str(tmp_path / "birds.toml"))


def test_a_recipe_that_is_not_utf_8_is_refused_by_its_name(tmp_path):
    (tmp_path / "birds.toml").write_bytes(b"title = 'caf\xe9'")
    with pytest.raises(ValueError, match="birds.toml is not a readable recipe"):
        read_recipe(str(tmp_path / "birds.toml"))


def test_an_unknown_recipe_is_refused_with_those_that_are_there():
    with pytest.raises(ValueError, match="no recipe 'gldv3'; choose from hgldv2, plain"):
        read_recipe("gldv3")
