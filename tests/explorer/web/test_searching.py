"""Search without a server: ranks, levels, filters, and two runs on one query."""

import numpy as np
import pytest
from PIL import Image

from suprank.data import Manifest
from suprank.explorer import Index
from suprank.explorer.images import best_items, shared_levels
from suprank.explorer.web import ExplorerRun, Filters, ImageId
from suprank.explorer.web.searching import Searcher
from tests.explorer.runs import of_arrays
from tests.explorer.web import drawn


def searcher(*sources):
    return Searcher([ExplorerRun(data, Index.build(data.items.embeddings)) for data in sources])


def manifest(species, family, splits=None, paths=None):
    count = len(species)
    columns = {"path": paths or [f"{row}.png" for row in range(count)], "split": splits or ["test"] * count}
    return Manifest.from_columns({**columns, "label_species": species, "label_family": family}, root=".")


@pytest.fixture
def birds():
    """Five birds on a circle, at 0, 10, 20, 30 and 40 degrees: a crow, a jay, a wren, a crow, a wren."""
    angle = np.radians([0, 10, 20, 30, 40])
    items = manifest(["crow", "jay", "wren", "crow", "wren"], ["corvid", "corvid", "small", "corvid", "small"])
    return of_arrays("birds", np.stack([np.cos(angle), np.sin(angle)], 1).astype(np.float32) * 3, items)


def test_a_crow_finds_the_jay_first_and_never_itself(birds):
    (found,) = searcher(birds).neighbors(ImageId(0, "gallery", 0))
    assert [(hit.image.row, hit.rank, hit.level) for hit in found.hits] == [(1, 1, 1), (2, 2, 0), (3, 3, 2), (4, 4, 0)]
    assert [hit.score for hit in found.hits] == pytest.approx(np.cos(np.radians([10, 20, 30, 40])))
    assert (found.total, found.depth, found.gallery_size) == (4, 4, 5)


def test_filters_keep_the_ranks_of_the_whole_list(birds):
    look = searcher(birds).neighbors
    assert [hit.rank for hit in look(ImageId(0, "gallery", 0), Filters(level=0))[0].hits] == [2, 4]
    assert [hit.rank for hit in look(ImageId(0, "gallery", 0), Filters(level=2))[0].hits] == [3]
    (page,) = look(ImageId(0, "gallery", 0), Filters(level=0), offset=1, limit=1)
    assert ([hit.rank for hit in page.hits], page.total) == ([4], 2)
    assert look(ImageId(0, "gallery", 0), Filters(), offset=99)[0].hits == ()


def test_it_finds_what_the_exact_search_of_the_report_finds(one):
    data = one.data
    rows, scores = best_items(data, np.arange(len(data.items)), k=20)
    for query in range(0, len(data.items), 7):
        (found,) = one.searcher.neighbors(ImageId(0, "gallery", query), limit=20)
        assert [hit.score for hit in found.hits] == pytest.approx(scores[query].tolist(), abs=1e-5)
        assert {hit.image.row for hit in found.hits[:10]} <= set(rows[query].tolist())
        assert [hit.level for hit in found.hits] == shared_levels(
            data.queries.labels[query], data.items.labels[[hit.image.row for hit in found.hits]]
        ).tolist()


def test_queries_rank_the_gallery_and_splits_filter_it():
    queries = manifest(["crow"], ["corvid"], ["query"], ["q.png"])
    gallery = manifest(["crow", "jay", None], ["corvid", "corvid", None], ["gallery", "gallery", "distractor"])
    vectors = np.eye(3, dtype=np.float32)
    found = searcher(of_arrays("split", vectors[:1] + 0.1, queries, vectors, gallery))
    (ranking,) = found.neighbors(ImageId(0, "query", 0))
    assert [(hit.image.row, hit.level) for hit in ranking.hits] == [(0, 2), (1, 1), (2, 0)]
    (filtered,) = found.neighbors(ImageId(0, "query", 0), Filters(split="distractor"))
    assert [(hit.image, hit.rank) for hit in filtered.hits] == [(ImageId(0, "gallery", 2), 3)]
    (own,) = found.neighbors(ImageId(0, "gallery", 1))
    assert {hit.image.row for hit in own.hits} == {0, 2}
    (unknown,) = found.neighbors(ImageId(0, "gallery", 2))
    assert [hit.level for hit in unknown.hits] == [None, None]  # a distractor has no label to judge by


def test_two_runs_meet_on_one_image_by_its_path_whatever_the_order_of_their_rows(birds):
    order = [4, 2, 0, 1]  # the second run lacks the second crow
    vectors = birds.items.embeddings[:][order][:, ::-1]
    other = of_arrays("other", np.ascontiguousarray(vectors), birds.items.manifest.take(order))
    both = searcher(birds, other)
    assert both.counterpart(ImageId(0, "gallery", 0), 1) == ImageId(1, "gallery", 2)
    assert both.counterpart(ImageId(1, "gallery", 0), 0) == ImageId(0, "gallery", 4)
    one, two = both.neighbors(ImageId(0, "gallery", 0))
    assert [hit.image.row for hit in two.hits] == [3, 1, 0]
    assert [hit.other_rank for hit in one.hits] == [1, 2, None, 3]
    assert [hit.other_rank for hit in two.hits] == [1, 2, 4]
    assert [hit.level for hit in two.hits] == [1, 0, 0]
    (alone,) = both.neighbors(ImageId(0, "gallery", 3))
    assert alone.run == 0


def test_a_picture_from_outside_finds_its_like(two, images):
    picture = drawn.figure("cogwheel", 12345)
    shape, pixels = two.searcher.rank_picture(picture)
    assert {two.tree.names(0)[two.data.items.labels[hit.image.row, 0]] for hit in shape.hits[:5]} == {"cogwheel"}
    assert {hit.level for hit in (*shape.hits, *pixels.hits)} == {None}
    own = Image.open(images.root / images.paths[5].as_py())
    assert two.searcher.rank_picture(own)[0].hits[0].image.row == 5


def test_a_model_of_other_dimensions_is_refused_and_so_are_three_runs(birds):
    run = ExplorerRun(birds, Index.build(birds.items.embeddings), lambda picture: np.zeros(7))
    with pytest.raises(ValueError, match="in 7 dimensions, but the gallery of birds has 2"):
        Searcher([run]).rank_picture(Image.new("RGB", (4, 4)))
    with pytest.raises(ValueError, match="3 runs"):
        Searcher([run] * 3)


@pytest.mark.parametrize(
    "image",
    [
        ImageId(0, "gallery", 5),
        ImageId(0, "gallery", -1),
        ImageId(0, "query", 0),
        ImageId(1, "gallery", 0),
        ImageId(-1, "gallery", 0),
    ],
)
def test_what_is_not_there_is_an_index_error(birds, image):
    with pytest.raises(IndexError):
        searcher(birds).neighbors(image)


def test_deep_lists_end_at_a_thousand():
    count = 10_050
    vectors = np.random.default_rng(0).normal(size=(count, 4)).astype(np.float32)
    found = searcher(of_arrays("many", vectors, manifest(["x"] * count, ["y"] * count)))
    (ranking,) = found.neighbors(ImageId(0, "gallery", 3), offset=980, limit=48)
    assert ranking.deep
    assert (ranking.total, ranking.hits[-1].rank, ranking.gallery_size) == (1000, 1000, count)


def test_an_embedding_of_zeros_has_a_list_in_the_order_of_rows():
    vectors = np.eye(4, dtype=np.float32)
    vectors[2] = 0
    rows = {"path": [str(row) for row in range(4)], "split": ["test"] * 4}
    data = of_arrays("s", vectors, Manifest.from_columns(rows, root=".", levels=()))
    (ranking,) = Searcher([ExplorerRun(data, Index.build(vectors))]).neighbors(ImageId(0, "gallery", 2))
    assert [(hit.image.row, hit.score) for hit in ranking.hits] == [(0, 0), (1, 0), (3, 0)]
