"""suprank evaluate: compute exact retrieval metrics of a run, of embeddings in files, or of ranked lists."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from suprank.cli import gap as gap_command
from suprank.cli import ground_truth as benchmarks
from suprank.cli import terminal
from suprank.cli.embed import TrustCode
from suprank.cli.evaluate_options import check_options, check_sources, parse_bytes, parse_weights
from suprank.cli.metric_table import print_report
from suprank.cli.report import AgainstFrozen

if TYPE_CHECKING:
    from suprank.evaluation import Report
    from suprank.workflows.evaluation import EvaluationInput

RUN_FILES = (".trec", ".run", ".txt", ".json", ".csv")
ONLY_WITH_LABELS = (
    "--ground-truth is for a folder of `suprank embed`; --level, --metric, --weight, --decay, --against and --run are for "
    "labels."
)


def evaluate(
    context: typer.Context,
    embeddings: Annotated[
        Path | None,
        typer.Argument(
            metavar="EMBEDDINGS",
            help="A folder of `suprank train` or `suprank embed`; or embeddings of the queries, one per row, in .npy, .parquet "
            "or .pt; or, with --solution, a file of predictions.",
        ),
    ] = None,
    labels: Annotated[
        Path | None,
        typer.Option(
            help="Labels of the queries, in the same order: .csv, .tsv, .parquet, or integers in .npy.",
            show_default="those of the folder",
        ),
    ] = None,
    gallery: Annotated[
        Path | None,
        typer.Option(help="Embeddings of the gallery.", show_default="every query is ranked against all the others"),
    ] = None,
    gallery_labels: Annotated[
        Path | None, typer.Option(help="Labels of the gallery; an item whose label is empty or -1 is a distractor.")
    ] = None,
    ground_truth: Annotated[
        Path | None,
        typer.Option(metavar="gnd_*.pkl", help="Evaluate with the file of revisited Oxford or Paris instead of with labels."),
    ] = None,
    solution: Annotated[
        Path | None,
        typer.Option(metavar="SOLUTION.csv", help="Compute GLDv2's mAP@100 of predictions (id,images) against its solution."),
    ] = None,
    usage: Annotated[
        str | None, typer.Option(metavar="Public|Private", help="Queries of --solution to score.", show_default="both")
    ] = None,
    gap: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="BATCH_SIZE", help="Measure the decomposability gap of batches of this size, and its bounds for AP."
        ),
    ] = None,
    thresholds: Annotated[
        tuple[float, float] | None,
        typer.Option(metavar="ALPHA BETA", help="Thresholds of L_DG in the bounds of --gap.", show_default="0.9 0.6"),
    ] = None,
    level: Annotated[
        list[str] | None,
        typer.Option(help="Label column; repeatable, finest first.", show_default="columns that begin with label"),
    ] = None,
    id: Annotated[
        str | None,
        typer.Option(metavar="COLUMN", help="Column of ids. A query is not ranked against the item with its own id."),
    ] = None,
    k: Annotated[
        list[int] | None,
        typer.Option(
            min=1,
            help="Cut-off k of R@k, P@k and the like; repeatable. --metric names its own.",
            show_default="the run's, or 1 10 100; 100 with --solution",
        ),
    ] = None,
    metric: Annotated[
        list[str] | None,
        typer.Option(
            help="Metric to compute: AP, R@1, mAP@R, H-AP, NDCG, AP/genus, ...; repeatable.",
            show_default="all that apply; AP with --gap",
        ),
    ] = None,
    decay: Annotated[
        float | None, typer.Option(help="Exponent α of the relevance (l/L)^α in H-AP.", show_default="the run's, or 1")
    ] = None,
    weight: Annotated[
        list[str] | None,
        typer.Option(metavar="LEVEL=WEIGHT", help="Weight of a level in wAP; repeatable.", show_default="the run's, or equal"),
    ] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda or cuda:N.", show_default="cuda if available")] = None,
    memory_budget: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Memory to use beside the embeddings, such as 2GiB or 500MB.")
    ] = None,
    bootstrap: Annotated[int, typer.Option(min=0, help="Bootstrap samples for 95% intervals; 0 for none.")] = 0,
    per_query: Annotated[bool, typer.Option("--per-query", help="Save the values of every query beside --out.")] = False,
    out: Annotated[Path | None, typer.Option(metavar="REPORT.json", help="Save the report.")] = None,
    csv: Annotated[Path | None, typer.Option(metavar="REPORT.csv", help="Save the values as CSV.")] = None,
    latex: Annotated[bool, typer.Option("--latex", help="Print the header and the row of a LaTeX table.")] = False,
    against: Annotated[
        Path | None,
        typer.Option(metavar="OTHER.json", help="Compare query by query with a report that --per-query --out saved."),
    ] = None,
    against_frozen: AgainstFrozen = False,
    test: Annotated[
        str | None, typer.Option(metavar="NAME", help="Test set of the run's recipe.", show_default="the first")
    ] = None,
    trust_code: TrustCode = False,
    run: Annotated[Path | None, typer.Option(metavar="RUN.trec", help="Save the rankings as .trec, .json or .csv.")] = None,
    run_k: Annotated[int, typer.Option(min=1, help="Items per query that --run saves.")] = 100,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print no table and no progress.")] = False,
    embeddings_option: Annotated[Path | None, typer.Option("--embeddings", hidden=True)] = None,
) -> None:
    """Compute exact retrieval metrics, flat and hierarchical. Embeddings in files may be larger than memory.

    Label columns are named label_<level>, finest first, as in our manifests; otherwise name them with --level.

    \b
    Embeddings from `suprank embed`, every test image against the others, or queries against the gallery:
      suprank evaluate embeddings
    A run of `suprank train`, with the numbers of its own report; and beside its backbone before training:
      suprank evaluate runs/roadmap
      suprank evaluate runs/roadmap --against-frozen
    Revisited Oxford, with its own ground truth:
      suprank evaluate roxford --ground-truth gnd_roxford5k.pkl
    Every row against all the others:
      suprank evaluate test.npy --labels test.csv
    Queries against a gallery, two levels, with intervals, saved for later:
      suprank evaluate q.npy --labels q.csv --gallery g.npy --gallery-labels g.csv \\
        --level species --level genus --bootstrap 1000 --per-query --out ours.json
    Against an earlier report, query by query:
      suprank evaluate new.parquet --labels new.parquet --against ours.json
    The decomposability gap of AP in batches of 256, with its upper bounds:
      suprank evaluate runs/roadmap --gap 256
    GLDv2's mAP@100 of ranked lists, which --run predictions.csv saves:
      suprank evaluate predictions.csv --solution retrieval_solution_v2.1.csv
    """
    subject = terminal.subject(embeddings, embeddings_option, "EMBEDDINGS", "--embeddings")
    check_options(context)
    is_run = (subject / "recipe.toml").is_file()
    if solution is None:
        check_sources(subject, labels, gallery, gallery_labels, id)
    if per_query and out is None:
        raise typer.BadParameter("values per query are saved beside the report; add --out.", param_hint="--per-query")
    if run is not None and run.suffix.lower() not in RUN_FILES:
        raise typer.BadParameter(f"{run} must end in one of {', '.join(RUN_FILES)}.", param_hint="--run")
    if against is not None and against_frozen:
        raise typer.BadParameter("--against and --against-frozen both name what to compare with; give one.")
    if (against_frozen or test is not None) and not is_run:
        raise typer.BadParameter(f"--against-frozen and --test are for a folder of `suprank train`, which {subject} is not.")
    budget = None if memory_budget is None else parse_bytes(memory_budget)
    with terminal.plain_errors("a smaller --memory-budget"), terminal.plain_messages(_warning):
        from suprank.evaluation.report_files import write_file
        from suprank.workflows.evaluation import EvaluationInput

        target = terminal.device(device)
        for file in (out, csv, run):
            if file is not None:
                terminal.check_writable(file)
        other = None if against is None else _read_report(against)
        saving: dict[str, Any] = {"quiet": quiet, "out": out, "csv": csv, "latex": subject.stem if latex else None}
        if ground_truth is not None:
            if not subject.is_dir() or is_run or any((level, metric, weight, against, run, decay is not None)):
                raise ValueError(ONLY_WITH_LABELS)
            report = benchmarks.revisited_report(
                subject, ground_truth, tuple(k or (1, 5, 10)), target, budget, per_query, bootstrap, quiet
            )
            _print_and_save(report, all_columns=True, **saving)
            return
        if solution is not None:
            report = benchmarks.landmark_report(subject, solution, usage, k or [100], per_query or other is not None, bootstrap)
            _print_and_save(report, all_columns=True, **saving)
            if (unanswered := report.settings["unanswered"]) and not quiet:
                terminal.echo(f"queries without a prediction, which count as 0: {unanswered:,}")
            if other is not None:
                _print_comparison(report, other, str(against))
            return

        def read(*, frozen: bool = False) -> EvaluationInput:
            with terminal.ProgressBars(quiet) as bars:
                return EvaluationInput.read(
                    subject,
                    labels,
                    gallery,
                    gallery_labels,
                    levels=level or [],
                    id_column=id,
                    test=test,
                    frozen=frozen,
                    trust_code=trust_code,
                    device=device,
                    progress=bars,
                )

        data = read()
        if gap is not None:
            measured = gap_command.measure_gap(
                data,
                gap,
                metric or ["AP"],
                thresholds or (0.9, 0.6),
                decay=decay,
                weights=parse_weights(weight or [], data.labels.names),
                device=target,
                budget=budget,
                quiet=quiet,
            )
            if out is not None:
                write_file(out, (json.dumps(measured, indent=1, allow_nan=False) + "\n").encode())
            if not quiet:
                terminal.echo(gap_command.gap_table(measured))
            return
        options: dict[str, Any] = {
            "ks": tuple(k) if k else None,
            "decay": decay,
            "weights": parse_weights(weight or [], data.labels.names),
            "device": target,
            "memory_budget": budget,
            "metrics": metric or None,
            "per_query": per_query or other is not None or against_frozen,
            "bootstrap": bootstrap,
        }
        with terminal.progress("evaluating", quiet) as progress:
            report = data.evaluate(progress=progress, **options)
        _print_and_save(report, all_columns=bool(metric), **saving)
        if against_frozen:
            before_training = read(frozen=True)
            with terminal.progress("evaluating the backbone before training", quiet) as progress:
                other = before_training.evaluate(progress=progress, **options)
        if other is not None:
            _print_comparison(report, other, "the backbone before training" if against_frozen else str(against))
        if run is not None:
            _save_rankings(data, run, run_k, target, budget, quiet)


def _save_rankings(data: EvaluationInput, file: Path, k: int, device: str | None, budget: int | None, quiet: bool) -> None:
    from suprank import evaluation

    with terminal.progress(f"top {k}", quiet) as progress:
        rankings = evaluation.top_k(
            data.queries,
            data.gallery,
            k=k,
            ids=data.ids,
            gallery_ids=data.gallery_ids,
            device=device,
            memory_budget=budget,
            progress=progress,
        )
    rankings.save(file)


def _warning(warning: Warning) -> str:
    from suprank.evaluation import QueryInGalleryWarning

    if not isinstance(warning, QueryInGalleryWarning):
        return str(warning)
    return (
        f"{warning.summary}. To leave each query out of its own list, name the column of ids in both label files with --id, "
        f"or leave out --gallery and --gallery-labels to rank the queries against each other."
    )


def _print_comparison(report: Report, other: Report, name: str) -> None:
    """Print the table of differences, after the models that made both sides, with a warning where these differ."""
    from suprank.embedding import Provenance
    from suprank.workflows.evaluation import PROVENANCE

    terminal.echo(f"\nmine is this evaluation, other is {name}")
    mine, theirs = (Provenance.from_dict(one.settings.get(PROVENANCE) or {}) for one in (report, other))
    for side, provenance in (("mine", mine), ("other", theirs)):
        if provenance is not None:
            terminal.echo(f"{side}: {provenance.summary}")
    if mine is not None and theirs is not None and (warning := mine.warning(theirs, ("mine", "other"))):
        terminal.echo(f"warning: {warning}", err=True)
    for setting in ("decay", "weights"):
        if (own := report.settings.get(setting)) != (others := other.settings.get(setting)):
            terminal.echo(
                f"warning: mine has {setting} {own} and other {others}, so that hierarchical metrics do not compare; give the "
                f"same --{setting.removesuffix('s')}.",
                err=True,
            )
    terminal.echo(report.compare(other).table())


def _read_report(path: Path) -> Report:
    from suprank.evaluation import Report
    from suprank.evaluation.embedding_files import check_file

    check_file(path, str(path))
    report = Report.load(path)
    if report.per_query is None:
        raise ValueError(f"{path} holds no values per query, which a comparison needs; compute it again with --per-query.")
    return report


def _print_and_save(
    report: Report, *, quiet: bool, out: Path | None, csv: Path | None, latex: str | None, all_columns: bool
) -> None:
    """Save the report, then print it: a closed pipe must not lose the numbers. It is printed even if saving fails."""
    try:
        if out is not None:
            report.save(out)
        if csv is not None:
            report.to_csv(csv)
    finally:
        if not quiet:
            print_report(report)
        if latex is not None:
            # By default without the metrics of single levels: a row of eighty numbers fits no page.
            keys = list(report) if all_columns else [key for key in report if "/" not in key]
            terminal.echo(f"{report.latex_header(keys)}\n{report.latex_row(keys, label=latex)}")
