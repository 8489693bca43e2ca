"""The figures of the paper that need no trained model, by label: every number in them is computed by this library."""

from collections.abc import Callable

from suprank.paper.drawings.batches import toy_gap, worst_case
from suprank.paper.drawings.canvas import Drawing
from suprank.paper.drawings.curves import bounds, choice_of_delta, h_minus, h_plus, sigmoid, smooth_rank
from suprank.paper.drawings.framework import framework
from suprank.paper.drawings.rankings import ap_and_hap, h_rank_of_each, label_tree, two_h_ranks

__all__ = ["DRAWINGS", "Drawing"]

DRAWINGS: dict[str, Callable[[], Drawing]] = {
    "fig:figure_introduction": framework,
    "fig:smooth_rank": smooth_rank,
    "fig:h_plus": h_plus,
    "fig:h_minus": h_minus,
    "fig:sigmoid": sigmoid,
    "fig:hierarchical_tree": label_tree,
    "fig:figure_hrank": two_h_ranks,
    "fig:dg_ap": toy_gap,
    "tab:compa_bounds": bounds,
    "fig:worst_case_global_ap": worst_case,
    "fig:choice_of_delta": choice_of_delta,
    "fig:supp_hrank_figure": h_rank_of_each,
    "fig:sup_dif_ap_hap": ap_and_hap,
}
"""Label → the function that draws it, in the paper's order."""
