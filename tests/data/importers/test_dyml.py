"""DyML in small: the image behind the header is kept, and queries know their own image in the gallery."""

import pytest

from suprank.data.importers.dyml import DYML_ANIMAL, DYML_PRODUCT, DYML_VEHICLE
from tests.data.miniatures import DYML_TRAIN, dyml, dyml_product, glued, picture, text

TREE = "fname, coarse_id, middle_id, fine_id"


def own_images(manifest):
    """Query file → gallery files of its id."""
    rows = manifest.table.to_pylist()
    return {
        query["path"]: [row["path"] for row in rows if row["split"] == "gallery" and row["id"] == query["id"]]
        for query in rows
        if query["split"] == "query"
    }


@pytest.mark.parametrize("importer", [DYML_VEHICLE, DYML_ANIMAL])
def test_train_has_three_levels_and_each_test_set_one(tmp_path, importer):
    found = importer(dyml(tmp_path)).manifests

    assert list(found) == ["", "fine", "middle", "coarse"]
    assert found[""].levels == ("fine", "middle", "coarse")
    assert found[""].splits == {"train": 4}
    assert found[""].two_parents() == []
    for level in ("fine", "middle", "coarse"):
        assert found[level].levels == (level,)
        assert found[level].splits == {"query": 3, "gallery": 5}
        assert found[level].names[level] == (f"{level} 5", f"{level} 6")


def test_the_row_glued_to_the_header_is_read_like_any_other(tmp_path):
    found = DYML_VEHICLE(dyml(tmp_path)).manifests

    assert found[""].table.slice(0, 1).to_pylist() == [
        {
            "path": "train/imgs/0.jpg",
            "split": "train",
            "label_fine": "fine 17",
            "label_middle": "middle 3",
            "label_coarse": "coarse 0",
        }
    ]
    assert found["fine"].paths[0].as_py() == "bmk_fine/query/0.jpg"


@pytest.mark.parametrize("end", ["\n", "\r\n", "\n\n"])
@pytest.mark.parametrize("header", [TREE, "fname,coarse_id,middle_id,fine_id"])
def test_a_mended_file_gives_the_same(tmp_path, header, end):
    dyml(tmp_path)
    asis = DYML_VEHICLE(tmp_path).manifests[""]
    text(tmp_path / "train/label.csv", [header, *(row.replace(", ", ",") for row in DYML_TRAIN)], end)

    assert DYML_VEHICLE(tmp_path).manifests[""].table == asis.table


@pytest.mark.parametrize("header", ["fname, labels", "fname, label", "fname, labels_id", "fname, label_id"])
def test_any_name_of_the_test_column_is_cut_off_the_first_row(tmp_path, header):
    glued(dyml(tmp_path) / "bmk_fine/query.csv", header, ("0.jpg, 5", "1.jpg, 5", "2.jpg, 6"), "\r\n")

    assert DYML_VEHICLE(tmp_path).manifests["fine"].paths.to_pylist()[:3] == [f"bmk_fine/query/{n}.jpg" for n in range(3)]


def test_own_images_are_found_by_content_where_names_say_nothing(tmp_path):
    found = DYML_VEHICLE(dyml(tmp_path, shuffled=True)).manifests["middle"]

    assert own_images(found) == {
        "bmk_middle/query/0.jpg": ["bmk_middle/gallery/3.jpg"],
        "bmk_middle/query/1.jpg": ["bmk_middle/gallery/4.jpg"],
        "bmk_middle/query/2.jpg": ["bmk_middle/gallery/1.jpg"],
    }


def test_two_equal_queries_take_an_own_image_each(tmp_path):
    dyml(tmp_path, shuffled=True)
    for path in ("query/0.jpg", "query/1.jpg", "gallery/3.jpg", "gallery/4.jpg"):
        picture(tmp_path / "bmk_fine" / path, 99)

    found = own_images(DYML_VEHICLE(tmp_path).manifests["fine"])

    assert found["bmk_fine/query/0.jpg"] == ["bmk_fine/gallery/3.jpg"]
    assert found["bmk_fine/query/1.jpg"] == ["bmk_fine/gallery/4.jpg"]


def test_names_are_trusted_where_every_query_has_a_namesake_of_its_class(tmp_path):
    dyml(tmp_path, shuffled=False)
    for path in tmp_path.rglob("*.jpg"):
        path.unlink()  # nothing but the names is left to go by

    found = own_images(DYML_VEHICLE(tmp_path).manifests["fine"])

    assert found == {f"bmk_fine/query/{number}.jpg": [f"bmk_fine/gallery/{number}.jpg"] for number in range(3)}


def test_queries_without_an_own_image_are_counted_in_a_warning(tmp_path, caplog):
    dyml(tmp_path, shuffled=True)
    (tmp_path / "bmk_coarse/query/1.jpg").unlink()

    found = DYML_VEHICLE.read(tmp_path)["coarse"]

    assert "1 of 3 queries under bmk_coarse were not found in their gallery" in caplog.text

    assert own_images(found)["bmk_coarse/query/1.jpg"] == []


def test_product_has_train_and_test_in_one_whose_classes_are_not_mixed(tmp_path):
    found = DYML_PRODUCT(dyml_product(tmp_path)).manifests

    assert list(found) == [""]
    assert found[""].splits == {"train": 4, "test": 2}
    assert found[""].split("test").table["label_fine"].to_pylist() == ["fine 17 (test)", "fine 17 (test)"]
    assert found[""].two_parents() == []
    assert found[""].paths.to_pylist()[4] == "mini-bmk_all_in_one/imgs/0.jpg"


def test_counts_stand_beside_the_published_ones_where_these_are_known(tmp_path):
    sentences = DYML_ANIMAL(dyml(tmp_path)).sentences

    assert sentences[0] == "train: 4 images, 3 fine, 3 middle, 2 coarse; published: 495 fine, 28 middle, 5 coarse"
    assert "fine/query: 3 images, 2 fine" in sentences


@pytest.mark.parametrize("file", ["train/label.csv", "bmk_middle/gallery.csv"])
def test_a_missing_file_says_what_is_expected(tmp_path, file):
    (dyml(tmp_path) / file).unlink()

    with pytest.raises(FileNotFoundError, match=rf"{file} does not exist; dyml-animal expects(.|\n)*bmk_fine"):
        DYML_ANIMAL(tmp_path)


@pytest.mark.parametrize("line", ["4.jpg, 1, 7", "4.jpg, 1, 7, x", "4.jpg, 1, 7, 30, 2", ", 1, 7, 30"])
def test_a_bad_line_is_named_with_its_number_and_the_rule(tmp_path, line):
    glued(dyml(tmp_path) / "train/label.csv", TREE, (*DYML_TRAIN, line))

    with pytest.raises(ValueError, match=rf"label\.csv:5: '{line}'.*a file name and 3 class numbers"):
        DYML_VEHICLE(tmp_path)


@pytest.mark.parametrize("header", ["fname, fine_id, middle_id, coarse_id", ""])
def test_other_columns_are_refused_since_their_order_is_all_that_tells_levels_apart(tmp_path, header):
    glued(dyml(tmp_path) / "train/label.csv", header, DYML_TRAIN)

    with pytest.raises(ValueError, match=r"label\.csv:1: .*should begin with names"):
        DYML_VEHICLE(tmp_path)


def test_a_file_of_names_alone_lists_no_images(tmp_path):
    text(dyml(tmp_path) / "train/label.csv", [TREE])

    with pytest.raises(ValueError, match=r"label\.csv lists no images"):
        DYML_VEHICLE(tmp_path)
