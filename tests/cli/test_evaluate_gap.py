"""suprank evaluate --gap: the decomposability gap in batches and its bounds, as a table and as JSON."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("typer")

from suprank import evaluation
from tests.cli.collection import done, refused

# From the first, by falling cosine: 1, 2, 3; from the second: 0, 2, 3; from the third: 1, 0, 3; from the last: 2, 1, 0.
FOUR = np.array([[1.0, 0.0], [0.9, 0.1], [0.8, 0.2], [0.0, 1.0]], np.float32)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.save("q.npy", FOUR)
    Path("q.csv").write_text("image,label_species\na,x\nb,y\nc,x\nd,y\n")
    return tmp_path


@pytest.fixture
def drawn():
    """Embeddings and labels of 60 images, 12 species in 4 genera, in files."""
    draw = np.random.default_rng(0)
    species = np.arange(60) // 5
    embeddings = draw.standard_normal((12, 8))[species] + draw.standard_normal((60, 8))
    labels = np.stack([species, species // 3], 1)
    np.save("drawn.npy", embeddings.astype(np.float32))
    np.save("labels.npy", labels)
    return embeddings.astype(np.float32), labels


def numbers(output, row):
    """The numbers of the row of a table that begins with this text."""
    (line,) = [line for line in output.splitlines() if line.startswith(row)]
    return [float(number) for number in line.removeprefix(row).split()]


def test_the_gap_and_both_bounds_by_hand():
    output = done("evaluate", "q.npy", "--labels", "q.csv", "--gap", 1).stdout
    # In batches of one image every positive is the first; over all, AP is 1/2, 1/3, 1/2 and 1/2.
    assert numbers(output, "mean over batches") == [100]
    assert numbers(output, "over all items") == [45.83]
    assert numbers(output, "decomposability gap") == [54.17]
    # Every query has one positive and two negatives. In the worst order the positive is last: 1 − 1/3.
    assert numbers(output, "without L_DG (eq:upperBound)")[1] == 66.67
    # a and c score 0.97 with each other, so only b, the other close one, can be above: 1 − 1/2. b and d score 0.11: 1 − 1/3.
    assert numbers(output, "with L_DG, α = 0.9, β = 0.6 (eq:upperBoundRefined)")[1] == 58.33
    assert "4 queries, 4 items in batches of 1, shuffled with seed 0" in output


def test_the_page_on_evaluation_shows_what_is_printed():
    page = (Path(__file__).parents[2] / "docs" / "evaluation.md").read_text()
    names = {}
    exec(re.search(r"```python\n(.*?)```", page, flags=re.DOTALL)[1], names)  # the data of all examples
    np.save("embeddings.npy", names["embeddings"].numpy())
    Path("labels.csv").write_text("\n".join(["label_species", *map(str, names["species"].tolist())]))
    (example,) = re.findall(r"\$ suprank (.* --gap .*)\n((?:.*\n)+?)```", page)
    assert done(*example[0].split(), "--device", "cpu").stdout == example[1]


def test_json_has_what_the_functions_return(drawn):
    embeddings, labels = drawn
    options = ("--metric", "AP", "--metric", "H-AP", "--decay", 2, "--thresholds", 0.5, 0.2, "--device", "cpu")
    result = done("evaluate", "drawn.npy", "--labels", "labels.npy", "--gap", 16, *options, "--out", "made/gap.json", "--quiet")
    assert result.output == ""
    found = json.loads(Path("made/gap.json").read_text())
    assert (found["batch_size"], found["seed"], found["queries"], found["items"]) == (16, 0, 60, 60)
    for key, gap in found["gaps"].items():
        expected = evaluation.decomposability_gap(embeddings, labels, 16, key, decay=2.0, device="cpu", progress=False)
        assert gap == {name: getattr(expected, name) for name in ("value", "in_batches", "overall", "queries_left_out")}
    assert list(found["gaps"]) == ["AP", "H-AP"]
    expected = evaluation.gap_bounds(embeddings, labels, 16, 0.5, 0.2, device="cpu", progress=False)
    bounds = ("plain", "refined", "plain_any_order", "refined_any_order", "queries_left_out")
    thresholds = {"positive_floor": 0.5, "negative_ceiling": 0.2}
    assert found["bounds"] == {name: getattr(expected, name) for name in bounds} | thresholds


def test_queries_against_a_gallery(drawn):
    embeddings, labels = drawn
    rest = np.arange(60) % 5 > 0
    for name, rows in (("q", ~rest), ("g", rest)):
        np.save(f"{name}.npy", embeddings[rows])
        np.save(f"{name}-labels.npy", labels[rows])
    files = ("q.npy", "--labels", "q-labels.npy", "--gallery", "g.npy", "--gallery-labels", "g-labels.npy")
    done("evaluate", *files, "--gap", 10, "--out", "gap.json", "--quiet", "--device", "cpu")
    gallery = {"gallery": embeddings[rest], "gallery_labels": labels[rest], "device": "cpu", "progress": False}
    found = json.loads(Path("gap.json").read_text())
    assert (found["queries"], found["items"]) == (12, 48)
    expected = evaluation.decomposability_gap(embeddings[~rest], labels[~rest], 10, **gallery).value
    assert found["gaps"]["AP"]["value"] == expected
    expected = evaluation.gap_bounds(embeddings[~rest], labels[~rest], 10, **gallery).refined_any_order
    assert found["bounds"]["refined_any_order"] == expected


def test_other_metrics_than_ap_have_a_gap_and_no_bounds(drawn):
    output = done("evaluate", "drawn.npy", "--labels", "labels.npy", "--gap", 16, "--metric", "R@1/label1").stdout
    assert "R@1/label1" in output
    assert "bound" not in output


def test_queries_without_positives_are_counted_and_no_positives_at_all_are_dashes():
    Path("q.csv").write_text("label_species\nx\nx\ny\nz\n")
    assert "queries without positives, left out: 2" in done("evaluate", "q.npy", "--labels", "q.csv", "--gap", 2).stdout
    Path("q.csv").write_text("label_species\nw\nx\ny\nz\n")
    result = done("evaluate", "q.npy", "--labels", "q.csv", "--gap", 2, "--out", "gap.json")
    assert [line.split()[-1] for line in result.stdout.splitlines() if line.startswith(("mean", "over", "decom"))] == ["--"] * 3
    assert json.loads(Path("gap.json").read_text())["gaps"]["AP"]["value"] is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--gap", 0), "--gap"),
        (("--k", 3, "--latex"), "--k, --latex cannot be combined with --gap; leave out one or the other"),
        (("--intervals",), "--intervals cannot be combined with --gap"),
        (("--truth", "s.csv"), "--truth cannot be combined with --gap"),
        (("--thresholds", 0.6, 0.6), "α = 0.6 must be above β = 0.6; the authors' code has 0.9 and 0.6"),
        (("--metric", "AQ"), "unknown metric 'AQ'"),
        (("--metric", "AP/mean-of-levels"), "has no value for a single query, so it has no gap; try AP/overall, or a level"),
        (("--out", "."), ". is a folder; name a file in it"),
        (
            ("--id-column", "label_species"),
            "4 queries, such as 'x', have their own id on another item, and --gap would not leave it out",
        ),
        (
            ("--gallery", "q.npy", "--gallery-labels", "q.csv", "--id-column", "image"),
            "4 queries, such as 'a', have their own id on another item",
        ),
    ],
)
def test_bad_combinations_exit_with_2_and_say_why(arguments, message):
    level = ("--level", "image") if "label_species" in arguments else ()
    assert message in refused("evaluate", "q.npy", "--labels", "q.csv", "--gap", 2, *arguments, *level)


def test_thresholds_are_for_the_gap():
    message = "--thresholds is for --gap; add it, or leave out --thresholds"
    assert message in refused("evaluate", "q.npy", "--labels", "q.csv", "--thresholds", 0.9, 0.6)
