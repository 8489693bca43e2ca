"""CUB-200-2011 in small, and its tree of 200 birds beside the data of ../shared."""

import csv
import io
import zipfile
from collections import defaultdict
from pathlib import Path

import pytest

from suprank.data.importers.base import split_counts
from suprank.data.importers.cub import CUB, FAMILY_AND_ORDER, ORDERS
from tests.data.miniatures import CUB as LISTED
from tests.data.miniatures import cub, text

SHARED = Path(__file__).parents[3] / "../shared/data/cub200_s128.zip"
KITTIWAKE = 84


@pytest.fixture(scope="module")
def shared_rows():
    if not SHARED.is_file():
        pytest.skip(f"{SHARED} is not there")
    with zipfile.ZipFile(SHARED) as archive, archive.open("manifest.csv") as file:
        return list(csv.DictReader(io.TextIOWrapper(file, "utf-8")))


@pytest.mark.parametrize("listed", [True, False])
def test_species_families_orders_and_splits_come_from_the_class_folder(tmp_path, listed):
    found = CUB(cub(tmp_path, listed=listed)).manifests[""]

    assert found.levels == ("species", "family", "order")
    assert found.splits == {"train": 3, "test": 2}
    assert sorted(found.paths.to_pylist()) == sorted(f"images/{path}" for path in LISTED)
    assert found.table.slice(0, 1).select(["label_species", "label_family", "label_order"]).to_pylist() == [
        {"label_species": "Black footed Albatross", "label_family": "Diomedeidae", "label_order": "Procellariiformes"}
    ]
    assert found.two_parents() == []
    assert found.names["family"] == ("Diomedeidae", "Laridae", "Parulidae")  # kittiwake and tern are both gulls


def test_a_list_notices_absent_images_which_folders_alone_cannot(tmp_path):
    cub(tmp_path)
    (tmp_path / "images" / LISTED[0]).unlink()

    assert any("1 of 5 images do not exist under" in sentence for sentence in CUB(tmp_path).sentences)
    (tmp_path / "images.txt").unlink()
    assert len(CUB(tmp_path).manifests[""]) == 4


def test_a_root_without_images_says_what_is_expected(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"neither .*images\.txt nor .*images exists; cub expects"):
        CUB(tmp_path)


@pytest.mark.parametrize(
    ("line", "rule"),
    [
        ("6", "an id and a path"),
        ("6 a.jpg", "an id and a path"),
        ("6 Artic_Tern/a.jpg", "number from 001 to 200"),
        ("6 201.Dodo/a.jpg", "number from 001 to 200"),
    ],
)
def test_a_bad_line_is_named_with_its_number_and_the_rule(tmp_path, line, rule):
    text(cub(tmp_path) / "images.txt", [f"1 {LISTED[0]}", "", line])

    with pytest.raises(ValueError, match=rf"images\.txt:3: '{line}'.*{rule}"):
        CUB(tmp_path)


def test_a_folder_that_is_no_class_is_refused(tmp_path):
    cub(tmp_path, listed=False)
    (tmp_path / "images/Artic_Tern").mkdir()
    (tmp_path / "images/Artic_Tern/a.jpg").write_bytes(b"")

    with pytest.raises(ValueError, match=r"Artic_Tern/a\.jpg.*should be called like"):
        CUB(tmp_path)


def test_every_class_stands_in_one_family_and_order():
    numbers = sum(len(families) for families in ORDERS.values())

    assert sorted(FAMILY_AND_ORDER) == list(range(1, 201))
    assert (numbers, len({family for family, _ in FAMILY_AND_ORDER.values()}), len(ORDERS)) == (37, 37, 13)


def test_the_tree_is_that_of_the_shared_manifest(shared_rows):
    for row in shared_rows:
        assert FAMILY_AND_ORDER[int(row["class_id"])] == (row["label_family"], row["label_order"])


def test_the_authors_tree_differs_in_the_kittiwake_alone(shared_rows):
    ours, theirs = defaultdict(set), defaultdict(set)
    for row in shared_rows:
        number = int(row["class_id"])
        if number != KITTIWAKE:
            ours[FAMILY_AND_ORDER[number]].add(number)
            theirs[row["suprank_family"], row["suprank_order"]].add(number)
    kittiwake = next(row for row in shared_rows if int(row["class_id"]) == KITTIWAKE)
    same_order = {row["label_order"] for row in shared_rows if row["suprank_order"] == kittiwake["suprank_order"]}

    assert sorted(map(sorted, ours.values())) == sorted(map(sorted, theirs.values()))
    assert (kittiwake["suprank_family"], kittiwake["suprank_order"]) not in theirs
    assert same_order == {"Charadriiformes", "Coraciiformes"}  # with the kingfishers, though it is a gull


def test_the_real_list_gives_the_published_counts(shared_rows, tmp_path):
    paths = [row["path"].removeprefix("images/").replace(".webp", ".jpg") for row in shared_rows]
    text(tmp_path / "images.txt", [f"{number} {path}" for number, path in enumerate(paths, 1)])

    assert split_counts(CUB(tmp_path).manifests[""]) == CUB.published
