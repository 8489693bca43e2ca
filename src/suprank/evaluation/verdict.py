"""The verdict: which model is better, by how much, on what, and how sure that is, in words, for page, terminal and JSON.

It is made of the same reports and the same comparison as the table of metrics, so that both show the same digits.

    headline metrics    R@1 (or the first R@k of the report) and AP (or mAP@R) at each level; H-AP if there are several levels;
                        if none of these was compared, all that were
    winner              named only if the Holm-corrected p is below `SIGNIFICANT`
    slightly            the difference, as printed, is below `CLEAR` points; "clearly" from there on, and "far" from `FAR` on
    equal               not significant, and the 95 % interval of the difference stays within ± `EQUAL` points
    too few units       so few that p could not fall below `SIGNIFICANT` even if one run were ahead on each of them
    not measurable      not significant otherwise: the two may well differ, by any amount in the interval

A level is won by a run that is ahead there on at least one headline metric and behind on none.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from suprank.evaluation.metric_names import parse_metric
from suprank.evaluation.quoted_metrics import table_keys
from suprank.evaluation.report_comparison import SIGNIFICANT
from suprank.evaluation.report_text import in_words, short_p_value

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from suprank.evaluation import Report, ReportComparison
    from suprank.evaluation.report_comparison import MetricComparison

CLEAR, FAR = 2.0, 10.0  # points
EQUAL = 1.0  # points
MAX_LEVELS = 3  # of more levels, only the finest and the coarsest are described

Names = tuple[str, str]

_NAN = "–"

_SCALES = {
    "AP": "; 100 would mean that all images of the right class come before all others",
    "H-AP": ", over all levels together",
}


class Headline(NamedTuple):
    """A metric of the verdict: its key and its level, which is empty for a metric over all levels."""

    key: str
    level: str

    @property
    def metric(self) -> str:
        return self.key.partition("/")[0]


class Point(NamedTuple):
    """What the verdict says about a level."""

    topic: str
    text: str


class Verdict(NamedTuple):
    """A sentence that answers, and the details by level."""

    lead: str
    points: tuple[Point, ...]


class Finding(NamedTuple):
    """The comparison of a metric. `too_few`: there are not enough units for any difference to be significant."""

    headline: Headline
    row: MetricComparison
    too_few: bool

    @property
    def winner(self) -> int | None:
        return self.row.winner

    @property
    def equal(self) -> bool:
        low, high = 100 * self.row.low, 100 * self.row.high
        return self.winner is None and not self.too_few and -EQUAL <= low <= high <= EQUAL


def headlines(reports: Sequence[Report], keys: Sequence[str] | None = None) -> list[Headline]:
    """The metrics of the verdict, by level from the finest, of these keys, by default those of the table of metrics."""
    keys = table_keys(reports) if keys is None else keys
    found = []
    for level in reports[0].levels:
        # A flat metric without a level is that of the finest level.
        names = {parse_metric(key).name: key for key in reversed(keys) if _level(key, reports[0]) == level}
        wanted = (names.get("R"), names.get("AP", names.get("mAP@R")))
        found += [Headline(key, level) for key in wanted if key is not None]
    found += [Headline(key, "") for key in keys if key == "H-AP"]
    return found or [Headline(key, _level(key, reports[0])) for key in keys]


def _level(key: str, report: Report) -> str:
    metric = parse_metric(key)
    level = metric.level or report.levels[0]
    return "" if metric.hierarchical or level not in report.levels else level


# One run


def run_verdict(report: Report, chance: Mapping[str, float]) -> Verdict:
    """How often the first item is right at each level, and the AP, in words; `chance` is R@1 of a random order by level."""
    by_name: dict[str, list[Headline]] = {}
    for one in headlines([report]):
        if not math.isnan(report[one.key]):
            by_name.setdefault(one.metric, []).append(one)
    if not by_name:
        return Verdict(_nothing(report), ())
    points, lead = [], ""
    for name, found in by_name.items():
        values = in_words(f"{percent(report[one.key])}{_interval(report, one)}{_for(one, report)}" for one in found)
        points.append(Point(name, f"{values}{_SCALES.get(name, '')}."))
        if (k := parse_metric(name).k) is not None:
            shares = in_words(f"the right {one.level} for {percent(report[one.key])} %" for one in found)
            lead = f"{'The first item has' if k == 1 else f'One of the first {k} items has'} {shares} of the queries."
        if name == "R@1":
            by_chance = in_words(f"{percent(chance[one.level])}{_for(one, report)}" for one in found)
            points.append(Point("by chance", f"a random order would have R@1 {by_chance}."))
    return Verdict(lead or f"{points[0].topic} is {points[0].text}", tuple(points))


def _for(one: Headline, report: Report) -> str:
    return f" for {one.level}" if one.level and len(report.levels) > 1 else ""


def _interval(report: Report, one: Headline) -> str:
    low, high = (report.intervals or {}).get(one.key, (math.nan, math.nan))
    return "" if math.isnan(low) or low == high else f" ({percent(low)} to {percent(high)})"


# Two runs


def comparison_verdict(names: Names, reports: Sequence[Report], comparison: ReportComparison) -> Verdict:
    """Who is ahead on what, by how much, and how sure that is. Swapping the runs gives the same statement."""
    findings = compare_headlines(reports, comparison)
    levels = _described_levels(reports[0])
    points = []
    for level in [*levels, ""]:
        found = sorted((one for one in findings if one.headline.level == level), key=lambda one: one.winner is None)
        if found:
            points.append(Point(level or "all levels together", _sentences(names, found)))
    if levels != reports[0].levels:
        points.append(Point("other levels", "See the table of metrics."))
    return Verdict(_lead(names, findings, reports[0], comparison), tuple(points))


def _units(comparison: ReportComparison) -> str:
    return "classes" if comparison.units.level else "queries"


def winners_of(findings: Iterable[Finding]) -> set[int]:
    """The numbers of the runs that are significantly ahead on one of the metrics."""
    return {one.winner for one in findings if one.winner is not None}


def compare_headlines(reports: Sequence[Report], comparison: ReportComparison) -> list[Finding]:
    """The comparison of each headline metric; `comparison` has them all."""
    least = comparison.smallest_p * sum(not math.isnan(row.p_value) for row in comparison)
    found = [(one, comparison[one.key]) for one in headlines(reports, [row.metric for row in comparison])]
    return [Finding(one, row, not row.identical and (math.isnan(row.p_value) or not least < SIGNIFICANT)) for one, row in found]


def _described_levels(report: Report) -> tuple[str, ...]:
    levels = report.levels
    return levels if len(levels) <= MAX_LEVELS else (levels[0], levels[-1])


def _lead(names: Names, findings: Sequence[Finding], report: Report, comparison: ReportComparison) -> str:
    both = f"{names[0]} and {names[1]}"
    measured = [one for one in findings if one.row.queries]
    if not measured:
        return _nothing(report)
    if all(one.row.identical for one in measured):
        return f"{both} are equally good on every single query."
    if not winners_of(measured):
        if all(one.row.identical or one.too_few for one in measured):
            return f"There are too few {_units(comparison)} to tell whether {both} differ."
        if all(one.row.identical or one.equal for one in measured):
            return f"{both} are equally good, to within {EQUAL:g} point."
        ahead = [[row.metric for row in comparison if row.winner == number] for number in (0, 1)]
        others = in_words(f"{name} is better on {in_words(keys)}" for name, keys in zip(names, ahead, strict=True) if keys)
        tested = f" on {in_words(dict.fromkeys(one.headline.metric for one in measured))}; {others}" if others else ""
        return f"The test finds no measurable difference between {both}{tested}."
    by_level = [[one for one in measured if one.headline.level == level] for level in report.levels]
    by_level = [found for found in by_level if found]
    overall = [one for one in measured if not one.headline.level and one.winner is not None]
    parts = [
        f"{_better(names, one)} over all levels together{_numbers([one])}"
        for one in overall
        if one.winner not in winners_of(level for found in by_level for level in found)
    ]
    parts += _wins(names, by_level, report)
    if open_part := _open(by_level, report):
        parts.append(f"no measurable difference {open_part}")
    return ("Neither is better throughout: " if len(winners_of(measured)) > 1 else "") + "; ".join(parts) + "."


def _wins(names: Names, by_level: Sequence[Sequence[Finding]], report: Report) -> list[str]:
    """Who is better at which levels; levels that are won on the same metrics are named together."""
    groups: dict[tuple[str, ...], list[Finding]] = {}
    for found in by_level:
        won = [one for one in found if one.winner is not None]
        if len(winners_of(won)) == 1:
            groups.setdefault((_better(names, won[0]), *(one.headline.metric for one in won)), []).extend(won)
        elif won:
            ahead = in_words(f"{names[one.winner or 0]} is ahead on {one.headline.metric}" for one in won)
            groups.setdefault((ahead,), []).extend(won)
    parts: dict[str, list[str]] = {}
    for (text, *_), won in groups.items():
        levels = tuple(dict.fromkeys(one.headline.level for one in won))
        everywhere = "" if len(levels) == 1 else " at every level"
        where = everywhere if levels == report.levels else f" at {in_words(levels)}"
        parts.setdefault(text, []).append(f"{where}{_numbers(won)}".strip())
    return [f"{text} {in_words(places)}" for text, places in parts.items()]


def _open(by_level: Sequence[Sequence[Finding]], report: Report) -> str:
    """The metrics and the levels on which nobody is ahead."""
    levels = [found[0].headline.level for found in by_level if not winners_of(found)]
    if len(levels) == len(report.levels):
        return "at any single level"
    others = [one for found in by_level for one in found if winners_of(found)]
    metrics = [
        metric
        for metric in dict.fromkeys(one.headline.metric for one in others)
        if not winners_of(one for one in others if one.headline.metric == metric)
    ]
    anywhere = " at any level" if len(report.levels) > 1 else ""
    texts = [f"in {in_words(metrics)}{anywhere}"] if metrics else []
    return ", and none ".join([*texts, *([f"at {in_words(levels)}"] if levels else [])])


def _better(names: Names, one: Finding) -> str:
    return f"{names[one.winner or 0]} is better than {names[1 - (one.winner or 0)]}"


def _numbers(findings: Sequence[Finding]) -> str:
    """The significant differences, from the least to the largest of each metric, and the largest p."""
    won = [one for one in findings if one.winner is not None]
    if not won:
        return ""
    texts = []
    for metric in dict.fromkeys(one.headline.metric for one in won):
        sizes = sorted(abs(one.row.difference) for one in won if one.headline.metric == metric)
        ends = dict.fromkeys(percent(size, sign=True) for size in (sizes[0], sizes[-1]))
        texts.append(f"{metric} {' to '.join(ends)}")
    largest = p_value(max(one.row.p_holm for one in won))
    equal = len({p_value(one.row.p_holm) for one in won}) == 1
    return f" ({', '.join(texts)}; {_p(largest) if equal else f'p ≤ {largest}'})"


def _sentences(names: Names, findings: Sequence[Finding]) -> str:
    """What the comparison of the metrics of a level says, with its numbers."""
    if len(winners_of(findings)) == 1 and all(one.winner is not None for one in findings):
        return f"{names[findings[0].winner or 0]} {in_words(_ahead(one) for one in findings)}."
    return " ".join(_sentence(names, one) for one in findings)


def _sentence(names: Names, one: Finding) -> str:
    row, metric, level = one.row, one.headline.metric, one.headline.level
    if not row.queries:
        return f"{metric} could not be measured: no query shares its {level or 'class'} with an item."
    if one.winner is not None:
        return f"{names[one.winner]} {_ahead(one)}."
    if one.row.identical:
        return f"{metric} is the same for every query ({percent(row.mine)})."
    numbers = f"{metric} {percent(row.mine)} and {percent(row.other)}"
    if not math.isnan(row.low):
        low, high = (percent(end, sign=True) for end in (row.low, row.high))
        numbers += f", difference between {low} and {high}"
    if not math.isnan(row.p_holm):
        numbers += f", {_p(p_value(row.p_holm))}"
    if one.too_few:
        return f"Too few classes to tell whether {_topic(one)} differs ({numbers})."
    if one.equal:
        return f"{_topic(one).capitalize()} is equal to within {EQUAL:g} point ({numbers})."
    return f"{_topic(one).capitalize()} does not differ measurably ({numbers})."


def _ahead(one: Finding) -> str:
    """What the winner does better, with both numbers, the winner's first."""
    points = round(100 * abs(one.row.difference), 1)
    size = "slightly" if points < CLEAR else "clearly" if points < FAR else "far"
    metric, level = parse_metric(one.headline.key), one.headline.level
    if metric.name == "R":
        place = "as its first item" if metric.k == 1 else f"among its first {metric.k} items"
        text = f"has the right {level} {place} {size} more often"
    elif level:
        text = f"ranks images of the right {level} {size} higher"
    else:
        text = f"ranks by closeness in the label tree {size} better"
    values = [percent(one.row.mine), percent(one.row.other)][:: -1 if one.winner else 1]
    difference, p = percent(abs(one.row.difference), sign=True), _p(p_value(one.row.p_holm))
    return f"{text} ({one.headline.metric} {' against '.join(values)}: {difference}, {p})"


def _topic(one: Finding) -> str:
    metric = parse_metric(one.headline.key)
    if metric.name != "R":
        return "the whole ranking"
    return "how often the first item is right" if metric.k == 1 else f"how often one of the first {metric.k} items is right"


def _p(text: str) -> str:
    return f"p {text}" if text.startswith("<") else f"p = {text}"


def _nothing(report: Report) -> str:
    if not report.n_queries:
        return "There is no query, so nothing could be measured."
    return "Nothing could be measured: no query shares its class with an item."


def percent(value: float, *, sign: bool = False) -> str:
    """A fraction in percent with one decimal, with a minus sign instead of a hyphen, and a dash for NaN.

    Example:
        >>> percent(0.1234), percent(-0.1234, sign=True), percent(-0.0001, sign=True), percent(math.nan)
        ('12.3', '−12.3', '+0.0', '–')
    """
    return _NAN if math.isnan(value) else f"{100 * value:{'+' if sign else ''}z.1f}".replace("-", "−")


def p_value(value: float) -> str:
    """A p-value in two or three decimals."""
    return short_p_value(value, _NAN)
