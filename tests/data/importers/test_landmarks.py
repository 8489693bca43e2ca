"""GLDv2 and H-GLDv2: two number spaces of landmarks, queries with a first image, labels that were never reviewed."""

from pathlib import Path

import numpy as np
import pyarrow.compute as pc
import pytest

from suprank.data.importers.landmark_files import commons_name, read_landmark_labels
from suprank.data.importers.landmarks import GLDV2, HGLDV2, read_gldv2, read_hgldv2
from tests.data import miniatures_landmarks as miniature
from tests.data.miniatures_landmarks import COMMONS, image_id, write

REAL = Path(__file__).parents[4] / "shared" / "data" / "hgldv2_index_labels.csv"


@pytest.fixture
def root(tmp_path):
    return miniature.gldv2(tmp_path)


@pytest.fixture
def hierarchical(root):
    miniature.hierarchical(root)
    return root


def rows(manifest, *columns):
    return [tuple(row[column] for column in columns) for row in manifest.table.select(columns).to_pylist()]


def path_of(folder, number):
    name = image_id(number)
    return f"{folder}/{name[0]}/{name[1]}/{name[2]}/{name}.jpg"


# GLDv2


def test_every_image_of_gldv2_has_its_split_and_its_landmark(root):
    manifest = read_gldv2(root)[""]
    assert manifest.levels == ("landmark",)
    assert rows(manifest, "path", "split", "label_landmark", "id") == [
        *((path_of("train", number), "train", "train 7", image_id(number)) for number in (1, 2, 3)),
        (path_of("train", 4), "train", "train 12", image_id(4)),
        *((path_of("train", number), "train", "train 30", image_id(number)) for number in (5, 6)),
        *((path_of("index", number), "gallery", "index 7", image_id(number)) for number in (11, 12)),
        (path_of("index", 13), "gallery", "index 8", image_id(13)),
        (path_of("index", 14), "gallery", "index 40", image_id(14)),
        (path_of("test", 21), "query", "index 8", image_id(21)),  # the landmark of the first image listed
        (path_of("test", 23), "query", "index 7", image_id(23)),
        (path_of("test", 24), "query", "index 40", image_id(24)),
    ]


def test_queries_keep_their_usage_and_the_images_listed_for_them(root):
    manifest = read_gldv2(root)[""]
    assert rows(manifest.split("query"), "usage", "positives") == [
        ("Public", f"{image_id(13)} {image_id(11)}"),
        ("Private", f"{image_id(12)} {image_id(11)}"),
        ("Private", image_id(14)),
    ]
    assert set(rows(manifest.split("train", "gallery"), "usage", "positives")) == {(None, None)}


def test_landmarks_are_called_as_on_commons_where_that_is_known(root):
    miniature.categories(root)
    manifest = read_gldv2(root)[""]
    assert manifest.names["landmark"] == (
        "Happurger See (index 7)",
        "Lady's Well (Oxford) (train 12)",
        "Sparkassen-Arena, Göttingen (train 7)",
        "St. Mary’s, Ely (index 8)",
        "index 40",
        "train 30",
    )
    assert dict(
        zip(*(manifest.split("gallery").table[name].to_pylist() for name in ("id", "label_landmark")), strict=True)
    ) == {
        image_id(11): "Happurger See (index 7)",
        image_id(12): "Happurger See (index 7)",
        image_id(13): "St. Mary’s, Ely (index 8)",
        image_id(14): "index 40",
    }


@pytest.mark.parametrize(
    ("url", "name"),
    [
        (f"{COMMONS}Sparkassen-Arena,_G%C3%B6ttingen", "Sparkassen-Arena, Göttingen"),
        (f"{COMMONS}A_Category:_of_its_own", "of its own"),
        ("Just a name", "Just a name"),
        (COMMONS, COMMONS),
    ],
)
def test_names_of_categories(url, name):
    assert commons_name(url) == name


def test_images_may_lie_under_images_as_in_the_authors_code(root):
    (root / "images" / "train").mkdir(parents=True)
    (root / "index").mkdir()
    folders = {
        split: {path.split("/0")[0].split("/")[0] for path in read_gldv2(root)[""].split(split).paths.to_pylist()}
        for split in ("train", "gallery", "query")
    }
    assert folders == {"train": {"images"}, "gallery": {"index"}, "query": {"test"}}


def test_packed_archives_are_said_to_want_unpacking(root, caplog):
    write(root / "index" / "images_000.tar", "")
    read_gldv2(root)
    assert [record.message for record in caplog.records] == [
        f"{root}/index has packed TAR archives; images are looked for beside them: unpack each with tar -xf"
    ]


def test_files_may_lie_in_the_root_with_crlf_and_a_bom(root):
    for path in [*root.glob("*/*.csv")]:
        (root / path.name).write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", b"\r\n"))
    expected = read_gldv2(root)[""]
    for path in [*root.glob("*/*.csv")]:
        path.unlink()
    assert read_gldv2(root)[""].table == expected.table


def test_the_report_says_what_is_published_and_what_is_missing(root):
    imported = GLDV2(root)
    assert imported.sentences == (
        "train: 6 images, 3 landmark; published: 1,580,470 images, 81,313 landmark",
        "query: 3 images, 3 landmark",
        "gallery: 4 images, 3 landmark; published: 761,757 images",
        f"13 of 13 images do not exist under {root} ({path_of('train', 1)}, {path_of('train', 2)}, {path_of('train', 3)}, ...)",
    )


@pytest.mark.parametrize("name", ["train_clean.csv", "index_image_to_landmark.csv", "retrieval_solution_v2.1.csv"])
def test_a_missing_file_is_named_with_the_layout(root, name):
    next(root.glob(f"*/{name}")).unlink()
    with pytest.raises(FileNotFoundError, match=rf"{name} does not exist; gldv2 expects under .*(\n.*)*the unpacked TARs"):
        read_gldv2(root)


@pytest.mark.parametrize(
    ("file", "old", "new", "complaint"),
    [
        (
            "metadata/train_clean.csv",
            "\n12,",
            "\ntwelve,",
            "train_clean.csv:3: landmark_id is 'twelve', but must be a whole number",
        ),
        ("metadata/train_clean.csv", "\n12,", "\n7,", r"train_clean.csv:3: landmark 7 already has a line, .*train_clean.csv:2"),
        ("metadata/train_clean.csv", "\n12,", "\n12,1,", "train_clean.csv:3: .* has 3 cells, but there are 2 columns"),
        ("metadata/train_clean.csv", image_id(5), "../../etc", "train_clean.csv:4: '../../etc' is not an image id"),
        ("metadata/train_clean.csv", image_id(4), "", "train_clean.csv:3: the landmark has no images"),
        ("metadata/train_clean.csv", "landmark_id", "landmark", "no column 'landmark_id'; did you mean 'landmark'"),
        ("metadata/index_image_to_landmark.csv", image_id(13), "x", "landmark.csv:4: 'x' is not an image id"),
        ("metadata/index_image_to_landmark.csv", ",8\n", ",\n\n", "landmark.csv:4: landmark_id is '', but must"),
        (
            "metadata/index_image_to_landmark.csv",
            image_id(14),
            image_id(99),
            f"v2.1.csv:5: {image_id(14)} is not in index_image",
        ),
        ("ground_truth/retrieval_solution_v2.1.csv", "Public", "public", "v2.1.csv:2: Usage is 'public', which must be one of"),
        ("ground_truth/retrieval_solution_v2.1.csv", "None,Ignored", ",Public", "v2.1.csv:3: there are no index images"),
        ("ground_truth/retrieval_solution_v2.1.csv", f"{image_id(23)},", '"', "v2.1.csv:4: a quote is opened"),
    ],
)
def test_a_malformed_line_is_named(root, file, old, new, complaint):
    text = (root / file).read_text()
    assert old in text
    write(root / file, text.replace(old, new, 1))
    with pytest.raises(ValueError, match=complaint):
        read_gldv2(root)


def test_a_solution_in_which_nothing_is_asked_is_refused(root):
    write(root / "ground_truth" / "retrieval_solution_v2.1.csv", f"id,images,Usage\n{image_id(21)},None,Ignored\n")
    with pytest.raises(ValueError, match="has no query: every line says None or Ignored"):
        read_gldv2(root)


# H-GLDv2


def test_landmarks_without_reviewed_labels_are_left_out_with_their_images_and_queries(hierarchical, caplog):
    manifest = read_hgldv2(hierarchical)[""]
    assert manifest.levels == ("landmark", "supercategory", "kind")
    assert rows(manifest, "id", "split", "label_landmark", "label_supercategory", "label_kind") == [
        *((image_id(n), "train", "Sparkassen-Arena, Göttingen (train 7)", "sports venue", "human-made") for n in (1, 2, 3)),
        (image_id(4), "train", "Baltic (train 12)", "ocean area", "natural"),
        *((image_id(n), "gallery", "Happurger See (index 7)", "lake", "natural") for n in (11, 12)),
        (image_id(13), "gallery", "Ely (index 8)", "church", "human-made"),
        (image_id(21), "query", "Ely (index 8)", "church", "human-made"),
        (image_id(23), "query", "Happurger See (index 7)", "lake", "natural"),
    ]
    assert [record.message for record in caplog.records] == [
        "train: 1 of 3 landmarks have no reviewed label; left out with their 2 of 6 images",
        "gallery: 1 of 3 landmarks have no reviewed label; left out with their 1 of 4 images",
        "query: 1 of 3 landmarks have no reviewed label; left out with their 1 of 3 images",
    ]
    assert rows(manifest.split("query"), "usage") == [("Public",), ("Private",)]
    assert manifest.two_parents() == []
    assert manifest.to_tree().path(manifest.names["landmark"].index("Ely (index 8)")) == (
        "Ely (index 8)",
        "church",
        "human-made",
    )


def test_the_authors_private_files_give_the_same_labels(root, tmp_path_factory):
    published = miniature.gldv2(tmp_path_factory.mktemp("published"))
    miniature.hierarchical(published)
    for one in (root, published):
        miniature.categories(one)
    miniature.clusters(root)
    assert read_hgldv2(root)[""].table == read_hgldv2(published)[""].table


def test_without_names_landmarks_are_numbers(root):
    miniature.clusters(root)
    assert read_hgldv2(root)[""].names["landmark"] == ("index 7", "index 8", "train 12", "train 7")


def test_when_every_landmark_is_labeled_nothing_is_said(root, caplog):
    miniature.clusters(root)
    with (root / "train_label_to_subcategory_with_clusters.csv").open("w") as file:
        file.write("landmark_id,cluster,overall_cluster\n" + "".join(f"{n},lake,natural\n" for n in (7, 12, 30)))
    with (root / "index_label_to_subcategory_with_clusters.csv").open("w") as file:
        file.write("landmark_id,cluster,overall_cluster\n" + "".join(f"{n},lake,natural\n" for n in (40, 8, 7)))
    assert len(read_hgldv2(root)[""]) == 13
    assert caplog.records == []


def test_the_hierarchical_report_compares_levels(hierarchical):
    first, *_ = HGLDV2(hierarchical).sentences
    assert first == (
        "train: 4 images, 2 landmark, 2 supercategory, 2 kind; published: 970,981 images, 46,593 landmark, 78 supercategory"
    )


def test_missing_labels_are_named(root):
    with pytest.raises(FileNotFoundError, match="train_label_to_hierarchical.csv does not exist; hgldv2 expects under"):
        read_hgldv2(root)


def test_labels_of_other_landmarks_are_refused(hierarchical):
    file = next(hierarchical.glob("*/train_label_to_hierarchical.csv"))
    write(file, file.read_text().replace("\n7,", "\n100007,").replace("\n12,", "\n100012,"))
    with pytest.raises(ValueError, match="no train image of H-GLDv2 has a landmark with reviewed labels"):
        read_hgldv2(hierarchical)


def test_a_label_file_with_other_columns_is_refused(tmp_path):
    path = write(tmp_path / "labels.csv", "landmark_id,label\n7,lake\n")
    with pytest.raises(
        ValueError, match="has the columns landmark_id, label, but the labels are in hierarchical_label and nat"
    ):
        read_landmark_labels(path)


def test_rows_with_half_a_label_have_none(tmp_path):
    path = write(
        tmp_path / "labels.csv", "landmark_id,cluster,overall_cluster\n9,lake,natural\n7,lake, \n8,,natural\n1,sea,natural\n"
    )
    found = read_landmark_labels(path)
    assert (found.landmarks.tolist(), found.supercategory.to_pylist()) == ([1, 9], ["sea", "lake"])


@pytest.mark.skipif(not REAL.is_file(), reason="needs ../shared/data/hgldv2_index_labels.csv, the real labels of the index")
def test_the_real_labels_of_the_index():
    found = read_landmark_labels(REAL)
    assert len(found) == 55_529 == HGLDV2.published["gallery"]["landmark"]
    assert np.all(np.diff(found.landmarks) > 0)
    labels = found.supercategory.to_pylist()
    assert len(set(labels)) == 78 == HGLDV2.published["gallery"]["supercategory"]
    assert labels.count("ocean area") == 249  # the file says "ocean area "
    assert {row["values"]: row["counts"] for row in pc.value_counts(found.kind).to_pylist()} == {
        "human-made": 42_199,
        "natural": 13_330,
    }
    assert len(set(zip(labels, found.kind.to_pylist(), strict=True))) == 78  # every label under one kind
