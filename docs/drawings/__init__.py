"""The illustrations of the paper, by label: every number in them is computed by this library."""

from .batches import toy_gap, worst_case
from .framework import framework
from .rankings import ap_and_hap, h_rank_of_each, label_tree, two_h_ranks

ILLUSTRATIONS = {
    "fig:figure_introduction": framework,
    "fig:hierarchical_tree": label_tree,
    "fig:figure_hrank": two_h_ranks,
    "fig:dg_ap": toy_gap,
    "fig:worst_case_global_ap": worst_case,
    "fig:supp_hrank_figure": h_rank_of_each,
    "fig:sup_dif_ap_hap": ap_and_hap,
}
"""Label → the function that draws it, in the paper's order."""
