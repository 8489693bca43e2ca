import re
import zipfile

import numpy as np
import pytest

from suprank.hierarchy.errors import MalformedError
from suprank.hierarchy.precomputed import PrecomputedVectors

ROWS = np.arange(6, dtype=np.float32).reshape(3, 2)


def file_of(folder, **arrays):
    np.savez(folder / "v.npz", **arrays)
    return folder / "v.npz"


def test_rows_are_found_by_key_then_text_then_normalized_text(tmp_path):
    given = PrecomputedVectors(file_of(tmp_path, labels=np.array(["Q1", "Salt  Lake", "ocean area "]), embeddings=ROWS))
    found = given.lookup([("ocean area", "ocean area "), ("Q1", "lake"), ("salt lake", "salt lake")])
    assert found.tolist() == ROWS[[2, 0, 1]].tolist()


def test_labels_may_be_bytes_and_rows_of_any_number_type(tmp_path):
    file = file_of(tmp_path, labels=np.array(["Zürich".encode()]), embeddings=np.ones((1, 2), np.float16))
    assert PrecomputedVectors(file).lookup([("zürich", "Zürich")]).tolist() == [[1, 1]]


def test_missing_labels_are_listed(tmp_path):
    given = PrecomputedVectors(file_of(tmp_path, labels=np.array(["a"]), embeddings=ROWS[:1]))
    with pytest.raises(MalformedError, match="v.npz lacks 2 of 3 labels: 'B', 'c'; make"):
        given.lookup([("a", "a"), ("b", "B"), ("c", "c")])
    with pytest.raises(MalformedError, match="lacks 30 of 30 labels: .* and 10 more;"):
        given.lookup([(f"x{n}", f"x{n}") for n in range(30)])


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({"labels": np.array(["a"])}, "no array embeddings, but labels"),
        ({"labels": np.array(["a"]), "embeddings": ROWS}, "1 labels and 3 rows"),
        ({"labels": np.arange(3), "embeddings": ROWS}, "labels is int64 (3,); expected strings"),
        ({"labels": np.array(["a", "b", "c"]), "embeddings": ROWS[0]}, "embeddings is float32 (2,)"),
        (
            {"labels": np.array(["a", "b", "c"]), "embeddings": np.full((3, 2), np.nan)},
            "row 0 ('a') is not finite, nor are 2 more rows",
        ),
        ({"labels": np.array(["a", "b", "a"]), "embeddings": ROWS}, "has 'a' twice, rows 0 and 2"),
        ({"labels": np.array(["a", None, "c"], object), "embeddings": ROWS}, "holds Python objects"),
    ],
)
def test_what_is_wrong_with_a_file_is_said(tmp_path, arrays, said):
    with pytest.raises(MalformedError, match=re.escape(said)):
        PrecomputedVectors(file_of(tmp_path, **arrays))


def test_a_label_twice_with_one_vector_is_no_contradiction(tmp_path):
    given = PrecomputedVectors(file_of(tmp_path, labels=np.array(["a", "a"]), embeddings=ROWS[[1, 1]]))
    assert given.lookup([("a", "a")]).tolist() == [[2, 3]]


def test_files_that_are_none_are_refused(tmp_path):
    np.save(tmp_path / "v.npy", ROWS)
    for content in (b"labels", b"", (tmp_path / "v.npy").read_bytes()):
        (tmp_path / "v.npz").write_bytes(content)
        with pytest.raises(MalformedError, match="is not a readable .npz archive"):
            PrecomputedVectors(tmp_path / "v.npz")
    with zipfile.ZipFile(tmp_path / "v.npz", "w") as archive:
        archive.writestr("labels.txt", "a")
    with pytest.raises(MalformedError, match="no array embeddings and no labels"):
        PrecomputedVectors(tmp_path / "v.npz")
    with pytest.raises(FileNotFoundError, match="there is no file"):
        PrecomputedVectors(tmp_path / "w.npz")


def test_the_fingerprint_goes_by_content_and_keeps_what_the_file_says(tmp_path):
    labels = np.array(["a", "b", "c"])
    first = PrecomputedVectors(file_of(tmp_path, labels=labels, embeddings=ROWS, fingerprint="ViT-L-14")).fingerprint()
    again = PrecomputedVectors(file_of(tmp_path, labels=labels, embeddings=ROWS, fingerprint='{"model": 1}')).fingerprint()
    other = PrecomputedVectors(file_of(tmp_path, labels=labels, embeddings=ROWS + 1)).fingerprint()
    renamed = PrecomputedVectors(file_of(tmp_path, labels=labels[::-1], embeddings=ROWS)).fingerprint()
    assert [first["made_by"], again["made_by"], other["made_by"]] == ["ViT-L-14", {"model": 1}, None]
    assert first["sha256"] == again["sha256"]
    assert len({first["sha256"], other["sha256"], renamed["sha256"]}) == 3
