"""Calling a function for each of many tasks: in processes of this machine, on a Ray cluster, or as a SLURM array."""
