"""SfM-120k: names and 3D models in a Matlab file of either kind, photographs three folders deep by their last letters."""

import numpy as np
import pytest
from scipy.io import savemat

from suprank.data.importers.sfm import FILE, SFM120K, read
from tests.data import miniatures_landmarks as miniature


def test_every_photograph_has_its_model_and_is_for_training(tmp_path):
    manifest = read(miniature.sfm(tmp_path))[""]
    assert manifest.levels == ("cluster",)
    assert manifest.splits == {"train": 3}
    assert manifest.table["path"].to_pylist() == [
        "ims/2b/1a/0f/0f3c3b9d00fd2a1b5e8d6a7c9e0f1a2b",
        "ims/9b/84/75/c4ca4238a0b923820dcc509a6f75849b",
        "ims/f3/ba/a7/eccbc87e4b5ce2fe28308fd9f2a7baf3",
    ]
    assert manifest.table["label_cluster"].to_pylist() == ["cluster 17", "cluster 3", "cluster 17"]
    assert manifest.table["id"].to_pylist() == list(miniature.SFM_NAMES)
    assert manifest.to_tree().images[0].tolist() == [2, 1]


def test_a_file_of_matlab_7_3_says_the_same(tmp_path):
    expected = read(miniature.sfm(tmp_path / "7"))[""]
    assert read(miniature.sfm_of_matlab_7_3(tmp_path / "7.3"))[""].table == expected.table


def test_a_matrix_of_letters_says_the_same(tmp_path):
    expected = read(miniature.sfm(tmp_path / "cells"))[""]
    savemat(tmp_path / FILE, {"cids": np.array(miniature.SFM_NAMES), "cluster": np.array(miniature.SFM_CLUSTERS)[:, None]})
    assert read(tmp_path)[""].table == expected.table


def test_the_report_counts(tmp_path):
    counted, missing = SFM120K(miniature.sfm(tmp_path)).sentences
    assert counted == "train: 3 images, 2 cluster"
    assert missing.startswith(f"3 of 3 images do not exist under {tmp_path} (ims/2b/1a/0f/")


def test_a_missing_list_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=f"{FILE} does not exist; sfm120k expects under"):
        read(tmp_path)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ({"cids": np.array(["abcdef"])}, "has no 'cluster': it has cids"),
        ({"names": 1}, "has no 'cids': it has neither"),
        ({"cids": np.array(["abcdef", "abcdeg"]), "cluster": [1]}, "has 2 cids and 1 clusters"),
        ({"cids": np.array(["abcdef", "../..f"]), "cluster": [1, 2]}, r"cids\{2\} is '../..f', but a name has 6"),
        ({"cids": np.array(["abcdef", "abc"]), "cluster": [1, 2]}, r"cids\{2\} is 'abc', but a name has 6"),
        ({"cids": np.array(["abcdef"]), "cluster": [1.5]}, "must be whole numbers"),
    ],
)
def test_a_list_of_another_kind_is_refused(tmp_path, content, complaint):
    savemat(tmp_path / FILE, content)
    with pytest.raises(ValueError, match=complaint):
        read(tmp_path)


@pytest.mark.parametrize("cut", [0, 60, 300])
@pytest.mark.parametrize("make", [miniature.sfm, miniature.sfm_of_matlab_7_3])
def test_a_file_that_is_cut_is_refused(tmp_path, make, cut):
    path = make(tmp_path) / FILE
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(ValueError, match=f"{FILE} is not a readable Matlab file"):
        read(tmp_path)
