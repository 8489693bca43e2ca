"""suprank evaluate: exact retrieval metrics of embeddings in files."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from suprank.cli import terminal
from suprank.cli.report import AgainstFrozen

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.table import Table

    from suprank.embedding import Provenance
    from suprank.evaluation import Report
    from suprank.evaluation.embeddings import Embeddings
    from suprank.evaluation.tables import Labels

PROVENANCE = "embeddings"  # entry of a report's settings: what made the embeddings
RUN_FILES = (".trec", ".run", ".txt", ".json", ".csv")
GROUND_TRUTH_ALONE = (
    "--ground-truth judges a folder of `suprank embed`; --level, --metric, --weight, --decay, --against and --run are for "
    "labels."
)
_UNITS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


def evaluate(
    embeddings: Annotated[
        Path,
        typer.Option(
            help="Embeddings of the queries, one a row: .npy, .parquet or .pt; or a folder of `suprank embed` or of a run."
        ),
    ],
    labels: Annotated[
        Path | None,
        typer.Option(
            help="Their labels in the same order: .csv, .tsv, .parquet or integers in .npy.", show_default="those of the folder"
        ),
    ] = None,
    gallery: Annotated[
        Path | None, typer.Option(help="Embeddings to rank.", show_default="every query against all the others")
    ] = None,
    gallery_labels: Annotated[Path | None, typer.Option(help="Labels of the gallery; empty or -1 is a distractor.")] = None,
    ground_truth: Annotated[
        Path | None,
        typer.Option(
            metavar="gnd_*.pkl", help="Validator a folder by the file of revisited Oxford or Paris, instead of by labels."
        ),
    ] = None,
    level: Annotated[
        list[str] | None,
        typer.Option(help="A label column, repeatable, finest first.", show_default="those that begin with label"),
    ] = None,
    id: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="Rows with equal ids are one item: a query's own is not ranked.")
    ] = None,
    k: Annotated[
        list[int] | None,
        typer.Option(min=1, help="Length of a list, repeatable; --metric names its own.", show_default="1 10 100"),
    ] = None,
    metric: Annotated[
        list[str] | None,
        typer.Option(help="AP, R@1, mAP@R, H-AP, NDCG, AP/genus, ..., repeatable.", show_default="all that apply"),
    ] = None,
    decay: Annotated[
        float | None, typer.Option(help="Of the relevance of coarser levels, (l/L)^decay.", show_default="the run's, or 1")
    ] = None,
    weight: Annotated[
        list[str] | None, typer.Option(metavar="LEVEL=WEIGHT", help="Of a level in wAP, repeatable.", show_default="equal")
    ] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda or cuda:N.", show_default="cuda if there is one")] = None,
    memory_budget: Annotated[str | None, typer.Option(metavar="SIZE", help="Memory to use, such as 2GiB or 500MB.")] = None,
    bootstrap: Annotated[int, typer.Option(min=0, help="Samples for 95% intervals; 0 for none.")] = 0,
    per_query: Annotated[bool, typer.Option("--per-query", help="Keep the values of every query beside --out.")] = False,
    out: Annotated[Path | None, typer.Option(metavar="REPORT.json", help="Save the report.")] = None,
    csv: Annotated[Path | None, typer.Option(metavar="REPORT.csv", help="Save the values as CSV.")] = None,
    latex: Annotated[bool, typer.Option("--latex", help="Print a header and a row of a LaTeX table.")] = False,
    against: Annotated[
        Path | None,
        typer.Option(metavar="OTHER.json", help="Compare with a report that --per-query --out saved, query by query."),
    ] = None,
    against_frozen: AgainstFrozen = False,
    test: Annotated[
        str | None, typer.Option(metavar="NAME", help="Which test set of a run's recipe.", show_default="the first")
    ] = None,
    run: Annotated[Path | None, typer.Option(metavar="RUN.trec", help="Save the rankings: .trec, .json or .csv.")] = None,
    run_k: Annotated[int, typer.Option(min=1, help="Items of each ranking that --run saves.")] = 100,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print no table and no progress.")] = False,
) -> None:
    """Exact retrieval metrics, flat and hierarchical, of embeddings in files that may be larger than memory.

    Label columns are named label_<level>, finest first, as in our manifests; otherwise name them with --level.

    \b
    What `suprank embed` wrote, every test image a query against the others, or query against gallery:
      suprank evaluate --embeddings embeddings
    A run of `suprank train`, with the numbers of its own report; and beside its backbone before training:
      suprank evaluate --embeddings runs/roadmap
      suprank evaluate --embeddings runs/roadmap --against-frozen
    Revisited Oxford, by its own judgments:
      suprank evaluate --embeddings roxford --ground-truth gnd_roxford5k.pkl
    Every row a query against all the others:
      suprank evaluate --embeddings test.npy --labels test.csv
    Queries against a gallery, two levels, with intervals, saved for later:
      suprank evaluate --embeddings q.npy --labels q.csv --gallery g.npy --gallery-labels g.csv \\
        --level species --level genus --bootstrap 1000 --per-query --out ours.json
    Against an earlier report, query by query:
      suprank evaluate --embeddings new.parquet --labels new.parquet --against ours.json
    """
    _check_sources(embeddings, labels, gallery, gallery_labels, id)
    if per_query and out is None:
        raise typer.BadParameter("values per query are saved beside the report; add --out.", param_hint="--per-query")
    if run is not None and run.suffix.lower() not in RUN_FILES:
        raise typer.BadParameter(f"{run} must end in one of {', '.join(RUN_FILES)}.", param_hint="--run")
    if against is not None and against_frozen:
        raise typer.BadParameter("--against and --against-frozen both name what to compare with; give one.")
    if (against_frozen or test is not None) and not (embeddings / "recipe.toml").is_file():
        raise typer.BadParameter(f"--against-frozen and --test are for a folder of `suprank train`; {embeddings} is none.")
    budget = None if memory_budget is None else _bytes(memory_budget)
    with terminal.plain_errors("a smaller --memory-budget"), terminal.plain_warnings(_warning):
        from suprank import evaluation

        target = terminal.device(device)
        for file in (out, csv, run):
            if file is not None:
                terminal.check_writable(file)
        earlier = None if against is None else _earlier(against)
        if ground_truth is not None:
            is_run = (embeddings / "recipe.toml").is_file()
            if not embeddings.is_dir() or is_run or any((level, metric, weight, against, run, decay is not None)):
                raise ValueError(GROUND_TRUTH_ALONE)
            report = _revisited(embeddings, ground_truth, tuple(k or (1, 5, 10)), target, budget, per_query, bootstrap, quiet)
            _print_and_save(report, quiet=quiet, out=out, csv=csv, latex=embeddings.stem if latex else None, chosen=True)
            return
        if (embeddings / "recipe.toml").is_file():
            read = _read_run(embeddings, test, level or [], device, quiet)
        else:
            read = _read(embeddings, labels, gallery, gallery_labels, level or [], id)
        options = {
            "ks": tuple(k or (1, 10, 100)),
            "decay": read.decay if decay is None else decay,
            "weights": _weights(weight or [], read.labels.names),
            "device": target,
            "memory_budget": budget,
            "metrics": metric or None,
            "per_query": per_query or earlier is not None or against_frozen,
            "bootstrap": bootstrap,
        }
        report = _evaluated(read, "evaluating", quiet, options)
        _print_and_save(report, quiet=quiet, out=out, csv=csv, latex=embeddings.stem if latex else None, chosen=bool(metric))
        if against_frozen:
            frozen = _read_run(embeddings, test, level or [], device, quiet, frozen=True)
            earlier = _evaluated(frozen, "evaluating the backbone before training", quiet, options)
        if earlier is not None:
            _print_comparison(report, earlier, "the backbone before training" if against_frozen else str(against))
        if run is not None:
            with terminal.progress(f"top {run_k}", quiet) as progress:
                found = evaluation.top_k(
                    read.queries,
                    read.gallery,
                    k=run_k,
                    ids=read.ids,
                    gallery_ids=read.gallery_ids,
                    device=target,
                    memory_budget=budget,
                    progress=progress,
                )
            found.save(run)


def _warning(warning: Warning) -> str:
    from suprank.evaluation import QueryInGalleryWarning

    if not isinstance(warning, QueryInGalleryWarning):
        return str(warning)
    return (
        f"{warning.found}. Leave each query out of its own list: name the column of ids that both label files have with --id, "
        f"or leave out --gallery and --gallery-labels to rank the queries against each other."
    )


def _check_sources(
    embeddings: Path, labels: Path | None, gallery: Path | None, gallery_labels: Path | None, id: str | None
) -> None:
    """Raise where the files named do not make queries, labels and a gallery."""
    if (gallery is None) != (gallery_labels is None):
        raise typer.BadParameter("--gallery and --gallery-labels go together; give both, or neither.")
    if embeddings.is_dir() and (labels, gallery, id) != (None, None, None):
        raise typer.BadParameter("a folder of embeddings brings its labels, gallery and ids; name files instead to use others.")
    if not embeddings.exists() and not embeddings.suffix:
        said = f"there is no folder {embeddings}; give one that `suprank embed` wrote, or a file."
        raise typer.BadParameter(said, param_hint="--embeddings")
    if labels is None and not embeddings.is_dir():
        raise typer.BadParameter("embeddings in a file need their labels; add --labels.", param_hint="--labels")


class _Read(NamedTuple):
    """What the files hold."""

    queries: Embeddings
    gallery: Embeddings | None
    labels: Labels
    ids: Sequence[str] | None
    gallery_ids: Sequence[str] | None
    decay: float = 1.0
    provenance: Provenance | None = None


def _evaluated(read: _Read, what: str, quiet: bool, options: dict[str, Any]) -> Report:
    """The report, which notes what made the embeddings where that is known."""
    from suprank import evaluation

    with terminal.progress(what, quiet) as progress:
        report = evaluation.evaluate(
            read.queries,
            read.labels.queries,
            read.gallery,
            read.labels.gallery,
            level_names=read.labels.names,
            ids=read.ids,
            gallery_ids=read.gallery_ids,
            progress=progress,
            **options,
        )
    if read.provenance is None:
        return report
    return replace(report, settings={**report.settings, PROVENANCE: read.provenance.asdict()})


def _print_comparison(report: Report, other: Report, called: str) -> None:
    """The table of differences, and before it what made both sides, with a warning where that is not the same."""
    from suprank.embedding import Provenance

    terminal.echo(f"\nmine is this evaluation, other is {called}")
    made = [Provenance.from_dict(one.settings.get(PROVENANCE) or {}) for one in (report, other)]
    for name, provenance in zip(("mine", "other"), made, strict=True):
        if provenance is not None:
            terminal.echo(f"{name}: {provenance.summary}")
    mine, others = made
    if mine is not None and others is not None and (warning := mine.warning(others, ("mine", "other"))):
        terminal.echo(f"warning: {warning}", err=True)
    for setting in ("decay", "weights"):
        if (own := report.settings.get(setting)) != (theirs := other.settings.get(setting)):
            terminal.echo(
                f"warning: mine has {setting} {own} and other {theirs}, so that hierarchical metrics do not compare; give the "
                f"same --{setting.removesuffix('s')}.",
                err=True,
            )
    terminal.echo(report.compare(other).table())


def _read(
    embeddings: Path, labels: Path | None, gallery: Path | None, gallery_labels: Path | None, levels: list[str], id: str | None
) -> _Read:
    if labels is None:
        return _read_folder(embeddings, levels)
    from suprank.evaluation.embeddings import Embeddings
    from suprank.evaluation.tables import ids_from, labels_from, read_table

    # Tables first: they are read in no time, and a Parquet file of embeddings is not.
    table = read_table(labels)
    gallery_table = None if gallery_labels is None else read_table(gallery_labels)
    coded = labels_from(table, gallery_table, levels=levels, without=[] if id is None else [id])
    ids = None if id is None else ids_from(table, id)
    gallery_ids = None if id is None or gallery_table is None else ids_from(gallery_table, id)
    queries = Embeddings.of(embeddings, "embeddings")
    table.check_rows(len(queries), queries.name)
    items = None
    if gallery is not None and gallery_table is not None:
        items = Embeddings.of(gallery, "gallery")
        gallery_table.check_rows(len(items), items.name)
    return _Read(queries, items, coded, ids, gallery_ids)


def _read_run(
    folder: Path, test: str | None, levels: list[str], device: str | None, quiet: bool, *, frozen: bool = False
) -> _Read:
    """The test images of a run, embedded if they are not yet: by its model, or by its backbone before training."""
    from suprank.cli.report import Bars
    from suprank.evaluation.embeddings import Embeddings
    from suprank.evaluation.tables import Labels
    from suprank.workflows.run_embeddings import looked_at

    with Bars(quiet) as bars:
        source = looked_at(folder, test, device, bars, frozen=frozen)
    if unknown := [level for level in levels if level not in source.levels]:
        raise ValueError(f"{folder} has no level {unknown[0]!r}; choose from {', '.join(source.levels)}.")
    source = source.at(levels or source.levels)
    queries, gallery = source.queries, source.gallery
    own = Embeddings.of(queries.embeddings, source.name)
    labels = Labels(source.levels, queries.labels, None if source.against_each_other else gallery.labels)
    if source.against_each_other:
        return _Read(own, None, labels, queries.ids, None, source.decay, source.provenance)
    items = Embeddings.of(gallery.embeddings, f"the gallery of {source.name}")
    return _Read(own, items, labels, queries.ids, gallery.ids, source.decay, source.provenance)


def _read_folder(folder: Path, levels: list[str]) -> _Read:
    from suprank.embedding import Provenance, ranked_parts
    from suprank.embedding.result import embedded_parts
    from suprank.evaluation.embeddings import Embeddings
    from suprank.evaluation.tables import Labels
    from suprank.workflows.embedded import read_folder

    names, queries, gallery = read_folder(folder, levels)
    source = Embeddings.of(queries.embeddings, str(folder))
    made = Provenance.read(folder, ranked_parts(embedded_parts(folder))[0])
    if gallery is None:
        return _Read(source, None, Labels(names, queries.labels), queries.ids, None, provenance=made)
    items = Embeddings.of(gallery.embeddings, f"the gallery of {folder}")
    return _Read(source, items, Labels(names, queries.labels, gallery.labels), queries.ids, gallery.ids, provenance=made)


def _revisited(
    folder: Path,
    ground_truth: Path,
    ks: tuple[int, ...],
    device: str | None,
    budget: int | None,
    per_query: bool,
    bootstrap: int,
    quiet: bool,
) -> Report:
    """AP and P@k by the three protocols; k is 1, 5, 10 there unless given."""
    from suprank import evaluation
    from suprank.workflows.embedded import judged_by

    truth = evaluation.read_ground_truth(ground_truth)
    queries, gallery = judged_by(folder, truth)
    with terminal.progress("evaluating", quiet) as progress:
        return evaluation.revisited(
            queries, gallery, truth, ks, device, budget, progress, per_query=per_query, bootstrap=bootstrap
        )


def _bytes(text: str) -> int:
    """`2GiB`, `2G` and `2147483648` are the same; `2GB` is 2 · 10⁹."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?b)?", text.strip().lower())
    size = float(found[1]) * (1000 if found[3] == "b" else 1024) ** _UNITS[found[2]] if found else 0
    if size < 1:
        raise typer.BadParameter(f"{text!r} is not a size; write 2GiB, 500MB or bytes.", param_hint="--memory-budget")
    return int(size)


def _weights(given: list[str], levels: tuple[str, ...]) -> dict[str, float] | None:
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


def _earlier(path: Path) -> Report:
    from suprank.evaluation import Report
    from suprank.evaluation.embeddings import check_file

    check_file(path, str(path))
    report = Report.load(path)
    if report.per_query is None:
        raise ValueError(f"{path} holds no values per query, which a comparison needs; make it again with --per-query.")
    return report


def _print_and_save(
    report: Report, *, quiet: bool, out: Path | None, csv: Path | None, latex: str | None, chosen: bool
) -> None:
    """Saves first: a closed pipe must not cost the numbers. Prints also where that fails, on a full disk for example."""
    try:
        if out is not None:
            report.save(out)
        if csv is not None:
            report.to_csv(csv)
    finally:
        if not quiet:
            print_report(report)
        if latex is not None:
            # All that was asked for; or else, because rows of eighty numbers fit no page, what carries no level's name.
            keys = list(report) if chosen else [key for key in report if "/" not in key]
            terminal.echo(f"{report.latex_header(keys)}\n{report.latex_row(keys, label=latex)}")


def print_report(report: Report) -> None:
    """The table of a report, and how many queries and items it is of."""
    from rich.console import Console

    console, table = Console(), _table(report)
    # A table wider than the terminal, or than the 80 columns of a pipe, is worth more whole than cut.
    needed = console.measure(table, options=console.options.update(width=10_000)).maximum
    console.width = max(console.width, needed)
    console.print(table)
    terminal.echo(_counts(report))


def _table(report: Report) -> Table:
    """Metrics as rows, in percent; a column for each level, for their mean, and for metrics that look at all levels."""
    from rich.table import Table
    from rich.text import Text

    from suprank.evaluation.names import OVERALL, Metric, parse

    together = "all levels"
    rows: dict[str, dict[str, str]] = {}
    for key in report.values:
        metric = parse(key)
        column = metric.level or (together if metric.hierarchical and len(report.levels) > 1 else report.levels[0])
        rows.setdefault(str(Metric(metric.name, metric.k)), {})[column] = key
    columns = [name for name in (*report.levels, OVERALL, together) if any(name in cells for cells in rows.values())]
    table = Table("%")
    for name in columns:
        table.add_column(Text(terminal.escaped(name)), justify="right")
    for name, cells in rows.items():
        table.add_row(name, *(_cell(report, cells[column]) if column in cells else "" for column in columns))
    return table


def _cell(report: Report, key: str) -> str:
    value, interval = report.values[key], (report.intervals or {}).get(key)
    if math.isnan(value):
        return "--"
    between = "" if interval is None else f" \\[{100 * interval[0]:.2f}, {100 * interval[1]:.2f}]"
    return f"{100 * value:.2f}{between}"


def _counts(report: Report) -> str:
    lines = [f"{report.queries:,} queries, {report.items:,} items"]
    without = [f"{count:,} at {level}" for level, count in report.without_positives.items() if count]
    if without:
        lines.append(f"queries without positives, left out: {', '.join(without)}")
    if report.intervals:
        lines.append("[low, high]: 95% bootstrap intervals over queries")
    return "\n".join(lines)
