"""iNaturalist 2018 in small: two levels without names, seven with; homonyms, blanks, real and made-up names."""

import json

import pytest

from suprank.data.importers.inaturalist import INAT_BASE, INAT_FULL
from tests.data.miniatures import INAT_TRAIN, inat, inat_categories, inat_names, text

LIST = "Inat_dataset_splits/Inaturalist_train_set1.txt"


@pytest.mark.parametrize("end", ["\n", "\r\n", "\n\n"])
def test_base_has_the_folder_above_the_species_and_ids_where_there_are_no_names(tmp_path, end):
    found = INAT_BASE(inat(tmp_path, end)).manifests[""]

    assert found.levels == ("species", "supercategory")
    assert found.splits == {"train": 3, "test": 1}
    assert found.names == {"species": ("species 2761", "species 3001", "species 7477"), "supercategory": ("Aves", "Plantae")}
    assert found.two_parents() == []


def test_the_last_line_needs_no_line_break(tmp_path):
    file = inat(tmp_path) / LIST
    file.write_text(file.read_text().rstrip("\n"))

    assert INAT_BASE(tmp_path).manifests[""].splits["train"] == 3


def test_base_takes_names_where_there_are_some(tmp_path):
    inat_names(inat(tmp_path))

    assert INAT_BASE(tmp_path).manifests[""].names["species"] == ("Morus bassanus", "Morus rubra", "Sula nebouxii")


def test_full_has_seven_levels_and_tells_gannets_from_mulberries(tmp_path):
    inat_names(inat(tmp_path))
    found = INAT_FULL(tmp_path).manifests[""]

    assert found.levels == ("species", "genus", "family", "order", "class", "phylum", "kingdom")
    assert found.names["genus"] == ("Morus (Moraceae)", "Morus (Sulidae)", "Sula")
    assert found.names["kingdom"] == ("Animalia", "Plantae")
    assert found.two_parents() == []
    assert found.table["label_species"].to_pylist() == ["Morus rubra", "Morus bassanus", "Morus bassanus", "Sula nebouxii"]


def test_species_of_one_name_are_told_apart_by_their_ids(tmp_path):
    categories = inat_categories()
    categories[2]["name"] = categories[1]["name"]
    inat_names(inat(tmp_path), categories)

    for importer in (INAT_BASE, INAT_FULL):
        names = importer(tmp_path).manifests[""].names["species"]
        assert names == ("Morus bassanus (2761)", "Morus bassanus (3001)", "Morus rubra")


def test_a_blank_rank_is_a_class_of_its_own_under_each_parent(tmp_path):
    categories = [entry | {"order": ""} for entry in inat_categories()]
    inat_names(inat(tmp_path), categories)
    found = INAT_FULL(tmp_path).manifests[""]

    assert found.names["order"] == ("no order (Aves)", "no order (Magnoliopsida)")
    assert found.two_parents() == []


def test_the_file_of_real_names_goes_before_the_one_of_made_up_names(tmp_path):
    inat_names(inat(tmp_path), [entry | {"name": f"made up {entry['id']}"} for entry in inat_categories()])
    (tmp_path / "categories.json").write_text(json.dumps(inat_categories()))

    for importer in (INAT_BASE, INAT_FULL):
        assert "Sula nebouxii" in importer(tmp_path).manifests[""].names["species"]


def test_counts_stand_beside_the_published_ones(tmp_path):
    sentences = INAT_BASE(inat(tmp_path)).sentences

    assert sentences == (
        "train: 3 images, 2 species, 2 supercategory; published: 325,846 images, 5,690 species, 13 supercategory",
        "test: 1 images, 1 species, 1 supercategory; published: 136,093 images, 2,452 species",
    )


def test_full_without_names_and_either_without_lists_says_what_is_expected(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"train2018\.json does not exist; inat-full expects(.|\n)*categories\.json"):
        INAT_FULL(inat(tmp_path))
    (tmp_path / LIST).unlink()
    with pytest.raises(FileNotFoundError, match=r"Inaturalist_train_set1\.txt does not exist; inat-base expects"):
        INAT_BASE(tmp_path)


@pytest.mark.parametrize("line", ["Aves/a.jpg", "train_val2018/Aves/Sula/a.jpg", "train_val2018/Aves/2761/"])
def test_a_bad_line_is_named_with_its_number_and_the_rule(tmp_path, line):
    text(inat(tmp_path) / LIST, [*INAT_TRAIN, line])

    with pytest.raises(ValueError, match=rf"Inaturalist_train_set1\.txt:4: '{line}'.*a path such as"):
        INAT_BASE(tmp_path)


def test_a_species_that_the_names_lack_is_named(tmp_path):
    inat_names(inat(tmp_path), inat_categories()[:2])

    with pytest.raises(ValueError, match=r"has species 3001, which .*train2018\.json does not list"):
        INAT_FULL(tmp_path)


@pytest.mark.parametrize(
    ("content", "rule"),
    [
        ("{", "is not a readable list of categories"),
        ('{"categories": []}', "no list of categories"),
        ('{"images": []}', "no list of categories"),
        ('[{"id": 1, "name": "a"}]', "has no 'genus'.*2018"),
    ],
)
def test_a_bad_file_of_names_is_refused(tmp_path, content, rule):
    (inat(tmp_path) / "categories.json").write_text(content)

    with pytest.raises(ValueError, match=rf"categories\.json.*{rule}"):
        INAT_FULL(tmp_path)
