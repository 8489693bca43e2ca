"""`suprank evaluate` by labels: a run, a folder of embeddings or files, alone or compared with another one."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from suprank.cli import terminal
from suprank.cli.evaluate_options import parse_weights
from suprank.cli.metric_comparison import print_comparison, read_report
from suprank.cli.metric_table import print_and_save

if TYPE_CHECKING:
    from pathlib import Path

    from suprank.cli.evaluate_options import EvaluateOptions
    from suprank.evaluation import Report
    from suprank.workflows.evaluation import EvaluationInput
    from suprank.workflows.evaluation_pair import EvaluationPair


def evaluate_labels(options: EvaluateOptions) -> None:
    """Print and save the metrics; then print the comparison and save the rankings, if asked."""
    # What is compared with is checked and read first: an error should not wait for minutes of work.
    against = options.against
    saved = None if against is None or _is_embeddings(options, against) else read_report(against)
    _check_protocols(options, saved)
    data = options.read()
    settings: dict[str, Any] = {
        "ks": options.ks,
        "decay": options.decay,
        "weights": parse_weights(options.weights, data.labels.names),
        "device": options.device,
        "memory_budget": options.memory_budget,
        "metrics": options.metrics,
        **options.protocol_settings,
    }
    pair = None if saved is not None else _read_pair(options, data)
    common = settings if pair is None else pair.common_settings(settings)
    paired = saved is not None or pair is not None
    resumable: dict[str, Any] = {} if options.checkpoint is None else {"checkpoint": options.checkpoint}
    with terminal.progress("evaluating", options.quiet) as progress:
        report = data.evaluate(
            progress=progress,
            per_query=options.per_query or paired,
            intervals=options.intervals,
            **resumable,
            **settings,
        )
    print_and_save(report, options, _shown_keys(options, report))
    if saved is not None and against is not None:
        own, theirs = (one.settings.get("self_match") for one in (report, saved))
        if own != theirs:  # known only now: it may depend on where the queries are
            raise ValueError(f"{against} has --self-match {theirs}, and this report {own}: they are not compared.")
        from suprank.workflows.evaluation_pair import distinct_names

        _print_comparison(options, report, saved, distinct_names(options.subject, against, head=options.head is not None))
    if pair is not None:
        ours, other = _evaluate_pair(options, data, report, pair, common)
        _print_comparison(options, ours, other, pair.names, pair.left_out)
    if options.save_run is not None:
        _save_rankings(options, data, options.save_run)


def _shown_keys(options: EvaluateOptions, report: Report) -> list[str] | None:
    """The metrics to print: those named, which are all that the report has; or all; or the six that people quote."""
    from suprank.evaluation.quoted_metrics import distinct_keys, quoted_keys

    if options.protocol is not None:
        return _protocol_keys(options, report)
    if options.metrics:
        return None
    return distinct_keys(report) if options.every_metric else quoted_keys(report, options.ks)


def _protocol_keys(options: EvaluateOptions, report: Report) -> list[str] | None:
    """All metrics of a protocol, or those that are quoted: the main score of the task, if it is known, comes first."""
    from suprank.evaluation.protocols import PROTOCOLS, mteb_metric
    from suprank.workflows.evaluation import imported_task

    protocol, task = PROTOCOLS[options.protocol or ""], imported_task(options.qrels)
    main: list[str] = []
    with suppress(ValueError):  # a task of one's own may have any main score
        main = [] if task is None else [mteb_metric(task["main_score"])]
    quoted = [key for key in dict.fromkeys([*main, *protocol.quoted]) if key in report]
    return None if options.every_metric or options.ks or not quoted else quoted


def _check_protocols(options: EvaluateOptions, saved: Report | None) -> None:
    """Refuse to compare with a report of another protocol, and with embeddings where lists may have other queries."""
    own = options.protocol
    other = own if saved is None else saved.settings.get("protocol")
    if other != own:
        by = "without a protocol" if other is None else f"by --protocol {other}"
        raise ValueError(f"{options.against} was evaluated {by}, and its numbers mean something else; evaluate it again.")
    if saved is None and (options.against is not None or options.against_frozen) and own in ("mieb", "gldv2"):
        raise ValueError(
            f"--protocol {own} is compared with a saved report; evaluate the other one with --per-query --out OTHER.json, and "
            f"give --against OTHER.json."
        )


def _is_embeddings(options: EvaluateOptions, against: Path) -> bool:
    """Whether --against names embeddings, rather than a saved report. Refuse those that cannot be compared with."""
    from suprank.workflows.evaluation_pair import EMBEDDING_FILES, distinct_names
    from suprank.workflows.opening import check_place

    subject = options.subject
    if options.against_itself:
        return True
    if not against.exists() and not against.suffix:
        raise ValueError(
            f"there is no folder {against} to compare with; name a folder of `suprank train` or `suprank embed`, a file of "
            f"embeddings, or a report that --per-query --out saved."
        )
    if against.is_dir() and not subject.is_dir():
        raise ValueError(
            f"{against} is a folder and {subject} a file, so that nothing says which of their images are the same; compare "
            f"two folders, or two files of embeddings with the same --labels."
        )
    is_file = against.suffix.lower() in EMBEDDING_FILES and not against.is_dir()
    if is_file and subject.is_dir():
        raise ValueError(
            f"{against} is a file of embeddings, which has no labels and no image names of its own, and {subject} a folder; "
            f"compare two folders, or two files with the same --labels."
        )
    if is_file and options.gallery is not None:
        raise ValueError(
            f"{against} has no gallery of its own, and --gallery is that of {subject}; save the report of {against} and its "
            f"gallery with --per-query --out OTHER.json, and give --against OTHER.json."
        )
    if is_file or against.is_dir():
        distinct_names(subject, against)  # refuses to compare something with itself
        check_place(against)
    return is_file or against.is_dir()


def _read_pair(options: EvaluateOptions, data: EvaluationInput) -> EvaluationPair | None:
    """The other side of the comparison, embedded first where need be; None if nothing is compared."""
    from suprank.workflows.evaluation_pair import pair_with_file, pair_with_folder, pair_without_head

    subject, against = options.subject, options.subject if options.against_frozen else options.against
    if against is None:
        return None
    if options.against_itself:
        return pair_without_head(data, options.read(without_head=True), subject)
    if not against.is_dir():
        assert options.labels is not None
        return pair_with_file(
            data,
            subject,
            against,
            options.labels,
            levels=options.levels,
            id_column=options.id_column,
            fill_gaps=options.fill_gaps,
            label_separator=options.label_separator,
        )
    with terminal.ProgressBars(options.quiet) as bars:
        return pair_with_folder(
            data,
            subject,
            against,
            levels=options.levels,
            test=options.test,
            frozen=options.against_frozen,
            trust_code=options.trust_code,
            device=options.device,
            progress=bars,
        )


def _evaluate_pair(
    options: EvaluateOptions, data: EvaluationInput, report: Report, pair: EvaluationPair, settings: dict[str, Any]
) -> tuple[Report, Report]:
    """The reports of both sides; ours is evaluated again if the other side lacks one of its levels."""
    own = report
    if pair.own is not data:
        with terminal.progress(f"evaluating {pair.names[0]} at common levels", options.quiet) as progress:
            own = pair.own.evaluate(progress=progress, per_query=True, **settings)
    with terminal.progress(f"evaluating {pair.names[1]}", options.quiet) as progress:
        return own, pair.evaluate_other(progress=progress, **settings)


def _print_comparison(
    options: EvaluateOptions, own: Report, other: Report, names: tuple[str, str], left_out: tuple[str, ...] = ()
) -> None:
    print_comparison(
        own,
        other,
        names,
        chosen=options.metrics is not None,
        every_metric=options.every_metric,
        ks=options.ks,
        left_out=left_out,
        file=options.comparison,
    )


def _save_rankings(options: EvaluateOptions, data: EvaluationInput, file: Path) -> None:
    from suprank import evaluation

    with terminal.progress(f"top {options.save_run_k}", options.quiet) as progress:
        rankings = evaluation.top_k(
            data.queries,
            data.gallery,
            k=options.save_run_k,
            ids=data.ids,
            gallery_ids=data.gallery_ids,
            device=options.device,
            memory_budget=options.memory_budget,
            progress=progress,
        )
    rankings.save(file)
