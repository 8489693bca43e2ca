"""suprank compare: train several losses under one budget on one dataset, and show the table and the figure of their metrics."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from suprank.cli import terminal
from suprank.cli.options import Quiet, TrustCode
from suprank.system.custom_code import trusting

On = Annotated[
    str,
    typer.Option(
        metavar="local|ray[=HOST:PORT]|'slurm KEY=VALUE ...'",
        help="Where to train: on this machine, on a Ray cluster, or as a SLURM array with these options of sbatch.",
    ),
]


def compare(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="RECIPE|KEY=VALUE,...",
            help="Recipes (files, or names that `suprank recipes` lists), and entries that hold for all of them; an entry with "
            "several values is an axis.",
            show_default=False,
        ),
    ] = None,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder of the comparison.")] = Path("runs/comparison"),
    seeds: Annotated[
        int | None, typer.Option(min=1, help="Number of runs of each setting, with run.seed=0,1,...", show_default="1")
    ] = None,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Number of runs at the same time.", show_default="1; elsewhere as many as fit")
    ] = None,
    on: On = "local",
    metric: Annotated[
        list[str] | None,
        typer.Option(
            help="A metric of the table and the figure, repeatable.", show_default="R@1, mAP@R, AP, H-AP, ASI and NDCG"
        ),
    ] = None,
    relative_to: Annotated[
        str | None,
        typer.Option(metavar="KEY=VALUE", help="Also show the increase over the runs with this value of an axis."),
    ] = None,
    may_differ: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY|TABLE", help="Key or table in which the recipes may differ too, repeatable."),
    ] = None,
    tune: Annotated[
        int | None,
        typer.Option(
            min=2,
            metavar="N",
            help="Give each recipe N trials on validation classes, taken from the training classes, and compare the best by "
            "evaluation.best.",
            show_default="no tuning",
        ),
    ] = None,
    folds: Annotated[
        int | None,
        typer.Option(min=2, metavar="K", help="Validation folds of --tune: a trial has as many runs.", show_default="4"),
    ] = None,
    search: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=LOW:HIGH[:log]|KEY=V,V",
            help="Range or values of a key that --tune searches, in place of the default; KEY= leaves it out. Repeatable.",
            show_default="rates, images per class and what the loss declares",
        ),
    ] = None,
    fold_level: Annotated[
        str | None,
        typer.Option(
            metavar="LEVEL",
            help="Label level whose classes stay together in a fold.",
            show_default="the coarsest at which train and test share no class",
        ),
    ] = None,
    name: Annotated[str, typer.Option(help="Name of the files of the table and the figure.")] = "comparison",
    collect: Annotated[
        bool,
        typer.Option("--collect", help="Only write table and figure of the finished runs: of these recipes, or of all."),
    ] = False,
    trust_code: TrustCode = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print the commands that would train the runs.")] = False,
    quiet: Quiet = False,
) -> None:
    """Train several losses, or several values of their keys, under one budget on one dataset, and compare their metrics.

    The recipes may differ in their loss, proxies, memory and optimizer; recipes that differ in images, network, batches, epochs
    or evaluation are refused before the first one runs, unless --may-differ allows it. Several values of a key are combined
    with every recipe. Given again, the command skips what is finished and resumes what was interrupted; further recipes, values
    or seeds are added. Metrics are those after the last epoch: mean ± standard deviation over seeds, in percent; the best is
    bold if it is better than every other by more than chance. DIR/comparison.md, .tex, .csv, .png and .svg have them.

    With --tune every recipe gets the same number of trials, chosen by Optuna. The table then has each recipe as it is and with
    its best setting, trained on all training classes and evaluated on the test classes once. --jobs runs trials at the same
    time, also on one GPU.

    With --on ray, or --on ray=10.0.0.1:6379, each run is on whichever machine of a Ray cluster is free; what it has not done
    when it dies is resumed by another one. All machines see the data and DIR under the same names.

    \b
    suprank compare cub/nsm cub/smooth-ap cub/roadmap --seeds 3 --out cub
    suprank compare cub/roadmap loss.weight=0,0.1,0.3,0.5 --seeds 3 --out lambda
    suprank compare cub/roadmap batch.size=32,64,128 loss.weight=0,0.1 --relative-to loss.weight=0 --out batch
    suprank compare cub/nsm mine.toml data.manifest=birds.parquet run.epochs=30 --jobs 2 --out birds
    suprank compare sop/roadmap sop/contrastive-xbm --may-differ batch.size --out sop
    suprank compare cub112/nsm cub112/roadmap --tune 12 --folds 4 --seeds 3 --jobs 8 --out cub112
    suprank compare cub112/roadmap --tune 20 --search loss.weight=0:0.5 --search proxies.lr= --out lambda
    suprank compare cub/nsm cub/roadmap --seeds 5 --on ray --out /shared/cub
    suprank compare cub/nsm cub/roadmap --seeds 5 --on 'slurm partition=gpu time=12:00:00 cpus=8' --out /shared/cub
    suprank compare --collect --metric AP --metric AP/family --out cub
    suprank compare smooth-ap roadmap --collect --name approximations --out cub
    """
    with terminal.plain_errors("fewer --jobs"), trusting(trust_code):
        from suprank import experiments
        from suprank.cli.experiments import CommandDisplay, command_line, exit_if_failed, explain_stop
        from suprank.experiments.methods import split_arguments

        recipes, values = split_arguments(arguments or [])
        display = CommandDisplay(quiet=quiet)
        options = {"--folds": folds, "--search": search, "--fold-level": fold_level}
        unused = [option for option, value in options.items() if value]
        if tune is None and unused:
            raise ValueError(f"{unused[0]} is an option of the search, and there is none without --tune N; add it.")
        settings = None
        if tune is not None:
            settings = experiments.SearchSettings(tune, folds or 4, fold_level or "", search=tuple(search or ()))
        written: dict[str, Any] = {"metrics": metric or (), "name": name, "relative_to": relative_to, "command": command_line()}
        if collect:
            given = [*values, *([] if seeds is None else ["--seeds", str(seeds)])]
            given += [word for key in may_differ or () for word in ("--may-differ", key)]
            given += [] if tune is None else ["--tune", str(tune)]
            if given:
                raise ValueError(f"--collect runs nothing, so {shlex.join(given)} would change nothing; leave it out.")
            experiments.collect(out, recipes, **written, display=display)
            return
        planned: dict[str, Any] = {"seeds": seeds, "may_differ": may_differ or (), "tune": settings, "display": display}
        if dry_run:
            plan = experiments.plan_comparison(recipes, out, values, **planned, relative_to=relative_to)
            for run in plan.runs:
                terminal.echo(run.command)
            if settings is not None:
                runs = settings.trials * settings.folds * len(recipes)
                display.note(f"before these, {runs} runs of the search; after them, {len(plan.runs)} with the best settings.")
            return
        with explain_stop(out):
            result = experiments.compare(recipes, out, values, **planned, **written, jobs=jobs, on=on)
    exit_if_failed(result.failed, result.planned)
