"""suprank evaluate --against: runs, folders and files are compared query by query, in the digits of `suprank report`."""

import csv
import html
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from suprank import open_data
from suprank.cli.metric_comparison import compare
from suprank.evaluation import Report, evaluate
from suprank.evaluation.quoted_metrics import table_keys
from suprank.evaluation.report_text import short_p_value
from suprank.explorer.findings.query_metrics import compare_reports, reorder_queries
from tests.cli.collection import done, invoke, refused
from tests.explorer.runs import collection, embeddings, evaluated, run

EVALUATE = ("evaluate", "--device", "cpu", "--quiet")


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """`one` and `two` are runs on the same pictures, `two` in another order; `embedded` is a folder of `suprank embed`.

    `flat` lacks the coarse level, `mixed` has other classes, `other` has other pictures, `fewer` a shorter gallery.
    """
    root = tmp_path_factory.mktemp("against")
    manifest = collection(root / "data", groups=3, classes=3, images=5)
    shuffled = manifest.take(np.random.default_rng(3).permutation(len(manifest)))
    run(root / "one", manifest, noise=1.5)
    run(root / "two", shuffled, loss="smooth-ap", noise=2.5, seed=1)
    embeddings(root / "embedded", shuffled, noise=2.5, seed=1)
    embeddings(root / "other", collection(root / "more", groups=3, classes=3, images=4))
    columns = {name: manifest.table[name].to_pylist() for name in ("path", "split", "label_class")}
    embeddings(root / "flat", type(manifest).from_columns(columns, root=manifest.root), noise=2.0)
    columns |= {"label_class": [f"{row // 3}" for row in range(len(manifest))], "label_group": manifest.table["label_group"]}
    embeddings(root / "mixed", type(manifest).from_columns(columns, root=manifest.root), noise=2.0)
    return root


@pytest.fixture(autouse=True)
def folder(root, monkeypatch):
    monkeypatch.chdir(root)


def compared(*arguments, file="c.csv"):
    """The saved rows of a comparison, by metric and level; and what was printed."""
    result = done(*EVALUATE, *arguments, "--comparison", file)
    with Path(file).open(encoding="utf-8", newline="") as lines:
        rows = {f"{row['metric']}/{row['level']}".rstrip("/"): row for row in csv.DictReader(lines)}
    return {key: {name: float(row[name]) for name in list(row)[2:]} for key, row in rows.items()}, result


def reported(one, two):
    """The rows of the table of `suprank report ONE --against TWO`."""
    own, other = open_data(one), open_data(two)
    mine, theirs = evaluated(own), evaluated(other)
    theirs = reorder_queries(theirs, own.match(other))
    return compare_reports(mine, theirs, table_keys([mine, theirs]))


@pytest.mark.parametrize("other", ["two", "embedded"])
def test_the_numbers_are_those_of_the_report_to_the_last_digit(other):
    found, _ = compared("one", "--against", other)
    expected = reported("one", other)
    assert list(found) == [row.metric for row in expected]
    for row in expected:
        numbers = {"own": row.mine, "other": row.other, "difference": row.difference, "p": row.p_value, "p_holm": row.p_holm}
        assert found[row.metric] == {**numbers, "low": row.low, "high": row.high, "queries": row.queries}


def test_terminal_json_and_page_say_in_the_same_words_what_was_tested(tmp_path):
    printed = done("evaluate", "one", "--against", "two", "--comparison", tmp_path / "c.json", "--device", "cpu").stdout
    saved = json.loads((tmp_path / "c.json").read_text())
    assert saved["measured"] == reported("one", "two").sentence()
    assert saved["measured"].startswith(
        "Measured on 9 classes (unit: class). Metrics with coarser levels are about these 3 classes"
    )
    done("report", "one", "--against", "two", "--out", tmp_path / "page.html", "--device", "cpu")
    page = html.unescape(re.sub(r"<[^>]+>", "", (tmp_path / "page.html").read_text()))
    for sentence in (saved["measured"], saved["test"]):
        assert sentence in " ".join(printed.split())
        assert sentence in " ".join(page.split())
    assert saved["verdict"] in " ".join(printed.split())
    assert saved["smallest_p"] == 2**-8
    assert [row["metric"] for row in saved["rows"]] == [row.metric for row in reported("one", "two")]


def test_a_folder_may_be_compared_with_a_run_and_the_sign_follows():
    found, _ = compared("one", "--against", "two")
    mirrored, _ = compared("two", "--against", "one")
    for key, row in found.items():
        assert mirrored[key]["difference"] == pytest.approx(-row["difference"])
        assert mirrored[key]["p"] == row["p"]  # of all signs of 9 classes
        assert (mirrored[key]["low"], mirrored[key]["high"]) == pytest.approx((-row["high"], -row["low"]))


def test_both_sides_have_the_settings_of_the_first(tmp_path):
    shutil.copytree("one", tmp_path / "decayed")
    recipe = tmp_path / "decayed" / "recipe.toml"
    recipe.write_text(f"{recipe.read_text()}\n[evaluation]\ndecay = 3.0\nks = [1, 2]\n")
    found, result = compared(tmp_path / "decayed", "--against", "two")
    assert found["H-AP"]["other"] == pytest.approx(evaluate(open_data("two"), decay=3.0, metrics=["H-AP"])["H-AP"])
    assert "R@2/class" in found
    assert "warning" not in result.stderr
    given, _ = compared("one", "--against", "two", "--decay", 2, "--k", 4, "--weight", "class=1")
    assert given["H-AP"]["other"] == pytest.approx(evaluate(open_data("two"), decay=2.0, metrics=["H-AP"])["H-AP"])
    assert [key for key in given if key.startswith("R@")] == ["R@4/class", "R@4/group"]


def test_two_files_with_the_same_labels_are_compared_by_row_and_tested_by_class_as_scipy_does(tmp_path):
    draw = np.random.default_rng(1)
    (tmp_path / "labels.csv").write_text("label\n" + "".join(f"{row // 2}\n" for row in range(20)))
    for name in ("a", "b"):
        np.save(tmp_path / f"{name}.npy", draw.normal(size=(20, 3)).astype(np.float32))
    labels = ("--labels", tmp_path / "labels.csv")
    found, result = compared(tmp_path / "a.npy", *labels, "--against", tmp_path / "b.npy", file=tmp_path / "c.csv")
    values = []
    for name in ("a", "b"):
        done(*EVALUATE, tmp_path / f"{name}.npy", *labels, "--per-query", "--out", tmp_path / f"{name}.json")
        values.append(Report.load(tmp_path / f"{name}.json").per_query["AP"])
    values = [own.reshape(10, 2).mean(1) for own in values]  # of each class, whose signs are flipped together
    test = stats.permutation_test(
        values, lambda x, y, axis: np.mean(x - y, axis=axis), permutation_type="samples", vectorized=True, n_resamples=2000
    )
    assert found["AP"]["difference"] == pytest.approx(test.statistic)
    assert found["AP"]["p"] == pytest.approx(test.pvalue)
    by_file = done(*EVALUATE, tmp_path / "a.npy", *labels, "--against", tmp_path / "b.json").stdout
    assert by_file.replace("b.json", "b.npy").split() == result.stdout.split()


def test_levels_of_one_side_only_are_left_out_and_named():
    found, result = compared("one", "--against", "flat")
    assert list(found) == ["R@1", "R@10", "mAP@R", "AP", "NDCG", "ASI"]
    expected = evaluate(open_data("one").at_levels(["class"]), metrics=["NDCG"])["NDCG"]
    assert found["NDCG"]["own"] == pytest.approx(expected)
    assert "levels left out: group (one only)" in result.stdout
    assert "levels left out" not in done(*EVALUATE, "flat", "--against", "one", "--level", "class").stdout
    named = done(*EVALUATE, "one", "--against", "flat", "--metric", "AP", "--metric", "AP/group").stdout
    assert re.findall(r"^AP\S*", named, re.MULTILINE) == ["AP"]


def test_other_classes_of_the_same_images_are_refused():
    output = refused(*EVALUATE, "one", "--against", "mixed")
    assert "one and mixed sort the test images into different classes at class, so that their metrics do not mean" in output
    assert "embed one manifest with both models" in output
    assert "different classes" not in done(*EVALUATE, "one", "--against", "two").stderr


def test_models_are_named_and_a_difference_between_them_is_warned_of(tmp_path):
    record = {"backbone": "resnet18", "parameters": 11_000_000, "precision": "fp32", "scales": [1.0]}
    record |= {"decoder": "pil", "head": None, "fingerprint": "0f"}
    images = {"size": 64, "resize": 0, "squash": False, "interpolation": "bilinear", "fast_jpeg": False}
    for name, size in (("a", 64), ("b", 96)):
        shutil.copytree("embedded", tmp_path / name)
        (tmp_path / name / "test" / "run.json").write_text(json.dumps({**record, "transform": {**images, "size": size}}))
    shown = done(*EVALUATE, tmp_path / "a", "--against", tmp_path / "b")
    assert "a: resnet18 (11.0 M parameters), 64 pixels, not resized, bilinear, fp32" in shown.stdout
    assert "b: resnet18 (11.0 M parameters), 96 pixels" in shown.stdout
    assert "warning: a and b differ in more than training: image size 64 against 96." in shown.stderr
    shutil.copytree(tmp_path / "a", tmp_path / "c")
    same = done(*EVALUATE, tmp_path / "a", "--against", tmp_path / "c")
    assert "both: resnet18" in same.stdout
    assert "warning" not in same.stderr


def test_long_names_are_shortened_in_the_table_only(tmp_path):
    shutil.copytree("embedded", tmp_path / "resnet50-imagenet-happier")
    shown = done(*EVALUATE, "one", "--against", tmp_path / "resnet50-imagenet-happier", "--metric", "AP").stdout
    assert "%     one  resnet5…happier  difference" in shown
    assert "one against resnet50-imagenet-happier, 45 queries" in shown


def test_the_output_fits_eighty_columns():
    result = invoke("evaluate", "one", "--against", "two", "--intervals", "--device", "cpu", columns=80)
    assert max(map(len, result.stdout.splitlines())) <= 80
    table, comparison = result.stdout.split("\n\n", 1)
    assert len(table.splitlines()) == 16
    assert re.sub(r"\d\d\.\d\d\b", "##.##", comparison) == SNAPSHOT


SNAPSHOT = """one against two, 45 queries

%               one     two  difference      95% interval      p  verdict
R@1/class     ##.##   ##.##      +##.##  [+##.##, +##.##]  0.098  unclear
R@1/group     ##.##   ##.##      +##.##  [+##.##, +##.##]  0.094  unclear
R@10/class   1##.##   ##.##       +2.22    [-3.21, +7.66]   1.00  unclear
R@10/group   1##.##  1##.##       +0.00    [+0.00, +0.00]   1.00     same
mAP@R/class   ##.##   ##.##      +##.##  [+##.##, +##.##]  0.043   better
mAP@R/group   ##.##   ##.##       +8.64   [-1.44, +##.##]   0.23  unclear
AP/class      ##.##   ##.##      +##.##  [+##.##, +##.##]  0.082  unclear
AP/group      ##.##   ##.##       +8.46   [+0.59, +##.##]   0.11  unclear
H-AP          ##.##   ##.##      +##.##   [+8.48, +##.##]  0.070  unclear
NDCG          ##.##   ##.##      +##.##   [+6.00, +##.##]  0.070  unclear
ASI           ##.##   ##.##      +##.##   [+8.05, +##.##]  0.043   better
difference: one − two, its interval without correction. p: paired randomization
test, class by class, two-sided, Holm-corrected for 11 rows. better, worse:
p < 0.05.

The test finds no measurable difference between one and two on R@1, AP and H-AP;
one is better on mAP@R/class and ASI. Measured on 9 classes (unit: class).
Metrics with coarser levels are about these 3 classes of group, not about new
ones. Two trained models, one training each: another training of the same recipe
may differ; compare several seeds of each.
"""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("one", "--against", "gone"), "there is no folder gone to compare with; name a folder of `suprank train`"),
        (("one", "--against", "one/../one"), "are the same; name another one to compare with"),
        (("one", "--against", "data"), "data has no embeddings; name a folder of `suprank train`"),
        (
            ("one", "--against", "other"),
            "one and other have different queries (45 in one; 'pictures/0-0-4.png' is in one only)",
        ),
        (
            ("one", "--against", "one/embeddings/test/embeddings.npy"),
            "one is a folder and one/embeddings/test/",
        ),
        (("one", "--against", "two", "--against-frozen"), "both name what to compare with"),
        (("one", "--against", "two", "--gap", 4), "--against cannot be combined with --gap"),
        (("one", "--against", "flat", "--metric", "AP/group"), "there is no such metric of both sides"),
        (("flat", "--against", "coarse"), "flat is evaluated at class and coarse at group, so there is nothing to compare"),
        (("one", "--comparison", "c.csv"), "there is nothing to compare with; add --against"),
        (("one", "--against", "two", "--comparison", "data"), "data is a folder; name a file in it"),
        (("one", "--all", "--metric", "AP"), "--all and --metric both say which metrics to print"),
        (("q.npy", "--labels", "q.csv", "--against", "one"), "one is a folder and q.npy a file"),
        (("q.npy", "--labels", "q.csv", "--against", "long.npy"), "q.csv has 4 rows and embeddings (long.npy) has 5"),
        (
            ("q.npy", "--labels", "q.csv", "--gallery", "q.npy", "--gallery-labels", "q.csv", "--against", "long.npy"),
            "long.npy has no gallery of its own",
        ),
    ],
)
def test_what_cannot_be_compared_is_refused_with_the_way_out(root, arguments, message):
    if not (root / "q.csv").exists():
        (root / "q.csv").write_text("label\na\na\nb\nb\n")
        np.save(root / "q.npy", np.eye(4, dtype=np.float32))
        np.save(root / "long.npy", np.eye(5, dtype=np.float32))
        one = open_data("one").queries.manifest
        columns = {name: one.table[name].to_pylist() for name in ("path", "split", "label_group")}
        embeddings(root / "coarse", type(one).from_columns(columns, root=one.root))
    assert message in refused(*EVALUATE, *arguments)


def test_a_shorter_gallery_is_refused(tmp_path):
    splits = ["query"] * 3 + ["gallery"] * 6
    manifest = collection(tmp_path / "data", groups=3, classes=1, images=3).with_columns(split=splits)
    embeddings(tmp_path / "all", manifest)
    embeddings(tmp_path / "fewer", manifest.take(np.arange(8)))
    output = refused(*EVALUATE, tmp_path / "all", "--against", tmp_path / "fewer")
    assert "all ranks 6 items and fewer 5, and a shorter list is easier; embed the same gallery with both" in output


def test_the_metrics_that_are_named_are_compared_and_no_others():
    found, _ = compared("one", "--against", "two", "--metric", "R@1", "--metric", "P@1", "--metric", "MRR/group")
    assert list(found) == ["R@1", "P@1", "MRR/group"]
    assert found["R@1"] == found["P@1"]


def test_every_metric_is_compared_once():
    one, two = (evaluate(open_data(name), per_query=True) for name in ("one", "one"))
    comparison = compare(one, two, every_metric=True)
    shown = [row.metric for row in comparison]
    assert {"R@1/class", "AP/overall", "ASI", "ASI/class"} <= set(shown)
    assert not {"R@1", "P@1/class", "AP"} & set(shown)
    assert short_p_value(comparison["H-AP"].p_holm) == "1.00"


def saved(name, labels, *options, seed=0):
    """NAME.npy and NAME.csv with these lines below the header, evaluated into NAME.json with the values of each query."""
    Path(f"{name}.csv").write_text("\n".join(labels) + "\n")
    np.save(f"{name}.npy", np.random.default_rng(seed).normal(size=(len(labels) - 1, 8)).astype(np.float32))
    done(*EVALUATE, f"{name}.npy", "--labels", f"{name}.csv", *options, "--per-query", "--out", f"{name}.json")
    return f"{name}.npy", "--labels", f"{name}.csv", *options


def test_another_collection_of_the_same_shape_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    birds = saved("birds", ["label", *(f"bird {row // 4}" for row in range(40))])
    saved("cars", ["label", *(f"car {row // 4}" for row in range(40))])
    error = refused(*EVALUATE, *birds, "--against", "cars.json")
    assert "the reports have other queries, or the same in another order: their classes differ at label" in error


def test_folders_without_ids_are_matched_by_path(tmp_path, root):
    done(*EVALUATE, "embedded", "--per-query", "--out", tmp_path / "shuffled.json")
    error = refused(*EVALUATE, "one", "--against", tmp_path / "shuffled.json")
    assert "the reports have the same queries in another order: query 0 is pictures/0-0-0.png and " in error
    done(*EVALUATE, "two", "--per-query", "--out", tmp_path / "two.json")
    assert "H-AP" in done("evaluate", "embedded", "--device", "cpu", "--against", tmp_path / "two.json").stdout
