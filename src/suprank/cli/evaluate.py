"""suprank evaluate: compute exact retrieval metrics of a training run, of embeddings in files, or of ranked lists."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from suprank.cli import terminal
from suprank.cli.embed import HeadFolder
from suprank.cli.evaluate_options import (
    EvaluateOptions,
    ProtocolName,
    SelfMatchRule,
    check_options,
    check_protocol_options,
    check_run_options,
    check_sources,
    parse_bytes,
)
from suprank.cli.report import AgainstFrozen
from suprank.cli.train import TrustCode


def evaluate(
    context: typer.Context,
    embeddings: Annotated[
        Path | None,
        typer.Argument(
            metavar="EMBEDDINGS",
            help="A folder of `suprank train` or `suprank embed`; or embeddings of the queries, one per row, in .npy, .parquet "
            "or .pt, or several such files, 'shards/*.npy'; or, with --solution, a file of predictions.",
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
        typer.Option(
            help="Embeddings of the gallery, in a file or in 'shards/*.npy'.",
            show_default="every query is ranked against all the others",
        ),
    ] = None,
    gallery_labels: Annotated[
        Path | None, typer.Option(help="Labels of the gallery; an item whose label is empty or -1 is a distractor.")
    ] = None,
    protocol: Annotated[
        ProtocolName | None,
        typer.Option(
            help="Evaluate by the conventions and with the metrics of published numbers: deep metric learning, mteb's image "
            "retrieval, revisited Oxford and Paris, or Google Landmarks v2.",
            show_default="our own",
        ),
    ] = None,
    self_match: Annotated[
        SelfMatchRule | None,
        typer.Option(
            help="With --protocol mieb: drop the first result of each list, the item with the query's id, or nothing.",
            show_default="the task's; first if the queries are in the gallery",
        ),
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
    run: Annotated[
        Path | None,
        typer.Option(
            metavar="RUN",
            help="Evaluate ranked lists of any search against --qrels: a TREC run (query Q0 item rank score tag), perhaps "
            "gzipped, or ranx's .json or .parquet.",
        ),
    ] = None,
    qrels: Annotated[
        Path | None,
        typer.Option(
            metavar="QRELS",
            help="Graded judgments for --run, or for --protocol mieb: TREC qrels (query 0 item grade), or ranx's .json or "
            ".parquet.",
        ),
    ] = None,
    relevance_threshold: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="GRADE",
            help="Lowest grade that is relevant in --qrels, for all metrics but NDCG; trec_eval's -l.",
            show_default="1",
        ),
    ] = None,
    missing: Annotated[
        str | None,
        typer.Option(
            metavar="zero|skip",
            help="Queries of --qrels that --run does not have: count them as 0, as trec_eval -c does, or leave them out.",
            show_default="zero",
        ),
    ] = None,
    no_positives: Annotated[
        str | None,
        typer.Option(
            metavar="zero|skip",
            help="Queries of --qrels without a relevant item: count them as 0, as trec_eval does, or leave them out.",
            show_default="zero",
        ),
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
        typer.Option(
            help="Label column; repeatable, finest first.", show_default="columns that begin with label, or the only one"
        ),
    ] = None,
    fill_gaps: terminal.FillGaps = False,
    label_separator: terminal.LabelSeparator = None,
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
            help="Metric to compute and print: AP, R@1, mAP@R, H-AP, NDCG@10, AP/genus, ndcg_cut_10, ...; repeatable.",
            show_default="all that apply, of which six are printed; AP with --gap; nine with --run",
        ),
    ] = None,
    all: Annotated[bool, typer.Option("--all", help="Print all metrics, not only the six that people quote most.")] = False,
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
    checkpoint: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Save the values of finished queries in this folder; after a kill, the same command goes on with the others.",
        ),
    ] = None,
    intervals: Annotated[bool, typer.Option("--intervals", help="Add 95% intervals, for new classes.")] = False,
    per_query: Annotated[bool, typer.Option("--per-query", help="Save the values of every query beside --out.")] = False,
    out: Annotated[Path | None, typer.Option(metavar="REPORT.json", help="Save the report.")] = None,
    csv: Annotated[Path | None, typer.Option(metavar="REPORT.csv", help="Save the values as CSV.")] = None,
    latex: Annotated[bool, typer.Option("--latex", help="Print the header and the row of a LaTeX table.")] = False,
    against: Annotated[
        Path | None,
        typer.Option(
            metavar="OTHER",
            help="Compare query by query with another run, folder of `suprank embed`, file of embeddings with the same "
            "--labels, or report that --per-query --out saved; with --run, with another run file.",
        ),
    ] = None,
    against_frozen: AgainstFrozen = False,
    comparison: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.csv|json", help="Save the comparison, which --out does not have; JSON says what was tested."
        ),
    ] = None,
    test: Annotated[
        str | None, typer.Option(metavar="NAME", help="Test set of the run's recipe.", show_default="the first")
    ] = None,
    trust_code: TrustCode = False,
    head: HeadFolder = None,
    save_run: Annotated[
        Path | None, typer.Option(metavar="RUN.trec", help="Save the rankings as .trec, .json or .csv.")
    ] = None,
    save_run_k: Annotated[int, typer.Option(min=1, help="Items per query that --save-run saves.")] = 100,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print no table and no progress.")] = False,
) -> None:
    """Compute exact retrieval metrics, flat and hierarchical. Embeddings in files may be larger than memory.

    Label columns are named label_<level>, finest first, as in our manifests; otherwise name them with --level.

    \b
    Embeddings from `suprank embed`, every test image against the others, or queries against the gallery:
      suprank evaluate embeddings
    A run of `suprank train`, with the numbers of its own report; and beside its backbone before training:
      suprank evaluate runs/roadmap
      suprank evaluate runs/roadmap --against-frozen
    All metrics instead of six; and two models compared on the same test images:
      suprank evaluate runs/roadmap --all
      suprank evaluate runs/roadmap --against runs/smooth-ap
    The same embeddings after a head of `suprank adapt`, and before it; --head never applies to what --against names:
      suprank evaluate embeddings --head head --against embeddings
    As deep metric learning papers do; and as mteb does, on a task of `suprank data import mteb`:
      suprank evaluate embeddings --protocol dml --k 1 --k 10 --k 100
      suprank evaluate embeddings --protocol mieb --qrels cub/qrels.json
    Revisited Oxford, with its own ground truth:
      suprank evaluate roxford --ground-truth gnd_roxford5k.pkl
    Every row against all the others:
      suprank evaluate test.npy --labels test.csv
    Queries against a gallery, two levels, with intervals, saved for later:
      suprank evaluate q.npy --labels q.csv --gallery g.npy --gallery-labels g.csv \\
        --level species --level genus --intervals --per-query --out ours.json
    Against an earlier report, query by query:
      suprank evaluate new.parquet --labels new.parquet --against ours.json
    A collection larger than memory, which goes on after a kill:
      suprank evaluate q.npy --labels q-labels.npy --gallery 'shards/*.npy' --gallery-labels labels.npy \\
        --checkpoint evaluation --out report.json
    The decomposability gap of AP in batches of 256, with its upper bounds:
      suprank evaluate runs/roadmap --gap 256
    GLDv2's mAP@100 of ranked lists, which --save-run predictions.csv saves:
      suprank evaluate predictions.csv --solution retrieval_solution_v2.1.csv
    Ranked lists of any search, text or products, against graded judgments; and two of them compared:
      suprank evaluate --run bm25.run --qrels qrels.txt --metric ndcg_cut_10 --metric MRR@10 --intervals
      suprank evaluate --run ours.run --qrels qrels.txt --against bm25.run
    """
    check_protocol_options(context)
    check_run_options(context)
    if (subject := run or embeddings) is None:
        raise typer.BadParameter("EMBEDDINGS is missing; see --help.", param_hint="EMBEDDINGS")
    options = EvaluateOptions(
        subject=subject,
        labels=labels,
        gallery=gallery,
        gallery_labels=gallery_labels,
        levels=level or [],
        id_column=id,
        fill_gaps=fill_gaps,
        label_separator=label_separator,
        test=test,
        trust_code=trust_code,
        head=head,
        ks=tuple(k) if k else None,
        metrics=metric or None,
        every_metric=all,
        decay=decay,
        weights=weight or [],
        device=device,
        memory_budget=None if memory_budget is None else parse_bytes(memory_budget),
        intervals=intervals,
        per_query=per_query,
        out=out,
        csv=csv,
        latex=latex,
        against=against,
        against_frozen=against_frozen,
        comparison=comparison,
        save_run=save_run,
        save_run_k=save_run_k,
        quiet=quiet,
        checkpoint=checkpoint,
        protocol=None if protocol is None else protocol.value,
        qrels=qrels,
        self_match=None if self_match is None else self_match.value,
        solution=solution,
        usage=usage,
    )
    check_options(context)
    if ground_truth is not None and checkpoint is not None:
        raise typer.BadParameter("--checkpoint is for labels; leave it out, or --ground-truth.")
    predictions = solution is not None and (protocol is None or options.subject.suffix.lower() == ".csv")
    if not predictions and run is None:
        check_sources(options.subject, labels, gallery, gallery_labels, id)
    options.check()
    with terminal.plain_errors("a smaller --memory-budget"), terminal.plain_messages(_warning):
        from suprank.cli.evaluate_labels import evaluate_labels
        from suprank.cli.evaluate_run import evaluate_run_file
        from suprank.cli.gap import evaluate_gap
        from suprank.cli.ground_truth import evaluate_landmarks, evaluate_revisited

        terminal.device(device)
        options.check_files()
        if run is not None and qrels is not None:
            try:
                evaluate_run_file(options, qrels, relevance_threshold, missing, no_positives)
            except ValueError as error:  # of the library, in the words of the command
                raise ValueError(str(error).replace("relevance_threshold=", "--relevance-threshold ")) from error
        elif ground_truth is not None:
            evaluate_revisited(options, ground_truth)
        elif predictions and solution is not None:
            evaluate_landmarks(options, solution, usage)
        elif gap is not None:
            evaluate_gap(options, gap, thresholds)
        else:
            evaluate_labels(options)


def _warning(warning: Warning) -> str:
    # Of a `QueryInGalleryWarning`. Others may come while suprank.evaluation is being imported, so it cannot be imported here.
    summary = getattr(warning, "summary", None)
    if summary is None:
        return str(warning)
    return (
        f"{summary}. To leave each query out of its own list, name the column of ids in both label files with --id, "
        f"or leave out --gallery and --gallery-labels to rank the queries against each other."
    )
