"""Revisited Oxford and Paris: queries with their boxes, gallery in the order that the judgments count in, and no labels."""

import datetime
import json
import pickle

import numpy as np
import pytest

from suprank.data.importers.revisited import ROXFORD5K, RPARIS6K
from suprank.evaluation.revisited import read_ground_truth
from tests.data import miniatures_landmarks as miniature


def rows(manifest):
    return [tuple(row.values()) for row in manifest.table.select(["path", "split", "id", "box"]).to_pylist()]


@pytest.mark.parametrize("importer", [ROXFORD5K, RPARIS6K], ids=lambda importer: importer.name)
def test_queries_come_with_their_boxes_and_the_gallery_in_its_order(tmp_path, importer):
    manifest = importer.read(miniature.revisited(tmp_path, importer.name))[""]
    assert manifest.levels == ()
    assert manifest.splits == {"query": 2, "gallery": 3}
    assert rows(manifest) == [
        ("jpg/all_souls_000006.jpg", "query", "all_souls_000006", pytest.approx([136.5, 34.1, 648.5, 955.7])),
        ("jpg/magdalen_000058.jpg", "query", "magdalen_000058", pytest.approx([53.1, 2.5, 376.4, 643.6])),
        ("jpg/all_souls_000013.jpg", "gallery", "all_souls_000013", None),
        ("jpg/oxford_002985.jpg", "gallery", "oxford_002985", None),
        ("jpg/radcliffe_camera_000519.jpg", "gallery", "radcliffe_camera_000519", None),
    ]


def test_names_and_boxes_are_those_that_evaluation_reads(tmp_path):
    manifest = ROXFORD5K.read(miniature.revisited(tmp_path, "roxford5k"))[""]
    truth = read_ground_truth(tmp_path / "gnd_roxford5k.pkl")
    assert tuple(manifest.split("gallery").table["id"].to_pylist()) == truth.items
    assert tuple(manifest.split("query").table["id"].to_pylist()) == truth.queries
    assert np.array(manifest.split("query").table["box"].to_pylist()) == pytest.approx(truth.boxes)


def test_json_does_as_well(tmp_path):
    content = miniature.ground_truth()
    plain = json.dumps(content, default=lambda array: array.tolist())
    (tmp_path / "gnd_rparis6k.json").write_text(plain)
    expected = RPARIS6K.read(miniature.revisited(tmp_path / "pickle", "rparis6k"))[""]
    assert RPARIS6K.read(tmp_path)[""].table == expected.table


def test_a_query_without_a_box_is_whole(tmp_path):
    content = miniature.ground_truth()
    del content["gnd"][0]["bbx"]
    (tmp_path / "gnd_roxford5k.pkl").write_bytes(pickle.dumps(content))
    assert [box is None for *_, box in rows(ROXFORD5K.read(tmp_path)[""])] == [True, False, True, True, True]


def test_the_report_compares_with_the_published_counts(tmp_path):
    imported = ROXFORD5K(miniature.revisited(tmp_path, "roxford5k"))
    assert imported.sentences[:2] == ("query: 2 images; published: 70 images", "gallery: 3 images; published: 4,993 images")
    assert imported.sentences[2].startswith(f"5 of 5 images do not exist under {tmp_path}")


def test_a_missing_ground_truth_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="gnd_rparis6k.pkl does not exist; rparis6k expects under"):
        RPARIS6K.read(tmp_path)


def test_a_pickle_that_would_run_code_is_refused(tmp_path):
    content = miniature.ground_truth() | {"more": datetime.date(2018, 6, 1)}
    (tmp_path / "gnd_roxford5k.pkl").write_bytes(pickle.dumps(content))
    with pytest.raises(ValueError, match="gnd_roxford5k.pkl was not loaded: it asks for datetime.date"):
        ROXFORD5K.read(tmp_path)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"imlist": "abc"}, "imlist must be a list of image names"),
        ({"imlist": []}, "imlist must be a list of image names"),
        ({"imlist": ["a", "a"]}, "imlist has 'a' twice"),
        ({"qimlist": ["q"]}, "gnd has 2 entries and qimlist has 1"),
        ({"gnd": {}}, "gnd must be a list with a dictionary for each query"),
        ({"qimlist": ["q"], "gnd": [{"bbx": [1, 2, 3]}]}, "bbx of 'q' has 3 numbers"),
        ({"qimlist": ["../q"], "gnd": [{}]}, "leads out of the root"),
        ({"qimlist": ["q"], "gnd": [{"bbx": [5, 2, 3, 4]}]}, "box that is not x1 < x2"),
    ],
)
def test_what_is_no_ground_truth_is_refused(tmp_path, change, complaint):
    (tmp_path / "gnd_roxford5k.pkl").write_bytes(pickle.dumps(miniature.ground_truth() | change))
    with pytest.raises(ValueError, match=complaint):
        ROXFORD5K.read(tmp_path)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [("{\n", "gnd_roxford5k.json:2: this is not JSON"), ("[]", "holds list, but"), ('{"gnd": []}', r"holds \['gnd'\], but")],
)
def test_json_that_is_no_ground_truth_is_refused(tmp_path, text, complaint):
    (tmp_path / "gnd_roxford5k.json").write_text(text)
    with pytest.raises(ValueError, match=complaint):
        ROXFORD5K.read(tmp_path)
