"""What the tests of comparisons share: recipes in files, and outcomes that were never run."""

from pathlib import Path

from suprank.experiments.comparison import asked
from suprank.experiments.sweep import RECIPE, SEED, Combination, Grid, Outcome


def write_recipe(name, weight=0.1, **tables):
    """NAME.toml with this λ, which the stand-in for training makes a result of; entries of further tables by their names."""
    lines = ['[data]\nmanifest = "glyphs"', f'[loss]\nname = "roadmap"\nweight = {weight}']
    for table, entries in tables.items():
        lines += [f"[{table}]", *(f"{entry} = {value}" for entry, value in entries.items())]
    Path(f"{name}.toml").parent.mkdir(exist_ok=True, parents=True)
    Path(f"{name}.toml").write_text("\n".join(lines) + "\n")


def comparison_of(*recipes, overrides=(), seeds=None, command="suprank compare", there=None):
    return asked(recipes, Grid.read(overrides, seeds), command, there)[0]


def outcomes_of(shares):
    """Outcomes from R@1 by label, a share for each seed; None is a run that is not finished."""
    found = {}
    for label, values in shares.items():
        for seed, one in enumerate(values):
            metrics = {"test": {"H-AP": None if one is None else one / 2, "R@1": one, "MRR": 0.5, "mAP@R": 0.25}}
            run = Combination(((RECIPE, label), (SEED, str(seed))))
            found[run] = None if one is None else Outcome(1, 1, 10.0 + seed, metrics)
    return found
