import errno

import numpy as np
import pytest

from suprank.hierarchy import embedding as module
from suprank.hierarchy.clustering import cluster_labels
from suprank.hierarchy.embedding import LabelEmbeddings, embed_labels, read_embedding
from suprank.hierarchy.errors import MalformedError
from suprank.hierarchy.project import Project
from suprank.hierarchy.recipe import read_recipe
from tests.hierarchy.labeled import PLACES, labeled, relabel


@pytest.fixture
def project(tmp_path):
    return labeled(tmp_path / "project")


def row_counts(project):
    with project.snapshot() as db:
        return [db.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in ("embedding", "step")]


def vectors_file(tmp_path, texts, rows, name="v.npz"):
    np.savez(tmp_path / name, labels=np.array(texts), embeddings=np.array(rows))
    return f"precomputed:{tmp_path / name}"


def test_every_active_label_gets_a_vector_of_length_1_and_the_step_is_recorded(project):
    outcome = embed_labels(project)
    assert (outcome.labels, outcome.without_signal, outcome.fresh) == (10, 0, True)
    embedded = read_embedding(project)
    assert embedded.labels.tolist() == list(range(1, 11))
    assert embedded.vectors.dtype == np.float32
    assert np.linalg.norm(embedded.vectors, axis=1) == pytest.approx(1)
    step = project.steps()["embed"]
    assert (step.settings["encoder"], step.settings["prompt"], step.stale) == ("tfidf", None, False)
    assert step.result["digest"] == outcome.fingerprint
    assert step.inputs == project.steps()["new"].result["digest"]
    lake, salt, church = embedded.rows([7, 8, 1])
    assert lake @ salt > 0.5 > lake @ church


def test_what_the_recipe_strips_is_not_encoded(tmp_path):
    project = labeled(tmp_path / "p", ["church (1172–1954)", "church (1900–2000)", "lake"])
    embed_labels(project)
    first, second, _ = read_embedding(project).vectors
    assert first.tolist() == second.tolist()


def test_the_same_encoder_on_the_same_labels_does_nothing(project):
    first = embed_labels(project)
    written, before = first.file.stat().st_mtime_ns, row_counts(project)
    again = embed_labels(project, batch_size=7)
    assert (again.fingerprint, again.fresh, again.labels, again.dim) == (first.fingerprint, False, 10, first.dim)
    assert first.file.stat().st_mtime_ns == written
    assert row_counts(project) == before


def test_other_settings_add_an_embedding_and_going_back_encodes_nothing(project, tmp_path):
    first = embed_labels(project)
    given = vectors_file(tmp_path, PLACES, np.eye(10))
    other = embed_labels(project, given)
    assert read_embedding(project).vectors.shape == (10, 10)
    assert row_counts(project) == [2, 3]
    back = embed_labels(project, "tfidf")
    assert (back.fingerprint, back.fresh) == (first.fingerprint, False)
    assert project.steps()["embed"].result["digest"] == first.fingerprint, "and it is the current one again"
    assert first.file.is_file()
    assert other.file.is_file()


def test_a_clustering_keeps_the_vectors_it_was_made_of(project, tmp_path):
    embed_labels(project, vectors_file(tmp_path, PLACES, np.eye(10)))
    clustering = cluster_labels(project, k=2).id
    embed_labels(project, "tfidf")
    for asked in (None, clustering):
        assert read_embedding(project, asked).vectors.tolist() == np.eye(10).tolist()
    with pytest.raises(ValueError, match="has no clustering 7; run `suprank hierarchy cluster"):
        read_embedding(project, 7)


def test_changed_labels_make_the_step_stale_and_the_next_run_fresh(project):
    first = embed_labels(project)
    relabel(project, [*PLACES[:9], "bridge"])
    assert project.steps()["embed"].stale
    second = embed_labels(project)
    assert second.fresh
    assert second.fingerprint != first.fingerprint
    assert not project.steps()["embed"].stale
    assert read_embedding(project).labels.tolist() == [*range(1, 10), 11], "without the removed one"


def test_labels_with_other_weights_alone_are_encoded_once_and_no_longer_stale(project):
    embed_labels(project)
    relabel(project, PLACES, weights=range(1, 11))
    assert project.steps()["embed"].stale
    assert not embed_labels(project).fresh
    assert not project.steps()["embed"].stale


def test_the_numbers_of_labels_do_not_matter(tmp_path):
    found = [embed_labels(labeled(tmp_path / str(n), texts)) for n, texts in enumerate([PLACES, PLACES[::-1]])]
    assert found[0].fingerprint == found[1].fingerprint
    assert found[0].file.read_bytes() == found[1].file.read_bytes()


def test_an_embedding_of_one_project_can_be_given_to_another(tmp_path):
    first = labeled(tmp_path / "a")
    made = embed_labels(first)
    second = labeled(tmp_path / "b", PLACES[:4])
    outcome = embed_labels(second, f"precomputed:{made.file}")
    assert outcome.encoder["made_by"] == made.encoder
    assert read_embedding(second).vectors.tolist() == read_embedding(first).rows([1, 2, 3, 4]).tolist()


def test_vectors_made_elsewhere_come_to_length_1_and_zeros_are_counted(project, tmp_path):
    rows = np.tile([3.0, 4.0], (10, 1))
    rows[2] = 0
    outcome = embed_labels(project, vectors_file(tmp_path, PLACES, rows))
    assert outcome.without_signal == 1
    assert read_embedding(project).rows([1, 3]).tolist() == [pytest.approx([0.6, 0.8]), [0, 0]]


def test_descriptions_are_encoded_where_they_are_asked_for(tmp_path):
    project = labeled(tmp_path / "p", ["bath", "mine"], descriptions={"bath": "place to swim"})
    plain, described = embed_labels(project), embed_labels(project, with_description=True)
    assert plain.fingerprint != described.fingerprint
    assert described.dim > plain.dim


def test_an_encoder_that_gives_no_numbers_is_refused(project, monkeypatch):
    monkeypatch.setattr(
        module.build_encoder("tfidf").__class__, "encode", lambda self, texts, progress: np.full((10, 2), np.nan)
    )
    with pytest.raises(ValueError, match="the vector of 'castle' is not finite, nor are those of 9 more"):
        embed_labels(project)
    assert row_counts(project) == [0, 1]


def test_a_project_without_labels_names_the_step_to_run(tmp_path):
    project = Project.create(tmp_path / "p", read_recipe("hgldv2"))
    with pytest.raises(ValueError, match="no labels to embed; make another from items"):
        embed_labels(project, "tfidf")
    with project.transaction() as db:
        db.execute("INSERT INTO item (split, key, source, line) VALUES ('train', '1', 'x', 2)")
    with pytest.raises(ValueError, match="run `suprank hierarchy types` first"):
        embed_labels(project, "tfidf")
    with project.transaction() as db:
        db.execute("INSERT INTO label (key, text, weight, state, reason) VALUES ('a', 'a', 1, 'removed', 'dull')")
    with pytest.raises(ValueError, match="cleaning removed all 1 label of"):
        embed_labels(project, "tfidf")
    with pytest.raises(ValueError, match="has no embedding; run `suprank hierarchy cluster"):
        read_embedding(project)


def test_a_file_that_is_gone_is_made_again_and_a_damaged_one_is_named(project):
    outcome = embed_labels(project)
    content = outcome.file.read_bytes()
    outcome.file.unlink()
    with pytest.raises(FileNotFoundError, match="is gone; `suprank hierarchy cluster` makes it again"):
        read_embedding(project)
    assert embed_labels(project).fresh
    assert outcome.file.read_bytes() == content
    outcome.file.write_bytes(content[:100])
    with pytest.raises(MalformedError, match="is damaged"):
        read_embedding(project)


def test_a_full_disk_leaves_neither_file_nor_row(project, monkeypatch):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(module.np, "savez", full)
    with pytest.raises(OSError, match="No space left"):
        embed_labels(project)
    assert list((project.folder / "embeddings").iterdir()) == []
    assert row_counts(project) == [0, 1]
    monkeypatch.undo()
    assert embed_labels(project).fresh


def test_labels_that_change_meanwhile_are_noticed(project, monkeypatch):
    real = module.unit_rows

    def meanwhile(vectors):
        relabel(project, ["bridge"])
        return real(vectors)

    monkeypatch.setattr(module, "unit_rows", meanwhile)
    with pytest.raises(ValueError, match="changed while they were encoded; nothing was saved"):
        embed_labels(project)
    assert row_counts(project)[0] == 0


def test_rows_of_unknown_labels_are_zeros():
    embedded = LabelEmbeddings(np.array([2, 5]), np.array([[1, 0], [0, 1]], np.float32))
    assert embedded.rows([5, 9, 2, 1, 5]).tolist() == [[0, 1], [0, 0], [1, 0], [0, 0], [0, 1]]
    assert embedded.rows([]).shape == (0, 2)
    nothing = LabelEmbeddings(np.array([], np.int64), np.empty((0, 2), np.float32))
    assert nothing.rows([1]).tolist() == [[0, 0]]
