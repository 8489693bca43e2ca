"""In-Shop in small: genders tell categories of one name apart, items keep one parent, and what a bad line is told."""

import pytest

from suprank.data.importers.inshop import INSHOP
from tests.data.miniatures import INSHOP as LISTED
from tests.data.miniatures import inshop, text

HEADER = ["7", "image_name item_id evaluation_status"]


@pytest.mark.parametrize("folder", ["", "Eval", "eval"])
def test_the_list_is_found_in_each_of_its_usual_places(tmp_path, folder):
    found = INSHOP(inshop(tmp_path, folder)).manifests[""]

    assert found.levels == ("item", "category", "gender")
    assert found.splits == {"train": 3, "query": 2, "gallery": 2}
    assert found.table["label_item"].to_pylist()[:3] == ["id_00000002", "id_00000002", "id_00000080"]
    assert found.paths.to_pylist()[0] == "img/WOMEN/Dresses/id_00000002/02_1_front.jpg"


def test_denim_of_men_and_of_women_are_two_categories(tmp_path):
    found = INSHOP(inshop(tmp_path)).manifests[""]

    assert found.names["category"] == ("MEN Denim", "WOMEN Denim", "WOMEN Dresses", "WOMEN Tees Tanks")
    assert found.names["gender"] == ("MEN", "WOMEN")
    assert found.two_parents() == []


def test_counts_stand_beside_the_published_ones(tmp_path):
    sentences = INSHOP(inshop(tmp_path)).sentences

    assert sentences[1] == "query: 2 images, 2 item, 2 category, 1 gender; published: 14,218 images, 3,985 item"


def test_an_item_in_two_categories_takes_that_of_its_first_image_with_a_warning(tmp_path, caplog):
    stray = "img/WOMEN/Shorts/id_00000080/01_2_side.jpg   id_00000080   train"
    inshop(tmp_path, listed=(*LISTED, stray))

    found = INSHOP.read(tmp_path)[""]

    assert "1 images are in another category than their item's first image" in caplog.text
    assert "Shorts" in caplog.text

    assert found.two_parents() == []
    assert found.table.slice(7).select(["label_item", "label_category", "label_gender"]).to_pylist() == [
        {"label_item": "id_00000080", "label_category": "MEN Denim", "label_gender": "MEN"}
    ]


def test_a_missing_list_says_what_is_expected(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"list_eval_partition\.txt does not exist; inshop expects"):
        INSHOP(tmp_path)


@pytest.mark.parametrize(
    "line",
    [
        "img/WOMEN/Dresses/id_00000002/a.jpg id_00000002",
        "img/WOMEN/Dresses/id_00000002/a.jpg id_00000002 val",
        "img/WOMEN/Dresses/a.jpg id_00000002 train",
    ],
)
def test_a_bad_line_is_named_with_its_number_and_the_rule(tmp_path, line):
    text(inshop(tmp_path) / "list_eval_partition.txt", [*HEADER, *LISTED, line], "\r\n")

    with pytest.raises(ValueError, match=rf"list_eval_partition\.txt:10: '{line}'.*one of train, query, gallery"):
        INSHOP(tmp_path)


@pytest.mark.parametrize(("lines", "rule"), [(LISTED, "number of images"), (["7", *LISTED], "second line should be")])
def test_a_list_without_its_header_is_refused_so_that_no_image_is_taken_for_one(tmp_path, lines, rule):
    text(inshop(tmp_path) / "list_eval_partition.txt", lines)

    with pytest.raises(ValueError, match=rule):
        INSHOP(tmp_path)
