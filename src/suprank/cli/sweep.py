"""suprank sweep: train a grid of settings, and show the table and the figure of their metrics."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from suprank.cli import terminal
from suprank.cli.experiment_options import KeepProcesses
from suprank.cli.train import TrustCode
from suprank.system.custom_code import trusting


def sweep(
    recipe: Annotated[str, typer.Argument(help="A recipe: a .toml file, or a name that `suprank recipes` lists.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder of the sweep.")],
    values: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="KEY=VALUE,...",
            help="Entries of the recipe: several values are combined, one holds for all runs.",
        ),
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(min=1, help="Number of runs of each combination, with run.seed=0,1,...", show_default="1")
    ] = None,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Number of runs at the same time.", show_default="1; with --slurm all")
    ] = None,
    keep_processes: KeepProcesses = False,
    metric: Annotated[
        list[str] | None,
        typer.Option(help="A metric of the table and the figure, repeatable.", show_default="R@1, mAP@R and H-AP"),
    ] = None,
    relative_to: Annotated[
        str | None,
        typer.Option(metavar="KEY=VALUE", help="Also show the increase over the runs with this value."),
    ] = None,
    slurm: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="Submit the runs as a SLURM array with this sbatch option, repeatable."),
    ] = None,
    collect: Annotated[
        bool, typer.Option("--collect", help="Only write the table and the figure of the finished runs.")
    ] = False,
    trust_code: TrustCode = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print the commands that would be run.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")] = False,
) -> None:
    """Train every combination of some values, and tabulate the metrics: DIR/table.md, table.csv, plot.png and plot.svg.

    All combinations are checked before the first one runs. Given again, the command skips what is finished and resumes what was
    interrupted; further values are added to the sweep. Metrics are those after the last epoch: mean ± standard deviation over
    seeds, in percent.

    \b
    suprank sweep cub/roadmap loss.weight=0,0.1,0.3,0.5 --seeds 3 --out lambda
    suprank sweep cub/roadmap batch.size=32,64,128 loss.weight=0,0.1 --relative-to loss.weight=0 --out batch
    suprank sweep sop/happier loss.decay=0.5,1,3 --seeds 3 --slurm partition=gpu --slurm time=12:00:00 --out alpha
    """
    with terminal.plain_errors("fewer --jobs"), trusting(trust_code):
        from suprank import experiments
        from suprank.cli.experiments import ExperimentDisplay, command_line, exit_if_failed, explain_stop
        from suprank.experiments.worker_processes import optional_pool

        values, display = values or [], ExperimentDisplay(quiet=quiet)
        if collect:
            experiments.collect_sweep(out, metrics=metric or (), relative_to=relative_to, display=display)
            return
        if dry_run:
            for task in experiments.plan_sweep(recipe, values, out, seeds=seeds, relative_to=relative_to).tasks:
                terminal.echo(shlex.join(task.command))
            return
        with explain_stop(out), optional_pool(keep_processes=keep_processes, slurm=slurm or ()) as workers:
            result = experiments.sweep(
                recipe,
                values,
                out,
                seeds=seeds,
                jobs=jobs,
                workers=workers,
                metrics=metric or (),
                relative_to=relative_to,
                slurm=slurm or (),
                display=display,
                command=command_line(),
            )
    exit_if_failed(result.failed, result.planned)
