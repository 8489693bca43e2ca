"""The options of `suprank evaluate`: their values, which go together, and how sizes and weights are read."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from suprank.cli import terminal

if TYPE_CHECKING:
    from suprank.workflows.evaluation import EvaluationInput


class ProtocolName(StrEnum):
    """The names of `suprank.evaluation.PROTOCOLS`, which needs torch."""

    DML = "dml"
    MIEB = "mieb"
    REVISITED = "revisited"
    GLDV2 = "gldv2"


class SelfMatchRule(StrEnum):
    """What --protocol mieb does about the query in its own list."""

    FIRST = "first"
    ID = "id"
    KEEP = "keep"


ALWAYS = {"embeddings", "embeddings_option", "out", "quiet"}
WITH = {
    "gap": {
        *("thresholds", "labels", "gallery", "gallery_labels", "level", "fill_gaps", "id", "metric", "decay", "weight"),
        *("label_separator", "device", "memory_budget", "test", "trust_code", "head"),
    },
    "solution": {"protocol", "usage", "k", "intervals", "per_query", "csv", "latex", "against", "comparison"},
    "run": {
        *("qrels", "relevance_threshold", "missing", "no_positives", "metric"),
        *("intervals", "per_query", "csv", "latex", "against", "comparison"),
    },
}
"""Options that may be combined with --gap, with --solution, and with --run."""
WITHOUT_PROTOCOL = {
    **dict.fromkeys(("metric", "decay", "weight"), "a protocol has its own metrics"),
    **dict.fromkeys(("gap", "run"), "a protocol is for embeddings"),
    "save_run": "--save-run saves lists by our own conventions",
    "checkpoint": "a protocol is evaluated from start to end",
}
"""Options that contradict any --protocol, and why."""
GROUND_TRUTH = {"qrels": "mieb", "self_match": "mieb", "ground_truth": "revisited", "solution": "gldv2"}
"""Options that one protocol has, or needs."""
ONLY_WITH = {"gap": ("thresholds",), "solution": ("usage",), "run": ("relevance_threshold", "missing", "no_positives")}
RUN_FILES = (".trec", ".run", ".txt", ".json", ".csv")
_UNITS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


@dataclass(frozen=True, kw_only=True)
class EvaluateOptions:
    """What is evaluated, with which settings, and where the results go."""

    subject: Path
    labels: Path | None
    gallery: Path | None
    gallery_labels: Path | None
    levels: list[str]
    id_column: str | None
    fill_gaps: bool
    label_separator: str | None
    test: str | None
    trust_code: bool
    head: Path | None
    ks: tuple[int, ...] | None
    metrics: list[str] | None
    every_metric: bool
    decay: float | None
    weights: list[str]
    device: str | None
    memory_budget: int | None
    intervals: bool
    per_query: bool
    out: Path | None
    csv: Path | None
    latex: bool
    against: Path | None
    against_frozen: bool
    comparison: Path | None
    save_run: Path | None
    save_run_k: int
    quiet: bool
    checkpoint: Path | None = None
    protocol: str | None = None
    qrels: Path | None = None
    self_match: str | None = None
    solution: Path | None = None
    usage: str | None = None

    @property
    def protocol_settings(self) -> dict[str, Any]:
        """The protocol and its ground truth, as `EvaluationInput.evaluate` takes them."""
        if self.protocol is None:
            return {}
        given = {"qrels": self.qrels, "self_match": self.self_match, "solution": self.solution, "usage": self.usage}
        return {"protocol": self.protocol, **{name: value for name, value in given.items() if value is not None}}

    @property
    def against_itself(self) -> bool:
        """Whether --head and --against ask for the same embeddings with and without the head."""
        return self.head is not None and self.against is not None and self.against.resolve() == self.subject.resolve()

    @property
    def is_run(self) -> bool:
        """Whether a folder of `suprank train` is evaluated."""
        return (self.subject / "recipe.toml").is_file()

    def check(self) -> None:
        """Refuse options that contradict each other."""
        if self.per_query and self.out is None:
            raise typer.BadParameter("values per query are saved beside the report; add --out.", param_hint="--per-query")
        if self.save_run is not None and self.save_run.suffix.lower() not in RUN_FILES:
            raise typer.BadParameter(f"{self.save_run} must end in one of {', '.join(RUN_FILES)}.", param_hint="--save-run")
        if self.against is not None and self.against_frozen:
            raise typer.BadParameter("--against and --against-frozen both name what to compare with; give one.")
        if self.comparison is not None and self.against is None and not self.against_frozen:
            text = "there is nothing to compare with; add --against or --against-frozen."
            raise typer.BadParameter(text, param_hint="--comparison")
        if (self.against_frozen or self.test is not None) and not self.is_run:
            text = f"--against-frozen and --test are for a folder of `suprank train`, which {self.subject} is not."
            raise typer.BadParameter(text)
        if self.fill_gaps and self.labels is None:
            text = f"{self.subject} has its own labels, so there are no gaps in --labels to fill; leave it out."
            raise typer.BadParameter(text, param_hint="--fill-gaps")
        if self.label_separator is not None and self.labels is None:
            text = f"{self.subject} has its own labels, so there are no cells of --labels to divide; leave it out."
            raise typer.BadParameter(text, param_hint="--label-separator")
        if self.every_metric and self.metrics:
            raise typer.BadParameter("--all and --metric both say which metrics to print; give one.")

    def check_files(self) -> None:
        """Refuse files that cannot be written, and ground truth that does not exist, before any work."""
        for file in (self.out, self.csv, self.comparison, self.save_run):
            if file is not None:
                terminal.check_writable(file)
        if self.checkpoint is not None:
            terminal.check_folder(self.checkpoint)
        from suprank.evaluation.embedding_files import check_file

        for file in (self.qrels, self.solution):
            if file is not None:
                check_file(file, str(file))

    def read(self, *, without_head: bool = False) -> EvaluationInput:
        """Read the embeddings and labels; those of a run are computed first if need be. Then the head is applied."""
        from suprank.workflows.evaluation import EvaluationInput

        with terminal.ProgressBars(self.quiet) as bars:
            data = EvaluationInput.read(
                self.subject,
                self.labels,
                self.gallery,
                self.gallery_labels,
                levels=self.levels,
                id_column=self.id_column,
                fill_gaps=self.fill_gaps,
                label_separator=self.label_separator,
                test=self.test,
                trust_code=self.trust_code,
                head=None if without_head else self.head,
                device=self.device,
                labeled=not self.protocol_settings.keys() & {"qrels", "solution"},
                progress=bars,
            )
        if self.labels is not None and not (self.quiet or without_head):
            levels = ", ".join(data.labels.names) or "none"
            terminal.echo(f"{self.labels}: levels, finest first: {levels}; column of ids: {self.id_column or 'none'}", err=True)
        return data


def check_options(context: typer.Context) -> None:
    """Refuse options that have no meaning with --gap, --solution or --run, and those that have one only with them."""
    given = _options_given(context)
    predictions = "protocol" not in given or _is_csv(context.params["embeddings"] or context.params["embeddings_option"])
    for name, others in WITH.items():
        if name == "solution" and not predictions:
            continue  # embeddings, which take other options than a file of predictions
        if name in given and (wrong := sorted(given - {name} - others - ALWAYS)):
            options = ", ".join(map(_option, wrong))
            advice = "name k in --metric, such as NDCG@5" if name == "run" and wrong == ["k"] else "leave out one or the other"
            raise typer.BadParameter(f"{options} cannot be combined with --{name}; {advice}.")
    for name, needing in ONLY_WITH.items():
        for one in needing:
            if one in given and name not in given:
                raise typer.BadParameter(f"{_option(one)} is for --{name}; add it, or leave out {_option(one)}.")
    floor, ceiling = context.params["thresholds"] or (1, 0)
    if not floor > ceiling:
        text = f"α = {floor:g} must be above β = {ceiling:g}; the authors' code has 0.9 and 0.6."
        raise typer.BadParameter(text, param_hint="--thresholds")
    if (usage := context.params["usage"]) not in (None, "Public", "Private"):
        raise typer.BadParameter(f"{usage!r} is not Public or Private; leave it out for both.", param_hint="--usage")


def check_protocol_options(context: typer.Context) -> None:
    """Refuse what contradicts --protocol, and ground truth of another protocol than the one that was chosen."""
    given = _options_given(context)
    chosen = None if context.params["protocol"] is None else context.params["protocol"].value
    if chosen is None:
        if "self_match" in given:
            raise typer.BadParameter("it is for --protocol mieb; add it, or leave out --self-match.", param_hint="--self-match")
        return
    for name, reason in WITHOUT_PROTOCOL.items():
        if name in given:
            raise typer.BadParameter(f"{_option(name)} cannot be combined with --protocol {chosen}: {reason}; leave out one.")
    for name, protocol in GROUND_TRUTH.items():
        if name in given and protocol != chosen:
            raise typer.BadParameter(f"{_option(name)} is for --protocol {protocol}, not for {chosen}; leave out one.")
    if chosen == "revisited" and "ground_truth" not in given:
        raise typer.BadParameter("--protocol revisited needs the dataset's file; add --ground-truth gnd_roxford5k.pkl.")
    if chosen == "dml" and "id" in given:
        raise typer.BadParameter("--protocol dml leaves out each query by its row and not by its id; leave out --id.")
    predictions = _is_csv(context.params["embeddings"] or context.params["embeddings_option"])
    if chosen == "gldv2" and predictions and "solution" not in given:
        raise typer.BadParameter("a file of predictions is scored against GLDv2's solution; add --solution.")


def _is_csv(path: Path | None) -> bool:
    return path is not None and path.suffix.lower() == ".csv"


def check_run_options(context: typer.Context) -> None:
    """Refuse --run without --qrels, --qrels without --run, and both with embeddings."""
    given = _options_given(context)
    embeddings = given & {"embeddings", "embeddings_option"}
    if "run" in given and "qrels" not in given:
        saved = " To save the rankings of embeddings, write --save-run." if embeddings else ""
        raise typer.BadParameter(f"--run is evaluated against judgments; add --qrels.{saved}", param_hint="--run")
    if "qrels" in given and "run" not in given and context.params["protocol"] is None:
        text = "judgments are for ranked lists, or for embeddings by the rules of mteb; add --run, or --protocol mieb."
        raise typer.BadParameter(text, param_hint="--qrels")
    if "run" in given and embeddings:
        raise typer.BadParameter("EMBEDDINGS and --run both say what to evaluate; give one.")
    for name in ("missing", "no_positives"):
        if (rule := context.params[name]) not in (None, "zero", "skip"):
            raise typer.BadParameter(f"{rule!r} is not zero or skip.", param_hint=_option(name))


def _options_given(context: typer.Context) -> set[str]:
    """The names of the parameters that were written on the command line."""
    sources = {name: context.get_parameter_source(name) for name in context.params}
    return {name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"}


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def check_sources(
    embeddings: Path, labels: Path | None, gallery: Path | None, gallery_labels: Path | None, id: str | None
) -> None:
    """Raise if the files do not make up queries, labels and a gallery."""
    if (gallery is None) != (gallery_labels is None):
        raise typer.BadParameter("--gallery and --gallery-labels go together; give both, or neither.")
    if embeddings.is_dir() and (labels, gallery, id) != (None, None, None):
        raise typer.BadParameter("a folder has its own labels, gallery and ids; to use others, name files instead.")
    if not embeddings.exists() and not embeddings.suffix:
        text = f"there is no folder {embeddings}; name a folder of `suprank train` or `suprank embed`, or a file."
        raise typer.BadParameter(text, param_hint="EMBEDDINGS")
    if labels is None and not embeddings.is_dir():
        raise typer.BadParameter("embeddings in a file need their labels; add --labels.", param_hint="--labels")


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
