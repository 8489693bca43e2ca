"""suprank train: a model from a recipe, with checkpoints, metrics and reports in a run folder."""

from __future__ import annotations

import math
import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from suprank.cli import terminal

if TYPE_CHECKING:
    from suprank.training.config import TrainConfig
    from suprank.training.loop import Result

_RANKS = ("RANK", "LOCAL_RANK", "SLURM_PROCID")
"""Where torchrun, Lightning and srun say which process this is; what Lightning starts inherits what srun said to the first."""


def train(
    recipe: Annotated[
        str, typer.Argument(metavar="RECIPE", help="A recipe in TOML, or the name of one that `suprank recipes` lists.")
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY=VALUE", help="Entries that differ from the recipe's: loss.weight=0.3"),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder of the run.", show_default="runs/ and the recipe's name")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the run in the folder; where there is none, begin.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check the recipe, print all of it, and stop.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show warnings only.")] = False,
) -> None:
    """Train a model as a recipe says, and judge it by exact metrics; DIR/model is the model, for `suprank embed` for example.

    Ctrl-C, SIGTERM and SIGUSR1 write a checkpoint and stop; with --resume the same command goes on where it was, in the
    middle of an epoch. So it does after a crash, from a checkpoint that is at most checkpoint.minutes old. The processes of
    torchrun and srun share each batch, and the result is that of one process with the whole.

    \b
    suprank train cub/roadmap data.manifest=cub.parquet
    suprank train cub/roadmap loss.weight=0.3 run.seed=1 --out runs/third
    suprank train cub/roadmap loss.weight=0.3 run.seed=1 --out runs/third --resume

    \b
    The 8 GPUs of a machine:
      torchrun --nproc-per-node 8 -m suprank.cli.main train sop/roadmap --out runs/sop
    H-GLDv2 on 4 machines, by torchrun on each of them:
      torchrun --nnodes 4 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint HOST:29500 \\
        -m suprank.cli.main train hgldv2/happier data.manifest=/data/hgldv2.parquet --out /shared/hgldv2 --resume
    or by SLURM, with a signal two minutes before the job's time is over, after which it queues again:
      sbatch --nodes 4 --ntasks-per-node 8 --gpus-per-node 8 --cpus-per-task 12 --requeue --signal USR1@120 --wrap \\
        'srun suprank train hgldv2/happier data.manifest=/data/hgldv2.parquet --out /shared/hgldv2 --resume
         case $? in 138) scontrol requeue $SLURM_JOB_ID;; esac'
    """
    with terminal.plain_errors("a smaller batch.chunk, or batch.size"):
        from suprank.training.recipe import read_recipe, to_toml

        config = read_recipe(recipe, overrides or [])
        if dry_run:
            if is_first_process():
                _check_network(config)
                terminal.echo(to_toml(config), nl=False)
            return
        folder = default_folder(recipe) if out is None else out
        from suprank.cli.training_display import TrainingDisplay
        from suprank.training.loop import NonFiniteLossError
        from suprank.training.loop import train as trained

        try:
            with TrainingDisplay(quiet=quiet) as display:
                result = trained(config, folder, resume=resume, watch=display)
        except NonFiniteLossError as error:
            if is_first_process():  # the only one that knows where the batch was written down
                terminal.echo(f"suprank: {error}", err=True)
            raise typer.Exit(1) from None
        if is_first_process():
            if result.stopped is not None:
                _say_how_to_go_on(result, [recipe, *(overrides or []), "--out", str(folder), "--resume"])
            elif not quiet:
                _print_result(result)
    if result.stopped is not None:
        raise typer.Exit(128 + result.stopped)  # as shells say it of a process that a signal ended


def _check_network(config: TrainConfig) -> None:
    """Refuse a network that timm does not have, or that other entries do not go with. A saved one is not read."""
    from suprank.models import Embedder
    from suprank.training.learner import check_embedder

    if config.model.start is None:
        check_embedder(Embedder(config.embedder), config)


def default_folder(recipe: str) -> Path:
    """runs/cub-roadmap for `cub/roadmap` and `recipes/cub/roadmap.toml`; for another file, runs/ and its name."""
    from suprank.training.recipe import recipe_name

    return Path("runs") / recipe_name(recipe).replace("/", "-")


def is_first_process() -> bool:
    """Whether this process is the one to print, of those that torchrun, srun or Lightning started."""
    rank = next((os.environ[name] for name in _RANKS if name in os.environ), "0")
    on_first_machine = "RANK" in os.environ or os.environ.get("NODE_RANK", "0") == "0"
    return rank == "0" and on_first_machine


def _say_how_to_go_on(result: Result, arguments: list[str]) -> None:
    from suprank.training.checkpoint import newest_step

    step = newest_step(result.folder / "checkpoints")
    where = "before the first checkpoint" if step is None else f"at step {step}"
    several = int(os.environ.get("WORLD_SIZE", os.environ.get("SLURM_NTASKS", "1"))) > 1
    command = "the same command and --resume" if several else shlex.join(["suprank", "train", *arguments])
    terminal.echo(f"stopped {where}; go on with: {command}", err=True)


def _print_result(result: Result) -> None:
    from suprank.cli.metric_table import print_report

    for name, report in result.reports.items():
        if len(result.reports) > 1:
            terminal.echo(f"\n{name}")
        print_report(report)
    if not result.reports:
        terminal.echo(
            "no metrics: there are no test images. `suprank data import` holds some out by --holdout-classes 0.5, or name a "
            "manifest of them in data.tests.",
            err=True,
        )
    terminal.echo(f"model: {result.folder / 'model'}")
    if result.best is not None:
        best = result.best
        undefined = best["value"] is None or math.isnan(best["value"])
        value = "--" if undefined else f"{100 * best['value']:.2f}"
        terminal.echo(f"best:  {result.folder / 'best'}, epoch {best['epoch']}, {best['metric']} {value}")
