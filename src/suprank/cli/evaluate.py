"""suprank evaluate: compute exact retrieval metrics of a training run, of embeddings in files, or of ranked lists."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from suprank.cli import terminal
from suprank.cli.options import AgainstFrozen, Device, HeadFolder, TestSet, TrustCode

if TYPE_CHECKING:
    from suprank.evaluation import Protocol, Report, RetrievalData

WITH_GAP = {
    *("thresholds", "labels", "gallery", "gallery_labels", "level", "fill_gaps", "id_column", "metric", "decay", "weight"),
    *("label_separator", "device", "memory_budget", "test", "trust_code", "head"),
}
WITH_LISTS = {
    *("truth", "relevance_threshold", "missing", "no_positives", "metric", "k", "protocol"),
    *("intervals", "per_query", "csv", "latex", "against", "comparison"),
}
"""Options that may be combined with --gap, and with a file of ranked lists, beside those that always may."""
ALWAYS = {"place", "out", "quiet"}
ONLY_LISTS = ("relevance_threshold", "missing", "no_positives")
RUN_FILES = (".trec", ".run", ".txt", ".json", ".csv")
EMBEDDING_FILES = (".npy", ".parquet", ".pt", ".arrow")
_UNITS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


def evaluate(
    context: typer.Context,
    place: Annotated[
        Path,
        typer.Argument(
            metavar="PLACE",
            help="A folder of `suprank train` or `suprank embed`; or embeddings of the queries, one per row, in .npy, .parquet "
            "or .pt, or several such files, 'shards/*.npy'; or a Hugging Face dataset with a column of embeddings; or "
            "ranked lists: a TREC run (query Q0 item rank score tag), also gzipped, ranx's .json or .parquet, "
            "or predictions for GLDv2 (.csv).",
        ),
    ],
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
    truth: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="What is relevant, in place of labels: judgments (TREC qrels or ranx's .json), the ground truth of revisited "
            "Oxford or Paris (gnd_*.pkl), or GLDv2's solution (.csv), of which :Public or :Private behind the name chooses "
            "queries. Behind judgments, :first, :id or :keep says what is done about the query in its own list.",
        ),
    ] = None,
    protocol: Annotated[
        Literal["dml", "mieb", "revisited", "gldv2"] | None,
        typer.Option(
            help="Evaluate by the conventions and with the metrics of published numbers: deep metric learning, mteb's image "
            "retrieval, revisited Oxford and Paris, or Google Landmarks v2.",
            show_default="that of --truth, or our own",
        ),
    ] = None,
    relevance_threshold: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="GRADE",
            help="Of ranked lists: the lowest grade that is relevant, for all metrics but NDCG; trec_eval's -l.",
            show_default="1",
        ),
    ] = None,
    missing: Annotated[
        Literal["zero", "skip"] | None,
        typer.Option(
            help="Judged queries that the ranked lists do not have: count them as 0, as trec_eval -c does, or leave them out.",
            show_default="zero",
        ),
    ] = None,
    no_positives: Annotated[
        Literal["zero", "skip"] | None,
        typer.Option(
            help="Of ranked lists: count queries without a relevant item as 0, as trec_eval does, or leave them out.",
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
    fill_gaps: Annotated[
        bool,
        typer.Option(
            "--fill-gaps", help="Put a placeholder where a row has a blank between two labels, instead of refusing it."
        ),
    ] = False,
    label_separator: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT",
            help="What stands between the labels of an image that has several at a level, such as '|' in dog|person.",
            show_default="a label is the whole cell",
        ),
    ] = None,
    id_column: Annotated[
        str | None,
        typer.Option(metavar="COLUMN", help="Column of ids. A query is not ranked against the item with its own id."),
    ] = None,
    k: Annotated[
        list[int] | None,
        typer.Option(
            min=1,
            help="Cut-off k of R@k, P@k and the like; repeatable. --metric names its own.",
            show_default="the run's, or 1 10 100",
        ),
    ] = None,
    metric: Annotated[
        list[str] | None,
        typer.Option(
            help="Metric to compute and print: AP, R@1, mAP@R, H-AP, NDCG@10, AP/genus, ndcg_cut_10, ...; repeatable.",
            show_default="all that apply, of which six are printed; AP with --gap; nine of ranked lists",
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
    device: Device = None,
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
            "--labels, other ranked lists, or a report that --per-query --out saved.",
        ),
    ] = None,
    against_frozen: AgainstFrozen = False,
    comparison: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.csv|json", help="Save the comparison, which --out does not have; JSON says what was tested."
        ),
    ] = None,
    test: TestSet = None,
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
      suprank evaluate embeddings --truth cub/qrels.json
    Revisited Oxford, with its own ground truth:
      suprank evaluate roxford --truth gnd_roxford5k.pkl
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
      suprank evaluate predictions.csv --truth retrieval_solution_v2.1.csv:Private
    Ranked lists of any search, text or products, against graded judgments; and two of them compared:
      suprank evaluate bm25.run --truth qrels.txt --metric ndcg_cut_10 --metric MRR@10 --intervals
      suprank evaluate ours.run --truth qrels.txt --against bm25.run
    """
    given = {name for name in context.params if _on_command_line(context, name)}
    _check_options(context.params, given)
    files: dict[str, Any] = {"out": out, "csv": csv, "latex": latex, "quiet": quiet, "name": place.stem}
    shown: dict[str, Any] = {"every_metric": all, "file": comparison}
    with terminal.plain_errors("a smaller --memory-budget"), terminal.plain_messages():
        from suprank import evaluation
        from suprank.cli.metric_comparison import print_comparison, read_report
        from suprank.cli.metric_table import print_and_save
        from suprank.evaluation.protocols import find_protocol
        from suprank.evaluation.truth import read_truth
        from suprank.workflows.evaluation import distinct_names, evaluate_pair, levels_left_out, lists_kind
        from suprank.workflows.heads import load_head
        from suprank.workflows.opening import open_data

        terminal.device(device)
        for file in (out, csv, comparison, save_run):
            if file is not None:
                terminal.check_writable(file)
        if checkpoint is not None:
            terminal.check_folder(checkpoint)
        if lists_kind(place, truth) is not None:
            _refuse(given - WITH_LISTS - ALWAYS, "ranked lists")
            rules: dict[str, Any] = {
                "relevance_threshold": relevance_threshold,
                "missing": missing,
                "no_positives": no_positives,
            }
            rules |= {"metrics": metric or None, "ks": tuple(k) if k else None, "intervals": intervals}
            _evaluate_lists(place, truth, against, per_query, {name: one for name, one in rules.items() if one}, files, shown)
            return
        if wrong := given.intersection(ONLY_LISTS):
            raise ValueError(f"{_options(wrong)}: for ranked lists, such as run.trec; leave it out.")
        known = None if truth is None else read_truth(truth)
        chosen = find_protocol(protocol, known)
        if chosen is not None:
            why = f"--protocol {chosen.name}, which has its own metrics and is evaluated from start to end"
            _refuse(given & {"metric", "decay", "weight", "checkpoint"}, why)
        # What is compared with is checked and read first: an error should not wait for minutes of work.
        itself = head is not None and against is not None and against.resolve() == place.resolve()
        paired = against_frozen or itself or (against is not None and _is_embeddings(place, against, gallery))
        saved = None if against is None or paired else read_report(against)
        _check_protocols(against, chosen, saved, paired=paired)
        loaded = None if head is None else load_head(head, device)
        opened: dict[str, Any] = {"levels": level or (), "id_column": id_column, "fill_gaps": fill_gaps}
        opened |= {"label_separator": label_separator, "trust_code": trust_code, "device": device}
        with terminal.ProgressBars(quiet) as bars:
            before = open_data(place, labels, gallery, gallery_labels, test=test, progress=bars, **opened)
            data = before if loaded is None else before.with_head(loaded, bars)
        if labels is not None and not quiet:
            shown_levels = ", ".join(data.levels) or "none"
            terminal.echo(f"{labels}: levels, finest first: {shown_levels}; column of ids: {id_column or 'none'}", err=True)
        settings: dict[str, Any] = {"decay": decay, "weights": parse_weights(weight or [], data.levels), "device": device}
        settings |= {"memory_budget": None if memory_budget is None else parse_bytes(memory_budget), "metrics": metric or None}
        if gap is not None:
            from suprank.cli.gap import evaluate_gap

            evaluate_gap(data, gap, thresholds or (0.9, 0.6), out=out, quiet=quiet, **settings)
            return
        settings |= {"truth": known, "protocol": None if chosen is None else chosen.name, "ks": tuple(k) if k else None}
        names, other = (data.name, ""), None
        if against is not None or against_frozen:
            beside = place if against is None else against
            names = distinct_names(place, beside, frozen=against_frozen, head=head is not None)
        if paired:
            with terminal.ProgressBars(quiet) as bars:
                other = _other(before, place if against_frozen else against, labels, test, opened, bars, against_frozen, itself)
            data, other = replace(data, name=names[0]), replace(other, name=names[1])
            data.match(other)
        with terminal.progress("evaluating", quiet) as progress:
            resumable: dict[str, Any] = {} if checkpoint is None else {"checkpoint": checkpoint}
            needed = per_query or paired or saved is not None
            report = evaluation.evaluate(
                data, **settings, **resumable, per_query=needed, intervals=intervals, progress=progress
            )
        print_and_save(
            report if per_query else report.without_queries(), **files, keys=_shown_keys(report, chosen, truth, metric, k, all)
        )
        shown |= {"chosen": bool(metric), "ks": k}
        if saved is not None:
            own, theirs = (one.settings.get("self_match") for one in (report, saved))
            if own != theirs:  # known only now: it may depend on where the queries are
                raise ValueError(f"{against} has self_match {theirs!r}, and this report {own!r}: they are not compared.")
            print_comparison(report, saved, names, **shown)
        if other is not None:
            left_out = levels_left_out(names, data, other, chosen=bool(level))
            with terminal.progress(f"evaluating {names[1]}", quiet) as progress:
                pair = evaluate_pair(data, other, {**settings, "progress": progress}, report)
            print_comparison(*pair, names, left_out=left_out, **shown)
        if save_run is not None:
            _save_rankings(data, save_run, save_run_k, settings, quiet=quiet)


def _on_command_line(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _options(names: set[str]) -> str:
    return ", ".join(f"--{name.replace('_', '-')}" for name in sorted(names))


def _refuse(wrong: set[str], what: str) -> None:
    if wrong:
        raise typer.BadParameter(f"{_options(wrong)} cannot be combined with {what}; leave out one or the other.")


def _check_options(values: dict[str, Any], given: set[str]) -> None:
    """Refuse options that contradict each other, or lack another one."""
    if "gap" in given:
        _refuse(given - {"gap"} - WITH_GAP - ALWAYS, "--gap")
    elif "thresholds" in given:
        raise typer.BadParameter("--thresholds is for --gap; add it, or leave out --thresholds.")
    floor, ceiling = values["thresholds"] or (1, 0)
    if not floor > ceiling:
        text = f"α = {floor:g} must be above β = {ceiling:g}; the authors' code has 0.9 and 0.6."
        raise typer.BadParameter(text, param_hint="--thresholds")
    if values["per_query"] and values["out"] is None:
        raise typer.BadParameter("values per query are saved beside the report; add --out.", param_hint="--per-query")
    run = values["save_run"]
    if run is not None and run.suffix.lower() not in RUN_FILES:
        raise typer.BadParameter(f"{run} must end in one of {', '.join(RUN_FILES)}.", param_hint="--save-run")
    if run is not None and (values["protocol"] is not None or values["truth"] is not None):
        raise typer.BadParameter("--save-run saves lists by our own conventions; leave out --protocol and --truth.")
    if values["against"] is not None and values["against_frozen"]:
        raise typer.BadParameter("--against and --against-frozen both name what to compare with; give one.")
    if values["comparison"] is not None and values["against"] is None and not values["against_frozen"]:
        text = "there is nothing to compare with; add --against or --against-frozen."
        raise typer.BadParameter(text, param_hint="--comparison")
    if values["all"] and values["metric"]:
        raise typer.BadParameter("--all and --metric both say which metrics to print; give one.")


def _shown_keys(
    report: Report, protocol: Protocol | None, truth: str | None, metrics: Any, ks: Any, every_metric: bool
) -> list[str] | None:
    """The metrics to print: those named, which are all that the report has; or all; or those that people quote."""
    from suprank.evaluation.protocols import mteb_metric
    from suprank.evaluation.quoted_metrics import distinct_keys, quoted_keys
    from suprank.evaluation.truth import read_task, split_truth

    if protocol is None:
        return None if metrics else distinct_keys(report) if every_metric else quoted_keys(report, ks)
    task = None if truth is None else read_task(split_truth(truth)[0])
    main: list[str] = []
    if task is not None:
        try:  # the main score of a task comes first; one's own task may have any
            main = [mteb_metric(task["main_score"])]
        except ValueError:
            main = []
    quoted = [key for key in dict.fromkeys([*main, *protocol.quoted]) if key in report]
    return None if every_metric or ks or not quoted else quoted


# What is compared with


def _is_embeddings(place: Path, against: Path, gallery: Path | None) -> bool:
    """Whether --against names embeddings, rather than a saved report. Refuse those that cannot be compared with."""
    from suprank.workflows.evaluation import distinct_names

    if not against.exists() and not against.suffix:
        raise ValueError(
            f"there is no folder {against} to compare with; name a folder of `suprank train` or `suprank embed`, a file of "
            f"embeddings, or a report that --per-query --out saved."
        )
    is_file = against.suffix.lower() in EMBEDDING_FILES and not against.is_dir()
    if (against.is_dir() and not place.is_dir()) or (is_file and place.is_dir()):
        one, other = (against, place) if against.is_dir() else (place, against)
        raise ValueError(
            f"{one} is a folder and {other} a file, so that nothing says which of their images are the same; compare two "
            f"folders, or two files of embeddings with the same --labels."
        )
    if is_file and gallery is not None:
        raise ValueError(
            f"{against} has no gallery of its own, and --gallery is that of {place}; save the report of {against} and its "
            f"gallery with --per-query --out OTHER.json, and give --against OTHER.json."
        )
    if is_file or against.is_dir():
        distinct_names(place, against)  # refuses to compare something with itself
    return is_file or against.is_dir()


def _check_protocols(against: Path | None, protocol: Protocol | None, saved: Report | None, *, paired: bool) -> None:
    """Refuse to compare with a report of another protocol, and with embeddings where lists may have other queries."""
    own = None if protocol is None else protocol.name
    other = own if saved is None else saved.settings.get("protocol")
    if other != own:
        by = "without a protocol" if other is None else f"by --protocol {other}"
        raise ValueError(f"{against} was evaluated {by}, and its numbers mean something else; evaluate it again.")
    if paired and own in ("mieb", "gldv2", "revisited"):
        raise ValueError(
            f"--protocol {own} is compared with a saved report; evaluate the other one with --per-query --out OTHER.json, and "
            f"give --against OTHER.json."
        )


def _other(
    before: RetrievalData,
    against: Path | None,
    labels: Path | None,
    test: str | None,
    opened: dict[str, Any],
    bars: terminal.ProgressBars,
    frozen: bool,
    itself: bool,
) -> RetrievalData:
    """The other side of the comparison, embedded first where need be; without the head, ours are the same embeddings."""
    from suprank.workflows.opening import open_data

    if itself:
        return before
    assert against is not None
    is_run = (against / "recipe.toml").is_file()
    chosen = {"levels": (), "id_column": None, "fill_gaps": False, "label_separator": None} if against.is_dir() else {}
    return open_data(against, labels, frozen=frozen, test=test if is_run else None, progress=bars, **{**opened, **chosen})


# Ranked lists


def _evaluate_lists(
    place: Path,
    truth: str | None,
    against: Path | None,
    per_query: bool,
    rules: dict[str, Any],
    files: dict[str, Any],
    shown: dict[str, Any],
) -> None:
    """Print and save the metrics of ranked lists; then compare them with others, or with a saved report, if asked."""
    from suprank.cli.metric_comparison import print_comparison, read_report
    from suprank.cli.metric_table import print_and_save
    from suprank.evaluation.embedding_files import check_file
    from suprank.evaluation.quoted_metrics import distinct_keys
    from suprank.evaluation.report_files import is_report
    from suprank.workflows.evaluation import distinct_names, evaluate_lists

    names = None if against is None else distinct_names(place, against)
    for file in (place, *([] if against is None else [against])):
        check_file(file, str(file))
    saved = read_report(against) if against is not None and is_report(against) else None
    # Both are read before anything is printed: an error in the second file should not come after the numbers of the first.
    report = evaluate_lists(place, truth, per_query=True, **rules)
    other = saved if against is None or saved is not None else evaluate_lists(against, truth, per_query=True, **rules)
    if saved is not None:
        _check_rules(report, saved, against)
    named = "metrics" in rules or "protocol" in report.settings
    print_and_save(report if per_query else report.without_queries(), **files, keys=None if named else distinct_keys(report))
    if not files["quiet"]:
        _print_counts(report)
    if other is not None and names is not None:
        _print_counts(other, f"{names[1]}: ")
        print_comparison(report, other, names, **{**shown, "chosen": named, "every_metric": not named})


def _check_rules(report: Report, saved: Report, against: Path | None) -> None:
    """Refuse to compare with a report whose numbers mean something else."""
    for name in (*ONLY_LISTS, "protocol"):
        own, theirs = report.settings.get(name), saved.settings.get(name)
        if own != theirs:
            raise ValueError(f"{against} was computed with {name} {theirs}, and this report with {own}; evaluate it again.")


def _print_counts(report: Report, name: str = "") -> None:
    """Say which queries are not like the others, and what became of them; `name` is the run that is compared with, if it is."""
    settings = report.settings
    becomes = {"zero": "which count as 0", "skip": "left out"}
    counts = [] if name else [("unanswered", "queries without a prediction, which count as 0")]
    if "missing" in settings:
        counts += [("queries_missing", f"queries that the run does not have, {becomes[settings['missing']]}")]
        if settings["no_positives"] == "zero" and not name:
            counts += [("queries_without_positives", "queries without a relevant item, which count as 0")]
        counts += [("queries_not_judged", "queries of the run without judgments, ignored")]
    for key, text in counts:
        if settings.get(key):
            terminal.echo(f"{name}{text}: {settings[key]:,}")


def _save_rankings(data: RetrievalData, file: Path, k: int, settings: dict[str, Any], *, quiet: bool) -> None:
    from suprank import evaluation

    gallery = data.gallery
    with terminal.progress(f"top {k}", quiet) as progress:
        found = evaluation.top_k(
            data.queries.embeddings,
            None if gallery is None else gallery.embeddings,
            k=k,
            ids=data.queries.ids,
            gallery_ids=None if gallery is None else gallery.ids,
            device=settings["device"],
            memory_budget=settings["memory_budget"],
            progress=progress,
        )
    found.run().save(file)


def parse_bytes(text: str) -> int:
    """`2GiB`, `2G` and `2147483648` are the same; `2GB` is 2 · 10⁹."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?b)?", text.strip().lower())
    size = float(match[1]) * (1000 if match[3] == "b" else 1024) ** _UNITS[match[2]] if match else 0
    if size < 1:
        raise typer.BadParameter(f"{text!r} is not a size; write 2GiB, 500MB or bytes.", param_hint="--memory-budget")
    return int(size)


def parse_weights(given: list[str], levels: tuple[str, ...]) -> dict[str, float] | None:
    weights: dict[str, float] = {}
    for text in given:
        name, equals, number = text.rpartition("=")
        level = name if name in levels else name.removeprefix("label_")
        if not equals or not re.fullmatch(r"\d+(\.\d*)?|\.\d+", number):
            raise typer.BadParameter(f"{text!r} is not LEVEL=WEIGHT; write {levels[0]}=0.5.", param_hint="--weight")
        if level not in levels:
            raise typer.BadParameter(f"there is no level {name!r}; choose from {', '.join(levels)}.", param_hint="--weight")
        if level in weights:
            raise typer.BadParameter(f"level {level!r} has two weights; give one.", param_hint="--weight")
        weights[level] = float(number)
    return weights or None
