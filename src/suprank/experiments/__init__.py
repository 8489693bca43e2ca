"""Several training runs as one experiment: sweeps over settings and comparisons of methods."""
