"""The figures without a model: their numbers against the paper's captions, loops and sklearn, and whether text overlaps."""

import itertools
from fractions import Fraction

import pytest
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.table import Table
from matplotlib.text import Text
from sklearn.metrics import average_precision_score

from docs.drawings import ILLUSTRATIONS
from docs.drawings.batches import TOY
from docs.drawings.rankings import LESS_SEVERE, MORE_SEVERE, shared_levels
from suprank.paper.contents import contents
from suprank.paper.curves import CURVES
from suprank.ranking import at_least, average_precision, heaviside, hierarchical_average_precision, ranks

FINE = 3
DRAWINGS = CURVES | ILLUSTRATIONS


@pytest.fixture(scope="module")
def drawings():
    return {label: draw() for label, draw in DRAWINGS.items()}


def h_rank(level, k):
    """eq:hierarchical_rank for the item at place k of a ranking, with relevance l/3."""
    return Fraction(level[k], FINE) + sum(Fraction(min(level[j], level[k]), FINE) for j in range(k))


def h_ap(level):
    """eq:def_hap of a ranking."""
    precisions = [h_rank(level, k) / (k + 1) for k in range(len(level)) if level[k]]
    return sum(precisions) / sum(Fraction(one, FINE) for one in level)


def fine_ap(level):
    return average_precision_score([one == FINE for one in level], range(len(level), 0, -1))


def texts(figure):
    """The texts of a figure that are drawn: all but those of ticks beyond the end of their axis."""
    axes = [axis for one in figure.axes for axis in (one.xaxis, one.yaxis)]
    ticks = [(axis, tick) for axis in axes for tick in (*axis.get_major_ticks(), *axis.get_minor_ticks())]
    beyond = {tick.label1 for axis, tick in ticks if not min(edges := axis.get_view_interval()) <= tick.get_loc() <= max(edges)}
    cells = [cell.get_text() for table in figure.findobj(Table) for cell in table.get_celld().values()]
    found = [*figure.findobj(Text), *cells]
    return [text for text in found if text.get_visible() and text.get_text().strip() and text not in beyond]


def written(drawing):
    return [text.get_text() for text in texts(drawing.figure)]


def test_every_drawing_of_the_paper_is_there():
    kinds = {label: item.kind for label, item in contents().items()}
    assert {label for label, kind in kinds.items() if kind == "drawing"} == set(CURVES)
    assert {label for label, kind in kinds.items() if kind == "illustration"} == set(ILLUSTRATIONS)


# The captions


def test_h_rank_is_that_of_the_captions(drawings):
    two, each = drawings["fig:figure_hrank"], drawings["fig:supp_hrank_figure"]
    assert list(two.numbers.values()) == pytest.approx([5 / 3, 4 / 3])
    assert each.numbers["H-rank⁺(2)"] == pytest.approx(4 / 3)
    assert {"5/3", "4/3"} <= set(written(two))
    assert "1 + 1/3" in written(each)


def test_ap_and_h_ap_are_those_of_the_caption(drawings):
    drawing = drawings["fig:sup_dif_ap_hap"]
    rounded = {name: round(value, 2) for name, value in drawing.numbers.items()}
    assert rounded == {"AP, top row": 0.45, "H-AP, top row": 0.78, "AP, bottom row": 0.45, "H-AP, bottom row": 0.67}
    assert [text for text in written(drawing) if "AP =" in text] == ["AP = 0.45", "H-AP = 0.78", "AP = 0.45", "H-AP = 0.67"]


def test_the_two_rankings_are_the_only_short_ones_with_the_captions_numbers():
    """A search over all rankings of up to five images by their levels; both rankings must order the same images."""
    found = []
    for length in range(1, 6):
        level = torch.tensor(list(itertools.product(range(FINE + 1), repeat=length)))
        scores = torch.arange(length, 0, -1.0).double().expand(len(level), -1)
        relevance = level.double() / FINE
        hap = hierarchical_average_precision(ranks(scores, level, relevance, minus=heaviside), relevance)
        ap = average_precision(ranks(scores, at_least(level, FINE), minus=heaviside), level == FINE)
        top, bottom = (level[(ap.mul(100).round() == 45) & (hap.mul(100).round() == one)].tolist() for one in (78, 67))
        found += [(one, other) for one in top for other in bottom if sorted(one) == sorted(other)]
    assert found == [(shared_levels(LESS_SEVERE).tolist(), shared_levels(MORE_SEVERE).tolist())]


def test_delta_is_where_the_gradient_falls_below_epsilon(drawings):
    numbers = drawings["fig:choice_of_delta"].numbers
    delta, used = numbers["δ = τ·ln((1 − ε)/ε)"], numbers["δ of SupStep"]
    assert round(delta, 2) == used == 0.05
    assert 0.0098 < numbers["τ · gradient at δ = τ·ln((1 − ε)/ε)"] < 0.01
    t = torch.tensor(0.9 * delta / 0.01, dtype=torch.float64, requires_grad=True)
    torch.sigmoid(t).backward()
    assert t.grad > 0.01  # before δ it is not below ε


# Definitions, by loops, and other libraries


def test_the_rankings_numbers_follow_the_definitions(drawings):
    level = shared_levels(MORE_SEVERE).tolist()
    assert level == [1, 3, 0, 2, 3]
    each = {f"H-rank⁺({k + 1})": float(h_rank(level, k)) for k in range(len(level)) if level[k]}
    assert drawings["fig:supp_hrank_figure"].numbers == pytest.approx(each)
    for row, names in (("top", LESS_SEVERE), ("bottom", MORE_SEVERE)):
        level, numbers = shared_levels(names).tolist(), drawings["fig:sup_dif_ap_hap"].numbers
        assert numbers[f"H-AP, {row} row"] == pytest.approx(float(h_ap(level)))
        assert numbers[f"AP, {row} row"] == pytest.approx(fine_ap(level))


def test_the_label_tree_partitions_the_images_without_the_query(drawings):
    drawing = drawings["fig:hierarchical_tree"]
    assert list(drawing.numbers.values()) == [2, 4, 4, 4]
    tiles = [text for text in written(drawing) if "#" in text]
    assert len(tiles) == 7 + 15  # a node for each class, and the images
    assert written(drawing).count("query") == 1


def test_the_steps_differ_in_what_they_bound_and_in_their_gradient(drawings):
    numbers = drawings["fig:smooth_rank"].numbers
    assert numbers["H⁻(0)"] == 1
    assert numbers["σ(0)"] == 0.5
    assert numbers["H⁻(δ)"] == pytest.approx(1.5, abs=0.01)
    assert [numbers[f"gradient of {name} at 0.065"] for name in ("H⁺", "H⁻", "σ")] == pytest.approx([0, 100, 0.15], abs=1e-3)
    parts = [drawings[label].numbers for label in ("fig:h_plus", "fig:h_minus", "fig:sigmoid")]
    assert numbers == {name: value for part in parts for name, value in part.items()}


def test_the_gap_of_the_toy_dataset_is_the_mean_over_batches_minus_the_whole(drawings):
    def ap(items):
        return average_precision_score([item.positive for item in items], [item.score for item in items])

    numbers = drawings["fig:dg_ap"].numbers
    parts, whole = [ap(batch) for batch in TOY], ap([item for batch in TOY for item in batch])
    assert [numbers[f"AP, batch {number}"] for number in (1, 2, 3)] == pytest.approx(parts)
    assert numbers["AP of all"] == pytest.approx(whole)
    assert numbers["DG"] == pytest.approx(sum(parts) / 3 - whole)
    assert f"= {numbers['DG']:.2f}" in written(drawings["fig:dg_ap"])[-1]


def test_juxtaposed_batches_attain_the_bound(drawings):
    numbers = drawings["fig:worst_case_global_ap"].numbers
    assert numbers["AP of each batch"] == 1
    assert numbers["AP of all"] == pytest.approx(average_precision_score([1, 1, 0, 0, 0] * 3, range(15, 0, -1)))
    assert numbers["upper bound on DG"] == pytest.approx(numbers["DG"]) == pytest.approx(1 - numbers["AP of all"])


@pytest.mark.parametrize("batches", [1, 2, 16])
def test_the_bounds_follow_their_equations(drawings, batches):
    numbers = drawings["tab:compa_bounds"].numbers
    plain = sum((j + 4 * b) / (j + 4 * b + 252 * b) for b in range(batches) for j in range(1, 5)) / (4 * batches)
    assert numbers[f"without L_DG, K = {batches}"] == pytest.approx(1 - plain)
    good, bad = 3, 63
    refined = sum((j + good * b) / (j + good * b + bad * b) for b in range(batches) for j in range(1, good + 1))
    refined += sum((1 + good + 4 * b) / (1 + good + 4 * b + 252 * b) for b in range(batches))
    assert numbers[f"with L_DG, 75% satisfied, K = {batches}"] == pytest.approx(1 - refined / (4 * batches))
    falling = [value for name, value in numbers.items() if name.endswith(f", K = {batches}")]
    assert falling == sorted(falling, reverse=True)
    assert falling[-1] == 0
    assert f"{falling[0]:.3f}" in written(drawings["tab:compa_bounds"])


def test_the_framework_weighs_the_two_losses(drawings):
    numbers = drawings["fig:figure_introduction"].numbers
    scores = torch.tensor([20.0, 34, 48, 63, 79]).deg2rad().cos()
    hinges = [0.9 - scores[[0, 2]], scores[[1, 3, 4]] - 0.6]
    assert numbers["L_DG"] == pytest.approx(sum(hinge.clamp(min=0).mean().item() for hinge in hinges))
    weight = numbers["λ"]
    assert numbers["L"] == pytest.approx((1 - weight) * numbers["L_Sup, of H-AP"] + weight * numbers["L_DG"])


# The pictures


@pytest.mark.parametrize("label", DRAWINGS)
def test_every_label_can_be_saved_and_described(drawings, label, tmp_path):
    drawing = drawings[label]
    drawing.figure.savefig(tmp_path / "a.png", dpi=40)
    drawing.figure.savefig(tmp_path / "a.svg")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    assert "</svg>" in (tmp_path / "a.svg").read_text()
    assert drawing.alt.endswith(".")
    assert all(isinstance(value, float) for value in drawing.numbers.values())


@pytest.mark.parametrize("label", DRAWINGS)
def test_no_text_overlaps_another_or_leaves_the_figure(drawings, label):
    figure = drawings[label].figure
    renderer = FigureCanvasAgg(figure).get_renderer()
    figure.draw(renderer)
    # One pixel off each side, as the box of a text has a margin.
    boxes = {text: text.get_window_extent(renderer).padded(-1) for text in texts(figure)}
    edge = figure.bbox
    outside = [
        text.get_text() for text, box in boxes.items() if not all(map(edge.contains, *zip(box.min, box.max, strict=True)))
    ]
    overlapping = [(a.get_text(), b.get_text()) for a, b in itertools.combinations(boxes, 2) if boxes[a].overlaps(boxes[b])]
    assert (outside, overlapping) == ([], [])
