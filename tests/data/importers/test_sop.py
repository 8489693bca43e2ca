"""Stanford Online Products in small: names, splits, the tree, and what a bad line or file is told."""

import pytest

from suprank.data.importers.sop import SOP
from tests.data.miniatures import SOP_TRAIN, sop, text

HEADER = "image_id class_id super_class_id path"


@pytest.mark.parametrize("end", ["\n", "\r\n", "\n\n"])
def test_products_are_called_by_their_category_and_id_whatever_ends_a_line(tmp_path, end):
    found = SOP(sop(tmp_path, end)).manifests[""]

    assert found.levels == ("product", "category")
    assert found.splits == {"train": 4, "test": 2}
    assert found.paths.to_pylist()[:2] == ["bicycle_final/111085122871_0.JPG", "bicycle_final/111085122871_1.JPG"]
    assert found.names["category"] == ("bicycle", "coffee maker")
    assert found.table["label_product"].to_pylist() == [
        "bicycle 1",
        "bicycle 1",
        "bicycle 2",
        "coffee maker 3",
        "bicycle 11319",
        "coffee maker 11320",
    ]
    assert found.two_parents() == []


def test_counts_stand_beside_the_published_ones_and_no_image_is_missed(tmp_path):
    sentences = SOP(sop(tmp_path)).sentences

    assert sentences[0] == ("train: 4 images, 3 product, 2 category; published: 59,551 images, 11,318 product, 12 category")
    assert not any("not under" in sentence for sentence in sentences)


def test_an_absent_image_is_reported_and_no_error(tmp_path):
    sop(tmp_path)
    (tmp_path / "bicycle_final/111085122871_0.JPG").unlink()

    assert any("1 of 6 images do not exist under" in sentence for sentence in SOP(tmp_path).sentences)


def test_a_missing_list_says_what_is_expected(tmp_path):
    sop(tmp_path)
    (tmp_path / "Ebay_test.txt").unlink()

    with pytest.raises(FileNotFoundError, match=r"Ebay_test\.txt does not exist; sop expects(.|\n)*bicycle_final"):
        SOP(tmp_path)


@pytest.mark.parametrize(
    ("line", "rule"),
    [
        ("5 3 4", "three ids and a path"),
        ("5 three 4 bicycle_final/a.JPG", "three ids and a path"),
        ("5 3 4 a.JPG", "three ids and a path"),
        ("5 1 4 coffee_maker_final/a.JPG", "product 1 is in coffee_maker_final here and in bicycle_final before"),
        ("5 9 1 coffee_maker_final/a.JPG", "category 1 is in coffee_maker_final here and in bicycle_final before"),
    ],
)
def test_a_bad_line_is_named_with_its_number_and_the_rule(tmp_path, line, rule):
    sop(tmp_path)
    text(tmp_path / "Ebay_train.txt", [HEADER, *SOP_TRAIN, line])

    with pytest.raises(ValueError, match=rf"Ebay_train\.txt:6: '{line}'.*{rule}.*download"):
        SOP(tmp_path)


@pytest.mark.parametrize("lines", [[], list(SOP_TRAIN)])
def test_a_list_without_its_header_is_refused_so_that_no_image_is_taken_for_one(tmp_path, lines):
    sop(tmp_path)
    text(tmp_path / "Ebay_train.txt", lines)

    with pytest.raises(ValueError, match=r"Ebay_train\.txt:1: .*first line should be 'image_id"):
        SOP(tmp_path)


def test_an_archive_instead_of_text_is_refused(tmp_path):
    sop(tmp_path)
    (tmp_path / "Ebay_train.txt").write_bytes(b"\x1f\x8b\x08\xff\xfe")

    with pytest.raises(ValueError, match="not UTF-8 text.*unpack"):
        SOP(tmp_path)
