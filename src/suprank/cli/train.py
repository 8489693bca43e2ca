"""suprank train: train a model from a recipe, with checkpoints, metrics and reports in a run folder."""

from __future__ import annotations

import math
import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from suprank.cli import terminal
from suprank.cli.options import TrustCode
from suprank.system.custom_code import trusting

if TYPE_CHECKING:
    from suprank.training.config import TrainConfig
    from suprank.training.loop import TrainResult

_RANKS = ("RANK", "LOCAL_RANK", "SLURM_PROCID")
"""Variables in which torchrun, Lightning and srun give the rank. Lightning's processes inherit srun's, so it comes last."""


def train(
    recipe: Annotated[
        str, typer.Argument(metavar="RECIPE", help="A recipe file in TOML, or a name that `suprank recipes` lists.")
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY=VALUE", help="Keys of the recipe to override, such as loss.weight=0.3."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder of the run.", show_default="runs/ and the recipe's name")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue the run in the folder; if there is none, start one.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check the recipe, print all of it, and stop. A loss of your own is loaded.")
    ] = False,
    trust_code: TrustCode = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show warnings only.")] = False,
) -> None:
    """Train a model from a recipe and evaluate it with exact metrics; DIR/model is the model, for `suprank embed` for example.

    Ctrl-C, SIGTERM and SIGUSR1 save a checkpoint and stop; with --resume the same command continues where it stopped, in the
    middle of an epoch. After a crash it continues from a checkpoint that is at most checkpoint.minutes old. The processes of
    torchrun and srun share each batch, and the result is that of one process with the whole batch.

    \b
    suprank train photos/roadmap data.manifest=photos.parquet
    suprank train cub/roadmap data.manifest=cub.parquet
    suprank train cub/roadmap loss.weight=0.3 run.seed=1 --out runs/third
    suprank train cub/roadmap loss.weight=0.3 run.seed=1 --out runs/third --resume
    suprank train mine.toml --trust-code       # with loss.name = "mine.py:MyLoss", a loss of your own

    \b
    The 8 GPUs of a machine:
      torchrun --nproc-per-node 8 -m suprank train sop/roadmap --out runs/sop
    H-GLDv2 on 4 machines, by torchrun on each of them:
      torchrun --nnodes 4 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint HOST:29500 \\
        -m suprank train hgldv2/happier data.manifest=/data/hgldv2.parquet --out /shared/hgldv2 --resume
    or by SLURM, with a signal two minutes before the job's time is over, after which it queues again:
      sbatch --nodes 4 --ntasks-per-node 8 --gpus-per-node 8 --cpus-per-task 12 --requeue --signal USR1@120 --wrap \\
        'srun suprank train hgldv2/happier data.manifest=/data/hgldv2.parquet --out /shared/hgldv2 --resume
         case $? in 138) scontrol requeue $SLURM_JOB_ID;; esac'
    """
    with terminal.plain_errors("a smaller batch.chunk, or batch.size"), trusting(trust_code):
        from suprank.training.code_copies import find_sources
        from suprank.training.recipe import read_recipe, to_toml
        from suprank.training.run_folder import RunFolder

        folder = default_folder(recipe) if out is None else out
        config = read_recipe(recipe, overrides or [], saved=RunFolder(folder).saved_recipe if resume else None)
        if dry_run:
            if is_first_process():
                _check_manifests(config)
                find_sources(config, folder)
                _check_network_and_loss(config)
                terminal.echo(to_toml(config), nl=False)
            return
        from suprank.cli.training_display import TrainingDisplay
        from suprank.training import NonFiniteLossError
        from suprank.training.loop import train as run_training

        try:
            with TrainingDisplay(quiet=quiet) as display:
                result = run_training(config, folder, resume=resume, callbacks=display)
        except NonFiniteLossError as error:
            if is_first_process():  # the only one that knows where the batch is listed
                terminal.echo(f"suprank: {error}", err=True)
            raise typer.Exit(1) from None
        if is_first_process():
            if result.stop_signal is not None:
                _print_how_to_resume(result, [recipe, *(overrides or []), "--out", str(folder), "--resume"])
            elif not quiet:
                _print_result(result, every_metric=config.evaluation.metrics is not None)
    if result.stop_signal is not None:
        raise typer.Exit(128 + result.stop_signal)  # the exit code of a process that a signal ended


def _check_manifests(config: TrainConfig) -> None:
    """Refuse manifests that cannot be read. Images are not looked for, and no dataset is drawn."""
    from suprank.training.config import GENERATED_DATASETS
    from suprank.training.manifests import open_manifest

    data = config.data
    for name in {data.manifest, *data.tests.values()} - {*GENERATED_DATASETS}:
        root = data.root if name == data.manifest else None
        open_manifest(name, root)


def _check_network_and_loss(config: TrainConfig) -> None:
    """Refuse a network that timm does not have or other keys do not fit, and a loss that cannot be built.

    A saved network (`model.start`) is not read. A loss of the user's own is loaded, and built for a single class.
    """
    import torch

    from suprank.models import Embedder
    from suprank.training.learner import check_embedder, check_loss

    dim = 1
    if config.model.start is None:
        embedder = Embedder(config.embedder)
        check_embedder(embedder, config)
        dim = embedder.dim
    if config.loss.has_proxies is None:  # only a loss of the user's own does not say
        check_loss(config.loss.build(torch.zeros(1, 1, dtype=torch.int64), dim), config)


def default_folder(recipe: str) -> Path:
    """runs/cub-roadmap for `cub/roadmap` and `recipes/cub/roadmap.toml`; for another file, runs/ and its name."""
    from suprank.training.recipe_files import recipe_name

    return Path("runs") / recipe_name(recipe).replace("/", "-")


def is_first_process() -> bool:
    """Whether this process is the one to print, of those that torchrun, srun or Lightning started."""
    rank = next((os.environ[name] for name in _RANKS if name in os.environ), "0")
    on_first_machine = "RANK" in os.environ or os.environ.get("NODE_RANK", "0") == "0"
    return rank == "0" and on_first_machine


def _print_how_to_resume(result: TrainResult, arguments: list[str]) -> None:
    from suprank.training.checkpoint import newest_step

    step = newest_step(result.folder / "checkpoints")
    where = "before the first checkpoint" if step is None else f"at step {step}"
    several = int(os.environ.get("WORLD_SIZE", os.environ.get("SLURM_NTASKS", "1"))) > 1
    command = "the same command and --resume" if several else shlex.join(["suprank", "train", *arguments])
    terminal.echo(f"stopped {where}; resume with: {command}", err=True)


def _print_result(result: TrainResult, *, every_metric: bool) -> None:
    from suprank.cli.metric_table import print_report
    from suprank.evaluation.quoted_metrics import quoted_keys

    for name, report in result.reports.items():
        several = len(result.reports) > 1
        if several:
            terminal.echo(f"\n{name}")
        evaluate = ["suprank", "evaluate", str(result.folder), *(["--test", name] if several else []), "--all"]
        print_report(report, None if every_metric else quoted_keys(report), shlex.join(evaluate))
    if not result.reports:
        terminal.echo(
            "no metrics: there are no test images. `suprank data import` holds some out by --holdout-classes 0.5, or name a "
            "manifest of them in data.tests.",
            err=True,
        )
    terminal.echo(f"model: {result.folder / 'model'}")
    if result.best is not None:
        best = result.best
        is_undefined = best["value"] is None or math.isnan(best["value"])
        value = "--" if is_undefined else f"{100 * best['value']:.2f}"
        terminal.echo(f"best:  {result.folder / 'best'}, epoch {best['epoch']}, {best['metric']} {value}")
