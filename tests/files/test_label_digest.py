"""Digests of labels: the same for the same items and names in any order, and for no others."""

import unicodedata

from suprank.files.label_digest import label_digests

IDS, NAMES = ["a", "b", "c"], ["jay", "Möwe", None]


def digest(names, ids=IDS):
    return label_digests(ids, {"species": names})["species"]


def test_the_order_of_rows_and_the_spelling_of_accents_do_not_matter():
    shuffled = digest([" Mo\u0308we ", None, "jay"], ["b", "c", "a"])
    assert unicodedata.normalize("NFC", "Mo\u0308we") == "Möwe"
    assert digest(NAMES) == shuffled


def test_another_name_another_id_and_another_place_do():
    others = [
        digest(["jay", "Möwe", "jay"]),
        digest(NAMES, ["a", "b", "d"]),
        digest(["Möwe", "jay", None]),
        digest(NAMES, None),
    ]
    assert len({digest(NAMES), *others}) == 5
    assert digest(NAMES, None) != digest(["Möwe", "jay", None], None), "without ids, by position"


def test_a_set_of_names_has_no_order():
    assert digest([["dog", "person"], ["cat"], []]) == digest([("person", "dog"), "cat", None])
    assert digest([["dog", "person"], ["cat"], []]) != digest([["dog"], ["cat"], ["person"]])
