"""The tables and figures of the paper, reproduced by label."""
