"""suprank sweep: a grid of training runs, a table of what they found, and the figure."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from suprank.cli import runs, terminal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from suprank.experiments.sweep import Sweep


def sweep(
    recipe: Annotated[str, typer.Argument(help="A recipe: a .toml file, or a name that `suprank recipes` lists.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder of the sweep.")],
    values: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY=VALUE,...", help="Values to combine; a single one holds for all runs."),
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(min=1, help="Runs of each combination, with run.seed=0,1,...", show_default="1")
    ] = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="Runs at the same time.", show_default="1; with --slurm all")] = None,
    metric: Annotated[
        list[str] | None,
        typer.Option(help="A metric of the table and the figure, repeatable.", show_default="R@1, mAP@R and H-AP"),
    ] = None,
    relative_to: Annotated[
        str | None,
        typer.Option(metavar="KEY=VALUE", help="Also show the increase over the runs with this value of an axis."),
    ] = None,
    slurm: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="Submit a SLURM array, with this option of sbatch, repeatable."),
    ] = None,
    collect: Annotated[
        bool, typer.Option("--collect", help="Only write the table and the figure of what is finished.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print the commands that would be run.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")] = False,
) -> None:
    """Train every combination of some values, and compare: DIR/table.md, table.csv, plot.png and plot.svg.

    All combinations are checked before the first one runs. Given again, the command leaves out what is finished and resumes
    what was interrupted; with further values it adds them to the sweep. Numbers are of the last epoch: mean ± standard
    deviation over seeds, in percent.

    \b
    suprank sweep cub/roadmap loss.weight=0,0.1,0.3,0.5 --seeds 3 --out lambda
    suprank sweep cub/roadmap batch.size=32,64,128 loss.weight=0,0.1 --relative-to loss.weight=0 --out batch
    suprank sweep sop/happier loss.decay=0.5,1,3 --seeds 3 --slurm partition=gpu --slurm time=12:00:00 --out alpha
    """
    with terminal.plain_errors("fewer --jobs"):
        from suprank.evaluation.names import parse
        from suprank.experiments import sweep as sweeps
        from suprank.experiments.sweep.folder import FILE
        from suprank.files.folders import refuse_foreign_files

        folder = out.absolute()
        grid = sweeps.Grid.read(values or [], seeds)
        metrics = list(dict.fromkeys(str(parse(one)) for one in metric or ()))
        there = sweeps.Sweep.load(folder)
        if collect:
            if there is None:
                raise FileNotFoundError(f"{out} has no sweep.json, so there is nothing to collect; name the folder of a sweep.")
            _finish(there, folder, metrics, relative_to)
            return
        refuse_foreign_files(out, FILE, "a sweep", "name another folder (--out)")
        recipe = str(Path(recipe).absolute()) if Path(recipe).is_file() else recipe
        grid = there.aligned(grid) if there else grid
        configs = sweeps.checked(recipe, grid)
        whole = sweeps.Sweep.of(recipe, grid, configs[0], shlex.join(["suprank", *sys.argv[1:]]))
        whole = there.joined(whole) if there else whole
        if relative_to:
            sweeps.relative_table(dict.fromkeys(whole.runs), relative_to)  # refuses what is no value of an axis
        tasks = sweeps.tasks(recipe, grid, folder)
        if dry_run:
            for task in tasks:
                terminal.echo(shlex.join(task.command))
            return
        parameters = sweeps.slurm_parameters(slurm, configs, jobs) if slurm else None
        failed = runs.failures(tasks, whole.save, out, configs, jobs=jobs, slurm=parameters, quiet=quiet)
        _finish(whole, folder, metrics, relative_to)
    runs.end(failed, len(tasks))


def _finish(sweep: Sweep, folder: Path, metrics: Sequence[str], base: str | None) -> None:
    """Writes and prints the tables, and draws them."""
    from suprank.experiments import sweep as sweeps
    from suprank.files.atomic import write_atomically

    found = sweeps.outcomes(sweep.runs, folder)
    write_atomically(folder / "table.csv", sweeps.run_table(found).encode())
    if not any(found.values()):
        terminal.echo(f"none of {len(found)} runs is finished, so there is no table yet.", err=True)
        return
    tables = {"table": sweeps.table(found, metrics)}
    if base:
        tables["relative"] = sweeps.relative_table(found, base, metrics)
    for name, table in tables.items():
        try:
            write_atomically(folder / f"{name}.md", table.markdown().encode())
        finally:
            runs.print_table(table)
    with runs.perhaps_drawing():
        from suprank.experiments.sweep.plot import draw

        for name, table in tables.items():
            stem = "plot" if name == "table" else name
            draw(table, [folder / f"{stem}.png", folder / f"{stem}.svg"])
