"""suprank compare: losses under one budget on one dataset, a table of what they came to, and the figure."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from suprank.cli import runs, terminal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from suprank.experiments.comparison import Comparison


def compare(
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder of the comparison.")],
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="RECIPE|KEY=VALUE",
            help="Recipes, as files or as names that `suprank recipes` lists; and entries that hold for all of them.",
            show_default=False,
        ),
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(min=1, help="Runs of each recipe, with run.seed=0,1,...", show_default="1")
    ] = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="Runs at the same time.", show_default="1; with --slurm all")] = None,
    metric: Annotated[
        list[str] | None,
        typer.Option(
            help="A metric of the table and the figure, repeatable.", show_default="R@1, mAP@R, AP, H-AP, ASI and NDCG"
        ),
    ] = None,
    name: Annotated[str, typer.Option(help="What the files of table and figure are called.")] = "comparison",
    slurm: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="Submit a SLURM array, with this option of sbatch, repeatable."),
    ] = None,
    collect: Annotated[
        bool, typer.Option("--collect", help="Only write table and figure of what is finished: of these recipes, or of all.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print the commands that would be run.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")] = False,
) -> None:
    """Train several losses under one budget on one dataset, and compare: DIR/comparison.md, .tex, .csv, .png and .svg.

    The recipes may differ in their loss, proxies, memory and optimizer; in images, network, batches, epochs or evaluation they
    may not, and are refused before the first one runs. Given again, the command leaves out what is finished and resumes what
    was interrupted; with further recipes or seeds it adds them. Numbers are of the last epoch: mean ± standard deviation over
    seeds, in percent, the best in bold.

    \b
    suprank compare cub/nsm cub/smooth-ap cub/roadmap --seeds 3 --out cub
    suprank compare cub/nsm mine.toml data.manifest=birds.parquet run.epochs=30 --jobs 2 --out birds
    suprank compare --collect --metric AP --metric AP/family --out cub
    suprank compare smooth-ap roadmap --collect --name approximations --out cub
    """
    with terminal.plain_errors("fewer --jobs"):
        from suprank.evaluation.names import parse
        from suprank.experiments import comparison as comparisons
        from suprank.experiments import sweep as sweeps
        from suprank.experiments.comparison.folder import FILE
        from suprank.files.folders import refuse_foreign_files

        folder = out.absolute()
        recipes, overrides = comparisons.recipes_and_overrides(words or [])
        metrics = list(dict.fromkeys(str(parse(one)) for one in metric or ()))
        if not name or name != Path(name).name or name.startswith("."):
            raise ValueError(f"--name {name!r} must be the beginning of a file's name, such as approximations.")
        there = comparisons.Comparison.load(folder)
        if collect:
            if there is None:
                raise FileNotFoundError(
                    f"{out} has no comparison.json, so there is nothing to collect; name the folder of a comparison."
                )
            if overrides or seeds is not None:
                given = shlex.join(overrides) or f"--seeds {seeds}"
                raise ValueError(f"--collect runs nothing, so {given} would change nothing; leave it out.")
            _finish(there.only(recipes), folder, name, metrics)
            return
        refuse_foreign_files(out, FILE, "a comparison", "name another folder (--out)")
        grid = sweeps.Grid.read(overrides, seeds)
        asked, configs = comparisons.asked(recipes, grid, _command(), there)
        whole = there.joined(asked) if there else asked
        for note in comparisons.told(whole.methods):
            terminal.echo(note, err=True)
        tasks = comparisons.tasks(asked, grid, folder)
        if dry_run:
            for task in tasks:
                terminal.echo(shlex.join(task.command))
            return
        parameters = sweeps.slurm_parameters(slurm, configs, jobs, "suprank-compare") if slurm else None
        failed = runs.failures(tasks, whole.save, out, configs, jobs=jobs, slurm=parameters, quiet=quiet)
        _finish(whole, folder, name, metrics)
    runs.end(failed, len(tasks))


def _command() -> str:
    return shlex.join(["suprank", *sys.argv[1:]])


def _finish(comparison: Comparison, folder: Path, name: str, metrics: Sequence[str]) -> None:
    """Writes and prints the table, and draws it."""
    from suprank.experiments import comparison as comparisons
    from suprank.experiments import sweep as sweeps
    from suprank.files.atomic import write_atomically

    found = sweeps.outcomes(comparison.runs, folder)
    if not any(found.values()):
        write_atomically(folder / f"{name}.csv", sweeps.run_table(found).encode())
        terminal.echo(f"none of {len(found)} runs is finished, so there is no table yet.", err=True)
        return
    table, notes = comparisons.table(found, metrics), comparisons.told(comparison.methods)
    try:
        write_atomically(folder / f"{name}.csv", sweeps.run_table(found).encode())
        write_atomically(folder / f"{name}.md", comparisons.markdown(table, notes).encode())
        write_atomically(folder / f"{name}.tex", comparisons.latex(table, _command(), notes).encode())
    finally:
        runs.print_table(table, seconds=True)
    with runs.perhaps_drawing():
        from suprank.experiments.comparison.plot import draw

        draw(table, [folder / f"{name}.png", folder / f"{name}.svg"])
