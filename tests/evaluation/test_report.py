"""Reports: what they answer, print, save, and how they compare; by hand, and for any values."""

import copy
import csv
import io
import json
import math
import pickle
import tempfile
from collections.abc import Mapping
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from suprank.evaluation.metric_names import FLAT, FULL, LEVEL_MEANS, Metric
from suprank.evaluation.report import Report

PLENTY = settings(deadline=None, max_examples=60)
NAN = math.nan
FRACTIONS = st.floats(0, 1) | st.just(NAN)
LEVELS = st.lists(
    st.text(st.characters(codec="utf-8", exclude_characters="\n\r"), min_size=1).filter(lambda name: name not in LEVEL_MEANS),
    unique=True,
    max_size=3,
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3).map(tuple) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


def report_of(per_query, **others):
    """The report on these values per query, as an evaluation would make it."""
    per_query = {key: np.array(values, dtype=float) for key, values in per_query.items()}
    values = {key: float(np.nanmean(array)) if (array == array).any() else NAN for key, array in per_query.items()}
    queries = len(next(iter(per_query.values())))
    return Report(values, **{"n_queries": queries, "n_items": 10, "per_query": per_query} | others)


@st.composite
def contents(draw):
    """What a report is made of. It is made in the test: a check of types draws random numbers, which a strategy may not."""
    levels = tuple(draw(LEVELS))
    keys = ["R@1", "AP", "H-AP", "NDCG"]
    keys += [str(Metric(name, 5 if name in ("R", "P") else None, level)) for name in ("R", "P", "MRR") for level in levels]
    queries = draw(st.integers(0, 5))
    ids = st.integers(-9, 9), st.text(st.characters(codec="utf-8", exclude_characters="\0"))
    return {
        "means": {key: draw(FRACTIONS) for key in keys},
        "n_queries": queries,
        "n_items": draw(st.integers(0, 10**7)),
        "levels": levels,
        "without_positives": {level: draw(st.integers(0, 99)) for level in levels},
        "settings": draw(st.dictionaries(st.text(), JSON, max_size=3)),
        "per_query": draw(
            st.none() | st.fixed_dictionaries(dict.fromkeys(keys, arrays(np.float64, queries, elements=FRACTIONS)))
        ),
        "query_ids": draw(st.none() | st.one_of(*(st.lists(one, min_size=queries, max_size=queries) for one in ids))),
        "classes": draw(
            st.none() | st.dictionaries(st.text(), arrays(np.int64, queries, elements=st.integers(-1, 9)), max_size=3)
        ),
        "intervals": draw(st.none() | st.fixed_dictionaries(dict.fromkeys(keys, st.tuples(FRACTIONS, FRACTIONS)))),
    }


@pytest.fixture
def report():
    values = {"R@1": 0.75, "AP": 0.5, "H-AP": 0.6125, "R@1/species": 0.75, "R@1/genus": 1.0, "AP/species": 0.5, "AP/genus": NAN}
    return Report(
        {**values, "AP/overall": 0.625},
        n_queries=5924,
        n_items=60502,
        levels=("species", "genus"),
        without_positives={"species": 12, "genus": 0},
        settings={"ks": (1,), "decay": 1.0},
    )


# Looking up


def test_values_are_found_by_key_by_alias_and_in_any_case(report):
    assert report["R@1"] == report["hit_rate@1"] == report["r@1"] == 0.75
    assert report["mean_average_precision"] == report["map/species"] == 0.5
    assert "ap/genus" in report
    assert report.get("hap") == 0.6125


def test_a_report_is_read_as_a_dictionary_in_the_order_of_its_metrics(report):
    assert list(report) == ["R@1", "AP", "H-AP", "R@1/species", "R@1/genus", "AP/species", "AP/genus", "AP/overall"]
    assert len(report) == 8
    assert list(dict(report)) == list(report)
    assert dict(report)["AP/overall"] == 0.625


def test_what_a_report_does_not_hold_is_not_in_it(report):
    for key in ("NDCG", "AP/Genus", "nonsense", "NMI", 3, None):
        assert key not in report
    assert report.get("NDCG") is report.get("nonsense") is None
    assert report.get("NDCG", -1.0) == -1


@pytest.mark.parametrize(
    ("key", "complaint"),
    [
        ("R@7", "no R@7 in this report, the nearest is R@1; evaluate with ks that hold 7"),
        ("MRR@7", "no MRR@7 in this report, .*; evaluate with this metric"),
        ("AP/family", "no AP/family in this report, the nearest is AP/.*; its levels are species, genus"),
        ("P@1", "no P@1 .* the nearest is R@1; evaluate with this metric, or choose from R@1, AP, H-AP"),
        ("R@1/overall", "no R@1/overall .* evaluate with this metric"),
        ("NDGC", "unknown metric 'NDGC'; the nearest known name is NDCG"),
        ("AMI", "clustering"),
    ],
)
def test_a_missing_key_is_named_with_the_nearest_one_and_the_way_to_it(report, key, complaint):
    with pytest.raises(KeyError, match=complaint):
        report[key]


def test_an_empty_report_says_that_it_is_empty():
    with pytest.raises(KeyError, match="no AP in this report, which is empty"):
        Report({}, n_queries=0, n_items=0)["AP"]


# The table


def test_the_table_has_a_row_for_each_metric_and_a_column_for_each_level(report):
    assert str(report) == report.table()
    assert report.table().splitlines() == [
        "5,924 queries, 60,502 items",
        "queries without positives, left out: 12 (species)",
        "",
        "%     all levels  species   genus  overall",
        "R@1                 75.00  100.00",
        "AP                  50.00      --    62.50",
        "H-AP       61.25",
    ]


def test_the_table_shows_intervals_aligned_with_each_other():
    report = Report(
        {"R@1": 1.0, "AP": 0.05, "NDCG": NAN},
        n_queries=1,
        n_items=1,
        intervals={"R@1": (0.995, 1.0), "AP": (0.041, 0.0625)},
        settings={"intervals": {"samples": 1000, "confidence": 0.9, "seed": 0}},  # as older versions saved them
    )
    assert report.table().splitlines() == [
        "1 query, 1 item",
        "[low, high]: 90% intervals",
        "Bootstrapped over queries.",
        "",
        "%                      value",
        "R@1   100.00 [99.50, 100.00]",
        "AP      5.00 [ 4.10,   6.25]",
        "NDCG      --",
    ]


def test_names_of_any_script_keep_the_columns_straight():
    levels = ("属", "e\u0301te\u0301", "\N{BIRD} bird")  # of two cells, of three (two marks have no width), of seven
    report = Report({f"AP/{level}": 0.5 for level in levels}, n_queries=2, n_items=2, levels=levels)
    assert report.table().splitlines()[2:] == [
        "%      属    e\u0301te\u0301  \N{BIRD} bird",
        "AP  50.00  50.00    50.00",
    ]


def test_names_cannot_move_the_cursor():
    report = Report({"AP/a\tb\x1b[2J\u202e": 0.5}, n_queries=1, n_items=1, levels=("a\tb\x1b[2J\u202e",), without_positives={})
    assert r"a\tb\x1b[2J\u202e" in report.table()
    assert not {"\t", "\x1b", "\u202e"} & set(report.table())


@PLENTY
@given(contents())
def test_any_report_prints_a_line_for_each_metric(content):
    report = Report(**content)
    lines = report.table().split("\n")
    assert len(lines) - lines.index("") == 1 + 1 + len({key.partition("/")[0] for key in report})


# CSV and LaTeX


def test_csv_holds_fractions_in_full_precision(tmp_path):
    report = Report({"AP": 1 / 3, 'R@1/a,"b"/c': NAN}, n_queries=1, n_items=1, intervals={"AP": (0.1, 2 / 3)})
    expected = 'metric,level,value,low,high\nAP,,0.3333333333333333,0.1,0.6666666666666666\nR@1,"a,""b""/c",nan,,\n'
    assert report.to_csv() == expected
    assert report.to_csv(tmp_path / "new" / "report.csv") == expected
    assert (tmp_path / "new" / "report.csv").read_bytes() == expected.encode()


@PLENTY
@given(contents())
def test_csv_reads_back_as_the_values(content):
    report = Report(**content)
    rows = list(csv.DictReader(io.StringIO(report.to_csv(raw=True), newline="")))
    found = {row["metric"] + ("/" + row["level"] if row["level"] else ""): float(row["value"]) for row in rows}
    assert found == pytest.approx(dict(report), rel=0, abs=0, nan_ok=True)


def test_a_report_is_a_mapping_for_loggers_and_pandas(report):
    assert isinstance(report, Mapping)
    assert dict(report) == pytest.approx(report.means, nan_ok=True)
    assert [key for key, _ in report.items()] == list(report)
    series = pd.Series(report)
    assert series.to_dict() == pytest.approx(report.means, nan_ok=True)
    written = pd.read_csv(io.StringIO(report.to_csv())).fillna({"level": ""})
    pd.testing.assert_frame_equal(report.to_frame(), written)


def test_a_notebook_shows_the_table_with_its_names_escaped():
    report = Report({"AP": 0.5, "AP/<b>": math.nan}, n_queries=2, n_items=9, levels=("a", "<b>"), without_positives={"<b>": 2})
    shown = report._repr_html_()
    assert "<p>2 queries, 9 items</p>" in shown
    assert "<th>AP</th><td>50.00</td><td>--</td>" in shown
    assert (shown.count("<b>"), shown.count("&lt;b&gt;")) == (0, 2)


def test_latex_rows_are_in_percent_under_their_header(report):
    chosen = ["R@1", "ap/genus", "mean_average_precision"]
    assert report.latex_header(chosen) == r"& R@1 & AP/genus & AP \\"
    assert report.latex_row(chosen, label="R&D_50% {x}~^\\") == (
        r"R\&D\_50\% \{x\}\textasciitilde{}\textasciicircum{}\textbackslash{} & 75.0 & -- & 50.0 \\"
    )
    assert report.latex_row("H-AP", decimals=2) == r"& 61.25 \\"
    assert report.latex_row("AP", label="two\nlines") == r"two lines & 50.0 \\"
    assert report.latex_row().count("&") == report.latex_header().count("&") == len(report)


def test_a_latex_header_escapes_the_names_of_levels():
    assert Report({"AP/a_b": 1.0}, n_queries=1, n_items=1).latex_header() == r"& AP/a\_b \\"


def test_latex_refuses_a_metric_that_is_not_there_and_negative_decimals(report):
    with pytest.raises(KeyError, match="no NDCG in this report"):
        report.latex_row(["NDCG"])
    with pytest.raises(ValueError, match="decimals=-1 must be at least 0"):
        report.latex_row(decimals=-1)


# Files


@PLENTY
@given(contents())
def test_a_report_reads_back_equal_to_what_was_saved(content):
    report = Report(**content)
    with tempfile.TemporaryDirectory() as folder:
        report.save(Path(folder) / "a.b.json")
        assert Report.load(Path(folder) / "a.b.json") == report
        kept = any(one is not None for one in (report.per_query, report.query_ids, report.classes))
        assert {path.name for path in Path(folder).iterdir()} == {"a.b.json", *(["a.b.queries.npz"] if kept else [])}


def test_the_file_is_plain_json_with_null_for_nan(report, tmp_path):
    report.save(tmp_path / "new" / "report.json")

    def refuse(constant):
        raise AssertionError(f"{constant} is no JSON")

    text = (tmp_path / "new" / "report.json").read_text(encoding="utf-8")
    content = json.loads(text, parse_constant=refuse)
    assert content["values"]["AP/genus"] is None
    assert list(content["values"]) == list(report)
    assert (content["format"], content["version"]) == ("suprank report", 1)
    assert content["suprank"]
    assert list(Report.load(tmp_path / "new" / "report.json")) == list(report)


def test_the_difference_between_reports_is_seen():
    content = {
        **{"means": {"AP": 0.5}, "n_queries": 2, "n_items": 3, "levels": ("a",), "settings": {"ks": (1, 2)}},
        **{"per_query": {"AP": [0.5, NAN]}, "query_ids": ["x", "y"], "intervals": {"AP": (0.1, NAN)}},
        **{"classes": {"a": [0, 1]}},
    }
    report = Report(**content)
    assert report == Report(**content | {"settings": {"ks": [1, 2]}, "per_query": {"AP": np.array([0.5, NAN])}})
    for change in (
        {"means": {"AP": 0.6}},
        {"means": {"AP": NAN}},
        {"n_items": 4},
        {"levels": ("b",)},
        {"settings": {"ks": (1, 3)}},
        {"query_ids": ["x", "z"]},
        {"query_ids": None},
        {"classes": {"a": [0, 0]}},
        {"classes": {"a": [0, 1], "b": [0, 0]}},
        {"classes": None},
        {"intervals": {"AP": (0.2, NAN)}},
        {"intervals": None},
        {"per_query": {"AP": [0.5, 0.5]}},
        {"per_query": None},
        {"without_positives": {"a": 1}},
    ):
        assert report != Report(**content | change), change
    assert report != "a report"


def save_without(name, report, path):
    """A save that is cut off before the file of that name is in its place."""

    def fail_on(self, target):
        if Path(target).name == name:
            raise OSError("disk full")
        return Path.rename(self, target)

    with patch.object(Path, "replace", fail_on), pytest.raises(OSError, match="disk full"):
        report.save(path)


def test_a_save_that_fails_leaves_the_old_report_and_no_rubbish(tmp_path):
    old, new = report_of({"AP": [0.1, 0.2]}), report_of({"AP": [0.3, 0.4]})
    old.save(tmp_path / "report.json")
    save_without("report.queries.npz", new, tmp_path / "report.json")
    assert Report.load(tmp_path / "report.json") == old
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.json", "report.queries.npz"]


def test_a_save_cut_off_between_its_two_files_is_noticed(tmp_path):
    old, new = report_of({"AP": [0.1, 0.2]}), report_of({"AP": [0.3, 0.4]})
    old.save(tmp_path / "report.json")
    save_without("report.json", new, tmp_path / "report.json")
    with pytest.raises(ValueError, match="does not belong to"):
        Report.load(tmp_path / "report.json")


@pytest.mark.parametrize("length", [0, 1, 50, 200])
def test_a_truncated_file_is_refused(report, tmp_path, length):
    path = tmp_path / "report.json"
    report.save(path)
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(ValueError, match="report.json is not a complete JSON file .* give the file that Report.save wrote"):
        Report.load(path)


@pytest.mark.parametrize("content", [b"[]", b"{}", b'"suprank report"', b'{"format": "COCO", "version": 1}'])
def test_a_file_of_another_kind_is_refused(tmp_path, content):
    (tmp_path / "other.json").write_bytes(content)
    with pytest.raises(ValueError, match="other.json is JSON, but not a suprank report"):
        Report.load(tmp_path / "other.json")


def edited(path, **changes):
    content = json.loads(path.read_text(encoding="utf-8")) | changes
    path.write_text(
        json.dumps({key: value for key, value in content.items() if value is not ...}, default=str), encoding="utf-8"
    )


def test_a_file_of_a_newer_version_asks_for_a_newer_suprank(report, tmp_path):
    report.save(tmp_path / "report.json")
    edited(tmp_path / "report.json", version=2, suprank="9.0")
    with pytest.raises(ValueError, match="version 2, written by suprank 9.0, .* reads up to version 1; upgrade suprank"):
        Report.load(tmp_path / "report.json")


@pytest.mark.parametrize("change", [{"values": 3}, {"levels": None}, {"intervals": {"AP": 3}}, {"per_query": ["AP"]}])
def test_a_damaged_file_is_refused(report, tmp_path, change):
    report.save(tmp_path / "report.json")
    edited(tmp_path / "report.json", **change)
    with pytest.raises(ValueError, match="report.json is a damaged report"):
        Report.load(tmp_path / "report.json")


def test_a_missing_field_is_named(report, tmp_path):
    report.save(tmp_path / "report.json")
    edited(tmp_path / "report.json", settings=...)
    with pytest.raises(ValueError, match="KeyError: 'settings'"):
        Report.load(tmp_path / "report.json")


def test_values_per_query_that_are_missing_or_of_another_report_are_refused(tmp_path):
    for name, value in (("one", 0.1), ("two", 0.2)):
        report_of({"AP": [value, value]}).save(tmp_path / f"{name}.json")
    (tmp_path / "one.queries.npz").unlink()
    with pytest.raises(FileNotFoundError, match="one.queries.npz, which is missing; move both files together"):
        Report.load(tmp_path / "one.json")
    (tmp_path / "two.queries.npz").rename(tmp_path / "one.queries.npz")
    with pytest.raises(ValueError, match="one.queries.npz does not belong to .*one.json, or is damaged"):
        Report.load(tmp_path / "one.json")


def test_the_files_may_be_renamed_together(tmp_path):
    report = report_of({"AP": [0.1, 0.9]}, query_ids=["a", "b"])
    report.save(tmp_path / "old.json")
    for end in (".json", ".queries.npz"):
        (tmp_path / f"old{end}").rename(tmp_path / f"new{end}")
    assert Report.load(tmp_path / "new.json") == report


# Intervals


def test_intervals_are_of_the_mean_over_queries_for_new_classes():
    # Eight classes of two queries: R@1 is 1 in half of them, so that the mean without one is 8/14 or 6/14, ¹⁄₁₄ from ½, and
    # the interval is ½ ± t·√(8/14²), with 7 degrees of freedom.
    classes = {"species": np.arange(16) // 2, "genus": np.arange(16) // 4}
    values = {"R@1": np.arange(16) // 2 % 2, "AP": [0.5] * 16, "MRR": [0.1] * 14 + [NAN] * 2, "NDCG": [NAN] * 16}
    report = report_of(values, levels=("species",), classes=classes, settings={"ks": (1,)})
    wide, narrow = report.with_intervals(), report.with_intervals(confidence=0.4)
    for found, t in ((wide, 2.36462), (narrow, 0.54911)):  # of a table of Student's t
        assert found.intervals["R@1"] == pytest.approx((0.5 - t * 8**0.5 / 14, 0.5 + t * 8**0.5 / 14), abs=1e-5)
    assert wide.intervals["AP"] == (0.5, 0.5)
    assert list(wide.intervals) == ["R@1", "AP"], "MRR has values in seven classes, and NDCG in none"
    unit = {"level": "species", "count": 8, "effective": 8.0}
    about = {"confidence": 0.95, "unit": unit, "measured": "Measured on 8 species (unit: species)."}
    assert wide.settings == {"ks": (1,), "intervals": about}
    assert wide.table().splitlines()[1:3] == ["[low, high]: 95% intervals", about["measured"]]
    assert wide.means == pytest.approx(report.means, nan_ok=True)
    assert report.intervals is None


def test_intervals_end_where_a_metric_does():
    report = report_of({"AP": [1.0] * 8 + [0.0]}).with_intervals()
    assert report.intervals["AP"][1] == 1
    assert report.intervals["AP"][0] < 8 / 9


@PLENTY
@given(st.integers(0, 30))
def test_without_classes_intervals_are_over_queries_if_there_are_enough(queries):
    report = report_of({"AP": np.linspace(0, 1, queries), "H-AP": np.linspace(0, 1, queries) ** 2}, levels=("a",))
    found = report.with_intervals()
    assert list(found.intervals) == (list(report) if queries >= 8 else [])
    assert found.settings["intervals"]["unit"]["level"] == "query"
    assert f"{queries} are too few" in found.table() or queries >= 8


def test_a_report_of_means_cannot_have_intervals_or_be_compared(report):
    with pytest.raises(ValueError, match=r"this report has means only; call evaluate\(..., per_query=True\)"):
        report.with_intervals()
    with pytest.raises(ValueError, match="the choice of a unit needs the values of each query"):
        report.units()
    full = report_of({"AP": [0.5]})
    for one, two in ((report, full), (full, report)):
        with pytest.raises(ValueError, match=r"this report has means only; call evaluate\(..., per_query=True\)"):
            one.compare(two)


# What a report is made of


def test_a_report_cannot_be_changed_by_what_it_was_made_of_or_by_who_reads_it():
    array, tensor, values = np.array([0.5, 0.7]), torch.tensor([0.1, 0.3], dtype=torch.float64), {"AP": 0.6, "R@1": 0.2}
    ids = np.array([3, 4])
    report = Report(values, n_queries=2, n_items=2, per_query={"AP": array, "R@1": tensor}, query_ids=ids)
    array[0], tensor[0], values["AP"], ids[0] = 9, 9, 9, 9
    assert report["AP"] == 0.6
    assert [list(column) for column in report.per_query.values()] == [[0.5, 0.7], [0.1, 0.3]]
    assert list(report.query_ids) == [3, 4]
    with pytest.raises(ValueError, match="read-only"):
        report.per_query["AP"][0] = 9
    with pytest.raises(AttributeError):
        report.means = {}


def test_values_per_query_are_float64_and_not_copied_again():
    report = report_of({"AP": [0.5, 0.7]})
    assert report.per_query["AP"].dtype == np.float64
    assert report.with_intervals().per_query["AP"] is report.per_query["AP"]


@PLENTY
@given(contents())
def test_reports_travel_between_processes(content):
    report = Report(**content)
    assert pickle.loads(pickle.dumps(report)) == report
    assert copy.deepcopy(report) == report


@pytest.mark.parametrize("ids", [np.array(["a", "bcd"], dtype=object), ["a", "bcd"], ("a", "bcd"), torch.tensor([5, 6])])
def test_ids_are_kept_in_a_form_that_files_can_hold(ids, tmp_path):
    report = report_of({"AP": [0.5, 0.7]}, query_ids=ids)
    report.save(tmp_path / "report.json")
    assert list(Report.load(tmp_path / "report.json").query_ids) == list(ids)


def test_settings_come_as_they_would_from_a_file():
    settings = {"ks": [1, np.int64(10)], "weights": {"genus": np.float32(0.5)}, "seed": None, "array": np.arange(2)}
    found = Report({}, n_queries=0, n_items=0, settings=settings).settings
    assert found == {"ks": (1, 10), "weights": {"genus": 0.5}, "seed": None, "array": (0, 1)}
    assert json.loads(json.dumps(found))["weights"] == {"genus": 0.5}


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        ({"means": {"hit_rate@1": 0.5}}, "means hold 'hit_rate@1', .* write 'R@1'"),
        ({"means": {"accuracy": 0.5}}, "unknown metric 'accuracy'"),
        ({"means": {"AP": math.inf}}, "AP is inf"),
        ({"n_queries": -1}, "n_queries=-1 must be a count"),
        ({"n_items": 1.5}, "n_items=1.5 must be a count"),
        ({"levels": ("a", "a")}, "hold a name twice"),
        ({"levels": ("a", "")}, "level name '' must be text of one line"),
        ({"levels": ("overall",)}, "level name 'overall' is taken"),
        ({"levels": ("fine", "mean-of-levels")}, "level name 'mean-of-levels' is taken"),
        ({"without_positives": {"b": 1}}, "without_positives has 'b', which levels do not have"),
        ({"without_positives": {"a": -1}}, r"without_positives\['a'\]=-1"),
        ({"per_query": {"R@1": [1, 1]}}, "per_query has 'R@1', which means do not have"),
        ({"per_query": {"AP": [1, 1, 1]}}, r"per_query\['AP'\] has shape \(3,\), but must be \[2\]"),
        ({"per_query": {"AP": [1, math.inf]}}, r"per_query\['AP'\] holds infinite values"),
        ({"classes": {"a": [0]}}, r"classes\['a'\] has shape \(1,\), but must be \[2\]"),
        ({"query_ids": ["a"]}, r"query_ids has shape \(1,\), but must be \[2\]"),
        ({"query_ids": [Path("a"), Path("b")]}, "query_ids are of type object, .* convert them with str"),
        ({"query_ids": [0.5, 1.5]}, "query_ids are of type float64"),
        ({"intervals": {"R@1": (0, 1)}}, "intervals has 'R@1', which means do not have"),
        ({"settings": {"a": [1, {"b": Path()}]}}, r"settings\['a'\]\[1\]\['b'\] is .*, which JSON cannot hold"),
        ({"settings": {"a": NAN}}, r"settings\['a'\] is nan, which JSON cannot hold"),
        ({"settings": {"a": {1: 2}}}, r"settings\['a'\] is {1: 2}, which JSON cannot hold"),
    ],
)
def test_what_makes_no_report_is_refused_with_the_way_out(wrong, complaint):
    with pytest.raises(ValueError, match=complaint):
        Report(**{"means": {"AP": 0.5}, "n_queries": 2, "n_items": 2, "levels": ("a",)} | wrong)


def test_every_flat_metric_has_a_version_at_each_level():
    keys = [str(Metric(name, None if name in FULL else 1, "a")) for name in FLAT]
    lines = Report(dict.fromkeys(keys, 0.5), n_queries=1, n_items=1, levels=("a",)).table().splitlines()
    assert [line.split() for line in lines[3:]] == [[key.removesuffix("/a"), "50.00"] for key in keys]
