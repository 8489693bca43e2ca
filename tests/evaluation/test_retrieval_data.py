"""One type for what is ranked: made of arrays and files, restricted, matched, and after a head."""

import json
import logging

import numpy as np
import pytest

from suprank.evaluation import RetrievalData, evaluate
from suprank.evaluation.provenance import Provenance
from suprank.models import Head, HeadConfig

ROWS = np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)
LABELS = np.array([[0, 0], [0, 0], [1, 0], [1, 0], [2, 1], [2, 1]])


def arrays(**kwargs):
    return RetrievalData.from_arrays(ROWS, LABELS, levels=["species", "family"], **{"name": "birds", **kwargs})


def test_it_prints_one_useful_line():
    assert repr(arrays()) == "RetrievalData(birds: 6 queries × 4 rank each other; species and family)"
    one = RetrievalData.from_arrays(ROWS[:1], gallery=ROWS)
    assert repr(one) == "RetrievalData(embeddings: 1 query × 4 rank 6 items; no labels)"


def test_integers_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="labels have 5 rows and birds 6; give one row for each embedding"):
        RetrievalData.from_arrays(ROWS, LABELS[:5], name="birds")
    with pytest.raises(ValueError, match="there are 2 ids for 6 rows of birds; give one for each"):
        arrays(ids=["a", "b"])
    with pytest.raises(ValueError, match="embeddings have 4 dimensions and the gallery 3; embed both with one model"):
        RetrievalData.from_arrays(ROWS, LABELS, ROWS[:, :3], LABELS)
    with pytest.raises(ValueError, match="gallery_labels were given without labels"):
        RetrievalData.from_arrays(ROWS, None, ROWS, LABELS)
    with pytest.raises(ValueError, match="birds: the images have no labels, so nothing is relevant"):
        RetrievalData.from_arrays(ROWS, name="birds").require_labels()


def test_levels_are_chosen_in_any_order_and_the_classes_of_all_levels_stay():
    data = arrays().at_levels(["family"])
    assert (data.levels, data.queries.labels.tolist()) == (("family",), LABELS[:, 1:].tolist())
    assert data.classes["species"].tolist() == LABELS[:, 0].tolist()
    with pytest.raises(ValueError, match="birds has no level 'genus'; choose from species, family"):
        arrays().at_levels(["genus"])


def test_some_queries_rank_what_they_ranked_before():
    whole = evaluate(ROWS, LABELS, per_query=True, progress=False).per_query["H-AP"]
    for data in (arrays(), arrays(ids=[*"abcdef"])):
        some = data.take([4, 0])
        assert [some.self_rows(row).tolist() for row in (0, 1)] == [[4], [0]]
        sides = some.queries, some.items
        found = evaluate(
            *(values for side in sides for values in (side.embeddings, side.labels)),
            **{"ids": some.queries.ids, "gallery_ids": some.items.ids, "per_query": True, "progress": False},
        )
        assert found.per_query["H-AP"].tolist() == whole[[4, 0]].tolist()


def test_queries_are_matched_by_id_or_else_by_place():
    order = [3, 1, 5, 0, 2, 4]
    ids = np.array([*"abcdef"])
    other = RetrievalData.from_arrays(ROWS[order], LABELS[order] + 7, levels=["species", "family"], ids=ids[order])
    assert arrays(ids=ids).match(other).tolist() == np.argsort(order).tolist()
    assert arrays().match(arrays()).tolist() == [*range(6)]


@pytest.mark.parametrize(
    ("other", "complaint"),
    [
        ({"ids": [*"abcdex"]}, r"birds and others have different queries \(6 in birds; 'f' is in birds only\), so they cannot"),
        ({"gallery": ROWS[:5], "gallery_labels": LABELS[:5, 0]}, "birds ranks 6 items and others 5"),
        ({"levels": ["kind"]}, "species and family and others at kind, so there is nothing to compare"),
        ({"labels": [5, 5, 1, 1, 1, 2]}, "sort the test images into different classes at species"),
    ],
)
def test_other_queries_items_levels_and_classes_are_not_matched(other, complaint):
    given = {"labels": LABELS[:, 0], "levels": ["species"], "ids": [*"abcdef"], "name": "others", **other}
    with pytest.raises(ValueError, match=complaint):
        arrays(ids=[*"abcdef"]).match(RetrievalData.from_arrays(ROWS, **given))


def test_a_head_is_applied_to_both_sides_and_only_once():
    head = Head(HeadConfig(in_features=4, out_features=2))
    data = RetrievalData.from_arrays(ROWS, LABELS, ROWS[:3], LABELS[:3], name="birds").with_head(head)
    assert data.queries.embeddings.rows(slice(None)).numpy() == pytest.approx(head.transform(ROWS))
    assert data.items.embeddings.rows(slice(None)).numpy() == pytest.approx(head.transform(ROWS[:3]))
    assert (data.name, data.origin.head) == ("birds with head", head.fingerprint())
    with pytest.raises(ValueError, match="have width 2, but the head takes 4"):
        data.with_head(head)


@pytest.fixture
def files(tmp_path, monkeypatch):
    """x.npy with x.csv, y.npy, and a Parquet file that has both embeddings and labels."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    monkeypatch.chdir(tmp_path)
    np.save("x.npy", ROWS)
    names = [(("crow", "jay", "wren")[fine], ("Corvidae", "Wrens")[coarse]) for fine, coarse in LABELS]
    rows = "".join(f"{species},{family},{row}\n" for row, (species, family) in enumerate(names))
    (tmp_path / "x.csv").write_text(f"label_species,label_family,id\n{rows}")
    species, family = zip(*names, strict=True)
    pq.write_table(pa.table({"embedding": list(ROWS), "label_species": species, "label_family": family}), "x.parquet")
    np.save("y.npy", LABELS)
    return tmp_path


@pytest.mark.parametrize("places", [("x.npy", "x.csv"), ("x.parquet", "x.parquet"), ("x.npy", "y.npy")])
def test_files_of_any_kind_are_the_same_data(files, places):
    data = RetrievalData.from_files(*places)
    assert data.queries.embeddings.rows(slice(None)).tolist() == ROWS.tolist()
    assert data.queries.labels.tolist() == LABELS.tolist()
    names = {} if places[1] == "y.npy" else {"species": ("crow", "jay", "wren"), "family": ("Corvidae", "Wrens")}
    assert (data.names, data.digests.keys()) == (names, names.keys())


def test_names_and_ids_of_a_gallery_are_those_of_the_queries(files):
    np.save("g.npy", ROWS[:2])
    (files / "g.csv").write_text("label_species,label_family,id\nwren,Wrens,4\nrobin,Robins,9\n")
    data = RetrievalData.from_files("x.npy", "x.csv", "g.npy", "g.csv", id_column="id", levels=["species"])
    assert [data.names["species"][label] for label in data.items.labels[:, 0]] == ["wren", "robin"]
    assert data.self_rows(4).tolist() == [0]
    assert set(data.classes) == {"species", "family"}  # of the queries, also at the level that nobody asked for
    assert set(data.digests) == {"species", "gallery species"}


def test_a_head_of_another_model_is_refused_with_both_names(tmp_path, caplog):
    made_by = Provenance("resnet50", 1, 224, 256, fingerprint="a" * 64)
    head = Head(HeadConfig(in_features=4, out_features=2))
    head.training_record = {
        "source": {"embeddings": "clip-embeddings", "made_by": {**made_by.asdict(), "fingerprint": "b" * 64}}
    }
    (tmp_path / "test").mkdir()
    np.save(tmp_path / "test/embeddings.npy", ROWS)
    np.save(tmp_path / "y.npy", LABELS)
    record = {"transform": {}, **made_by.asdict()}
    (tmp_path / "test/run.json").write_text(json.dumps(record))
    data = RetrievalData.from_files(tmp_path / "test/embeddings.npy", tmp_path / "y.npy")
    with pytest.raises(ValueError, match=r"trained on \(clip-embeddings\) and .*embeddings.npy.* model b+ against a+;"):
        data.with_head(head)
    head.training_record["source"]["made_by"]["fingerprint"] = None
    with caplog.at_level(logging.INFO):
        assert data.with_head(head).origin.made_by.head == head.fingerprint()
    assert "is not checked: no fingerprint is recorded" in caplog.text
