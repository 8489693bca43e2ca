"""Calling a function for each of many tasks: in processes of this machine, on a Ray cluster, or as a SLURM array."""

from __future__ import annotations


def parse_on(on: str) -> tuple[str, str]:
    """Where tasks are done, "local", "ray" or "slurm", and what is said about it: an address, or options of sbatch.

    Example:
        >>> parse_on("local"), parse_on("ray=10.0.0.1:6379"), parse_on("slurm partition=gpu time=04:00:00")
        (('local', ''), ('ray', '10.0.0.1:6379'), ('slurm', 'partition=gpu time=04:00:00'))
    """
    where, separator, rest = on.partition(" " if on.startswith("slurm") else "=")
    if where not in ("local", "ray", "slurm") or (separator and (not rest or where == "local")):
        raise ValueError(
            f"on={on!r} must be local, ray, ray=HOST:PORT, or slurm with options of sbatch, such as "
            "'slurm partition=gpu time=04:00:00'."
        )
    return where, rest.strip()
