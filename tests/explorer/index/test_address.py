"""From Python what the commands do: an index of a folder of embeddings, and hits as records."""

import numpy as np
import pytest

from suprank.explorer.index import build_index, read_embeddings, search_records
from tests.explorer import runs


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("embedded")
    return runs.embeddings(root / "e", runs.collection(root / "data", splits=("query", "gallery", "gallery")))


def test_an_index_is_built_of_a_folder_with_its_labels(folder, tmp_path):
    index = build_index(tmp_path / "i", folder)
    assert (len(index), index.levels) == (16, ("class", "group"))
    assert len(build_index(tmp_path / "j", folder, part="query")) == 8
    queries = read_embeddings(folder, "query").embeddings
    records = list(search_records(index, queries, 2, {"group": ["plain"]}))
    assert [(record["query"], record["rank"]) for record in records] == [(row, rank) for row in range(8) for rank in (1, 2)]
    assert {record["labels"]["group"] for record in records} == {"plain"}
    first = next(search_records(index, queries[:1], 1, names=["mine"]))
    assert list(first) == ["query", "rank", "id", "path", "score", "labels"]
    assert first["query"] == "mine"
    rows = read_embeddings(folder).embeddings
    unit, own = (one / np.linalg.norm(one, axis=1, keepdims=True) for one in (rows, queries[:1]))
    assert (first["id"], first["score"]) == (
        int((unit @ own[0]).argmax()),
        pytest.approx(float((unit @ own[0]).max()), abs=1e-5),
    )


def test_what_is_not_indexed_is_noted_and_what_does_not_fit_refused(folder, tmp_path):
    assert read_embeddings(folder).note == f"using gallery of {folder}; query is not indexed"
    assert read_embeddings(folder / "query").note == f"using query of {folder}; gallery is not indexed"
    with pytest.raises(FileNotFoundError, match="there is no .*nothing; give a folder"):
        read_embeddings(tmp_path / "nothing")
    with pytest.raises(ValueError, match="with its own manifest; leave the manifest out"):
        read_embeddings(folder, manifest=tmp_path / "m.parquet")
