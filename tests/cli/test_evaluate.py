"""suprank evaluate: files in; a table, a report, a comparison and rankings out; and what is refused, in which words."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("typer")

from typer.testing import CliRunner

import suprank
from suprank import evaluation
from suprank.cli.app import app
from suprank.cli.main import main
from suprank.evaluation import Report

# From the first, by falling cosine: 1, 2, 3; from the second: 0, 2, 3; from the third: 1, 0, 3; from the last: 2, 1, 0.
FOUR = np.array([[1.0, 0.0], [0.9, 0.1], [0.8, 0.2], [0.0, 1.0]], np.float32)
SPECIES, GENUS = ["robin", "crow", "robin", "raven"], ["erithacus", "corvus", "erithacus", "corvus"]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.save("q.npy", FOUR)
    write("q.csv", ["a.jpg", "b.jpg", "c.jpg", "d.jpg"], SPECIES, GENUS)
    write("two.csv", ["a.jpg", "b.jpg", "c.jpg", "d.jpg"], ["x", "y", "x", "y"])
    return tmp_path


def write(path, images, *labels):
    names = ["image", "label_species", "label_genus"][: 1 + len(labels)]
    lines = [names, *zip(images, *labels, strict=True)]
    Path(path).write_text("".join(",".join(line) + "\n" for line in lines), encoding="utf-8")


def many(noise=1.0, levels=("species", "genus")):
    """Embeddings and labels of 80 images: 2 of each of 40 species, 4 of each of 20 genera, and so on."""
    rows = np.arange(80)
    draw = np.random.default_rng(0)
    np.save("q.npy", (draw.normal(size=(20, 8))[rows // 4] + noise * draw.normal(size=(80, 8))).astype(np.float32))
    columns = [[f"{level} {row // 2 ** (depth + 1)}" for row in rows] for depth, level in enumerate(levels)]
    lines = [[f"label_{level}" for level in levels], *zip(*columns, strict=True)]
    Path("q.csv").write_text("".join(",".join(line) + "\n" for line in lines), encoding="utf-8")


def invoke(*arguments):
    environment = {"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"}
    return CliRunner().invoke(app, ["evaluate", *map(str, arguments)], env=environment)


def evaluated(*arguments):
    result = invoke("q.npy", "--labels", "q.csv", "--device", "cpu", *arguments)
    assert result.exit_code == 0, result.output
    return result


def cells(output):
    """The rows of the printed table, by metric."""
    lines = [[cell.strip() for cell in line.strip("│┃").split("│" if "│" in line else "┃")] for line in output.splitlines()]
    return {line[0]: line[1:] for line in lines if len(line) > 1}


def refusal(*arguments):
    """What is said, on one line; a refusal exits with 2 and shows no traceback."""
    result = invoke(*arguments)
    assert result.exit_code == 2, result.output
    assert "Traceback" not in result.output
    return " ".join(result.output.replace("│", " ").split())


def test_every_image_against_the_others_by_hand():
    result = invoke("q.npy", "--labels", "two.csv", "--k", 1, "--k", 2, "--metric", "AP", "--metric", "R@2")
    assert result.exit_code == 0, result.output
    # AP: 1/2, 1/3, 1/2, 1/2. A positive is among the first two for all but the second.
    assert cells(result.stdout) == {"%": ["species"], "AP": ["45.83"], "R@2": ["75.00"]}
    assert "4 queries, 4 items" in result.stdout


def test_levels_are_columns_and_hierarchical_metrics_stand_apart():
    found = cells(
        evaluated("--k", 1, "--metric", "AP", "--metric", "AP/genus", "--metric", "AP/overall", "--metric", "H-AP").stdout
    )
    assert found["%"] == ["species", "genus", "overall", "all levels"]
    # At the species level only the two robins have a positive, in second place; genera are the two classes above.
    assert found["AP"][:2] == ["50.00", "45.83"]
    assert found["H-AP"][:3] == ["", "", ""]
    assert float(found["H-AP"][3]) > 0


def test_both_means_over_the_levels_have_a_column():
    found = cells(evaluated("--metric", "AP/genus", "--metric", "AP/mean-of-levels", "--metric", "AP/overall").stdout)
    assert found["%"] == ["genus", "overall", "mean-of-levels"]
    # Of the species, 1/2 for the two robins; of the genera 1/2, 1/3, 1/2, 1/2. Queries: 1/2, 1/3, 1/2, 1/2.
    assert found["AP"] == ["45.83", "45.83", f"{100 * (1 / 2 + 11 / 24) / 2:.2f}"]


def test_six_metrics_are_printed_and_a_line_says_how_to_see_the_others():
    found = cells((result := evaluated("--out", "r.json", "--csv", "r.csv")).stdout)
    assert list(found) == ["%", "R@1", "mAP@R", "AP", "H-AP", "NDCG", "ASI"]
    assert found["%"] == ["species", "genus", "all levels"]
    assert found["AP"] == ["50.00", "45.83", ""]
    assert "\n17 more metrics: --all\n" in result.stdout
    assert len(Report.load("r.json")) == len(Path("r.csv").read_text().splitlines()) - 1 > 60, "files have everything"


def test_all_prints_the_others_too_and_equal_ones_once():
    found = cells((result := evaluated("--all", "--level", "genus")).stdout)
    assert len(found) == 1 + 15
    assert {"TR@10", "MRR", "R-P", "mAP@100", "ASI"} <= found.keys()
    assert not {"P@1", "TR@1", "mAP@1", "H-AP", "wAP"} & found.keys()
    assert "equal by definition, shown once: R@1 = TR@1 = P@1 = mAP@1; AP = H-AP = wAP\n" in result.stdout
    several = evaluated("--all").stdout
    assert len(cells(several)) == 1 + 6 + 17
    assert "shown once: R@1 = TR@1 = P@1 = mAP@1\n" in several
    asked = cells(evaluated("--metric", "R@1", "--metric", "P@1").stdout)
    assert (asked["R@1"], asked["P@1"]) == (["0.00"], ["0.00"]), "what is asked for is printed"


def test_intervals_go_below_their_values_where_a_terminal_is_narrow():
    many(levels=("fine", "middle", "coarse"))
    arguments = ["evaluate", "q.npy", "--labels", "q.csv", "--intervals"]
    narrow, wide = (CliRunner().invoke(app, arguments, env={"COLUMNS": width}).stdout for width in ("80", "120"))
    assert max(map(len, narrow.splitlines())) <= 80 < max(map(len, wide.splitlines()))
    report = suprank.evaluate("q.npy", "q.csv", intervals=True)
    low, high = (f"{100 * end:.2f}" for end in report.intervals["AP/middle"])
    assert f" [{low}, {high}] │" in narrow
    assert f" {100 * report['AP/middle']:.2f} [{low}, {high}] │" in wide
    assert f" {100 * report['AP/middle']:.2f} [{low}, {high}] │" not in narrow


def test_queries_without_positives_are_counted():
    assert "queries without positives, left out: 2 at species" in evaluated("--metric", "AP").stdout
    assert "without positives" not in evaluated("--metric", "AP", "--level", "genus").stdout


def test_a_metric_without_any_query_is_a_dash_rather_than_zero():
    write("q.csv", list("abcd"), list("wxyz"))
    assert cells(evaluated("--metric", "AP").stdout)["AP"] == ["--"]


def test_queries_against_a_gallery_leave_out_their_own_image():
    np.save("g.npy", FOUR[[0, 1, 2]])
    write("g.csv", ["a.jpg", "b.jpg", "other.jpg"], ["x", "y", ""])
    np.save("q.npy", FOUR[:2])
    write("q.csv", ["a.jpg", "z.jpg"], ["x", "y"])
    gallery = ("--gallery", "g.npy", "--gallery-labels", "g.csv", "--metric", "AP", "--metric", "R@1")
    found = cells(evaluated(*gallery).stdout)
    assert (found["AP"], found["R@1"]) == (["100.00"], ["100.00"])  # each finds its copy first
    by_id = evaluated(*gallery, "--id-column", "image").stdout
    assert cells(by_id)["AP"] == ["100.00"]  # a.jpg has no other positive, so z.jpg alone is left
    assert "queries without positives, left out: 1 at species" in by_id
    assert "2 queries, 3 items" in by_id


def test_parquet_may_hold_embeddings_and_labels_in_one_file():
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    pq.write_table(pa.table({"label_species": SPECIES, "label_genus": GENUS, "embedding": FOUR.tolist()}), "q.parquet")
    result = invoke("q.parquet", "--labels", "q.parquet", "--out", "parquet.json", "--quiet")
    assert result.exit_code == 0, result.output
    evaluated("--out", "npy.json", "--quiet")
    assert Report.load("parquet.json") == Report.load("npy.json")


def test_the_report_is_what_the_library_computes(folder):
    evaluated(
        "--k",
        2,
        "--decay",
        2,
        "--weight",
        "species=3",
        "--weight",
        "label_genus=1",
        "--memory-budget",
        "1MiB",
        "--out",
        "r.json",
    )
    names = {"robin": 0, "crow": 1, "raven": 2, "erithacus": 0, "corvus": 1}
    labels = np.array([[names[fine], names[coarse]] for fine, coarse in zip(SPECIES, GENUS, strict=True)])
    expected = evaluation.evaluate(
        FOUR, labels, ks=(2,), levels=("species", "genus"), decay=2, weights=(3, 1), device="cpu", progress=False
    )
    found = Report.load("r.json")
    assert found.means == pytest.approx(dict(expected), nan_ok=True)
    assert found.per_query is None
    assert found.levels == ("species", "genus")
    assert not (folder / "r.queries.npz").exists()


def test_intervals_are_printed_when_asked_for():
    many()
    result = evaluated("--intervals", "--metric", "AP/genus")
    (cell,) = cells(result.stdout)["AP"]
    value, low, high = (float(number) for number in cell.replace("[", "").replace("]", "").replace(",", "").split())
    report = suprank.evaluate("q.npy", "q.csv", intervals=True)
    assert [value, low, high] == [round(100 * one, 2) for one in (report["AP/genus"], *report.intervals["AP/genus"])]
    assert low < value < high
    assert "\n[low, high]: 95% intervals\nMeasured on 40 species, in 20 genera (unit: genus).\n" in result.stdout


def test_intervals_that_few_classes_do_not_allow_are_left_out_and_it_is_said_why():
    result = evaluated("--intervals", "--metric", "AP/genus")
    assert cells(result.stdout)["AP"] == ["45.83"]
    assert "3 are too few for a test or an interval, which need 8." in " ".join(result.stdout.split())


def test_a_report_is_saved_with_its_values_per_query_in_folders_that_are_made():
    evaluated(
        "--out", "made/for/it/r.json", "--csv", "made/r.csv", "--per-query", "--id-column", "image", "--metric", "AP/genus"
    )
    report = Report.load("made/for/it/r.json")
    assert report.per_query["AP/genus"].tolist() == pytest.approx([1 / 2, 1 / 3, 1 / 2, 1 / 2])
    assert report.query_ids.tolist() == ["a.jpg", "b.jpg", "c.jpg", "d.jpg"]
    assert Path("made/r.csv").read_text().splitlines()[0] == "metric,level,value,low,high"


def test_a_row_for_latex_holds_what_is_printed_without_levels_that_nobody_asked_for():
    result = evaluated("--quiet", "--latex", "--metric", "AP/genus", "--metric", "R@1")
    assert result.stdout == "& AP/genus & R@1 \\\\\nq & 45.8 & 0.0 \\\\\n"
    header, row = evaluated("--quiet", "--latex").stdout.splitlines()
    assert header == "& R@1 & mAP@R & AP & H-AP & NDCG & ASI \\\\"
    assert row == "q & 0.0 & 0.0 & 50.0 & 45.8 & 59.8 & 0.0 \\\\"
    header, _ = evaluated("--quiet", "--latex", "--all").stdout.splitlines()
    assert "& MRR &" in header
    assert "/" not in header


def test_two_models_are_compared_query_by_query():
    evaluated("--out", "old.json", "--per-query", "--id-column", "image")
    np.save("q.npy", FOUR[[0, 3, 0, 3]])  # a perfect one
    result = evaluated("--against", "old.json", "--metric", "AP/genus", "--id-column", "image")
    assert "q.npy against old.json, 4 queries" in result.stdout
    (line,) = [line.split() for line in result.stdout.splitlines() if line.startswith("AP/genus")]
    assert line == ["AP/genus", "100.00", "45.83", "+54.17", "--", "--", "--"]
    text = " ".join(result.stdout.split())
    assert "There are too few classes to tell whether q.npy and old.json differ. Measured on 3 species" in text
    assert "3 are too few for a test or an interval, which need 8." in text


def test_two_models_are_tested_class_by_class():
    many()
    evaluated("--out", "old.json", "--per-query", "--metric", "AP/genus")
    many(noise=0.0)  # a perfect one
    result = evaluated("--against", "old.json", "--metric", "AP/genus")
    (line,) = [line.split() for line in result.stdout.splitlines() if line.startswith("AP/genus")]
    assert [line[1], *line[-3:]] == ["100.00", "<", "0.001", "better"]  # ahead on each of 20 genera: no drawn sign is as far
    text = " ".join(result.stdout.split())
    assert "p: paired randomization test, genus by genus, two-sided, Holm-corrected for 1 row." in text
    assert text.endswith("Measured on 40 species, in 20 genera (unit: genus).")


def test_levels_of_the_table_that_are_not_evaluated_decide_the_unit():
    many()
    for options, levels, unit in (((), ["species", "genus"], "genus"), (("--level", "species"), ["species", "genus"], "genus")):
        evaluated(*options, "--per-query", "--out", "r.json")
        report = Report.load("r.json")
        assert list(report.classes) == levels
        assert report.units().level == unit
    assert report.levels == ("species",)
    many(levels=("species",))
    evaluated("--per-query", "--out", "r.json")
    assert Report.load("r.json").units().level == "species"


def test_a_comparison_says_in_json_what_was_tested():
    many()
    evaluated("--out", "old.json", "--per-query")
    many(noise=0.0)
    result = evaluated("--against", "old.json", "--comparison", "c.json")
    found = json.loads(Path("c.json").read_text())
    assert found["names"] == ["q.npy", "old.json"]
    assert found["verdict"].startswith("q.npy is better than old.json at ")
    assert " ".join(f"{found['verdict']} {found['measured']}".split()) in " ".join(result.stdout.split())
    assert found["measured"] == "Measured on 40 species, in 20 genera (unit: genus)."
    assert found["unit"] == {"level": "genus", "count": 20, "effective": 20.0}
    assert found["smallest_p"] == 1 / 10_001
    shown = [line.split()[0] for line in result.stdout.splitlines() if line.endswith(("better", "unclear", "same"))]
    assert shown == [row["metric"] for row in found["rows"]], "every tested row is shown"
    assert f"Holm-corrected for {len(shown)} rows." in found["test"] + "."


@pytest.mark.parametrize("extension", ["trec", "json", "csv"])
def test_rankings_are_saved(extension):
    evaluated("--save-run", f"run.{extension}", "--save-run-k", 2, "--id-column", "image", "--metric", "R@1")
    run = evaluation.Run.load(f"run.{extension}")
    found = {query: [item for item, _ in items] for query, items in run}
    assert found == {
        "a.jpg": ["b.jpg", "c.jpg"],
        "b.jpg": ["a.jpg", "c.jpg"],
        "c.jpg": ["b.jpg", "a.jpg"],
        "d.jpg": ["c.jpg", "b.jpg"],
    }


def test_rankings_without_ids_go_by_row():
    evaluated("--save-run", "run.json", "--save-run-k", 1, "--metric", "R@1")
    with Path("run.json").open() as file:
        assert {query: list(items) for query, items in json.load(file).items()} == {
            "0": ["1"],
            "1": ["0"],
            "2": ["1"],
            "3": ["2"],
        }


def test_quiet_prints_nothing():
    result = evaluated("--quiet")
    assert (result.stdout, result.stderr) == ("", "")


def test_a_wide_table_is_not_cut_in_a_narrow_terminal():
    names = [f"label_a_long_name_for_level_{level}" for level in range(9)]
    Path("q.csv").write_text("".join(",".join(line) + "\n" for line in (names, *([value] * 9 for value in "xyxy"))))
    result = CliRunner().invoke(app, ["evaluate", "q.npy", "--labels", "q.csv"], env={"COLUMNS": "40"})
    assert result.exit_code == 0, result.output
    for level in range(9):
        assert f" a_long_name_for_level_{level} " in result.stdout


def test_brackets_in_names_are_text():
    Path("q.csv").write_text("label_[red]x[/red]\nx\ny\nx\ny\n")
    assert cells(evaluated("--metric", "AP").stdout)["%"] == ["[red]x[/red]"]


def test_python_gives_the_same_numbers_as_the_command():
    evaluated("--out", "command.json", "--quiet")
    assert dict(suprank.evaluate("q.npy", "q.csv")) == dict(Report.load("command.json"))
    with pytest.raises(ValueError, match="the images have no labels, so nothing is relevant to a query; .* a file of labels"):
        suprank.evaluate("q.npy")
    with pytest.raises(ValueError, match="the images have no labels"):
        suprank.evaluate(FOUR)
    arrays = suprank.evaluate(FOUR, [[0, 0], [0, 0], [1, 0], [1, 0]], levels=["species", "genus"], metrics=["AP/genus"])
    assert arrays["AP/genus"] == 1


def test_help_lists_the_options_and_shows_examples():
    result = invoke("--help")
    assert result.exit_code == 0
    options = "labels gallery gallery-labels level id-column k metric decay weight device memory-budget intervals per-query"
    for option in f"{options} all out csv latex against comparison truth missing save-run save-run-k quiet".split():
        assert f"--{option} " in result.output
    assert "suprank evaluate test.npy --labels test.csv" in result.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("gone.npy",), "embeddings (gone.npy): there is no such file"),
        (("q.csv",), "cannot be combined with ranked lists"),
        (("--labels", "gone.csv"), "gone.csv: there is no such file"),
        (("--labels", "q.npy"), "q.npy holds float32, but labels are integers; is this a file of embeddings"),
        (("--labels", "short.csv"), "short.csv has 1 rows and embeddings (q.npy) has 4, but every embedding needs one row"),
        (("--level", "specie"), "q.csv has no column 'specie'; did you mean 'label_species'?"),
        (("--level", "genus", "--level", "species"), "q.csv:3: genus 'corvus' stands under species 'crow'"),
        (("--id-column", "imagge"), "q.csv has no column 'imagge'; did you mean 'image'?"),
        (("--metric", "AQ"), "unknown metric 'AQ'"),
        (("--metric", "AP/family"), "family"),
        (("--k", 0), "--k"),
        (("--decay", -1), "decay=-1.0 must be 0 or more"),
        (("--weight", "species"), "'species' is not LEVEL=WEIGHT; write species=0.5"),
        (("--weight", "species=much"), "'species=much' is not LEVEL=WEIGHT"),
        (("--weight", "genera=1"), "there is no level 'genera'; choose from species, genus."),
        (("--weight", "genus=1", "--weight", "label_genus=2"), "level 'genus' has two weights; give one"),
        (("--device", "abacus"), "'abacus' is not a device; use cpu, cuda or cuda:N"),
        (("--device", "cuda:99"), "'cuda:99' cannot be used: this machine has"),
        (("--memory-budget", "much"), "'much' is not a size; write 2GiB, 500MB or bytes"),
        (("--memory-budget", "0"), "'0' is not a size"),
        (("--gallery", "q.npy"), "gallery and gallery_labels go together, and gallery_labels with labels"),
        (("--gallery-labels", "q.csv"), "gallery and gallery_labels go together"),
        (("--gallery", "wide.npy", "--gallery-labels", "q.csv"), "embeddings (q.npy) have 2 dimensions and the gallery 3"),
        (("--gallery", "q.npy", "--gallery-labels", "short.csv"), "short.csv has 1 rows and gallery (q.npy) has 4"),
        (
            ("--gallery", "zeros.npy", "--gallery-labels", "q.csv"),
            "gallery (zeros.npy): 1 of 4 rows (2) hold nothing but zeros",
        ),
        (("nan.npy",), "embeddings (nan.npy): 1 of 4 rows (1) hold NaN, infinity or"),
        (("--per-query",), "values per query are saved beside the report; add --out"),
        (("--against", "gone.json"), "gone.json: there is no such file"),
        (
            ("--against", "means.json"),
            "means.json holds no values per query, which a comparison needs; compute it again with --per-query",
        ),
        (("--against", "q.csv"), "q.csv is not a complete JSON file"),
        (("--save-run", "run.xyz"), "run.xyz must end in one of .trec, .run, .txt, .json, .csv"),
        (("--out", "q.csv/r.json"), "q.csv/r.json cannot be written: the folder cannot be made (File exists); name another"),
        (("--out", "."), ". is a folder; name a file in it"),
    ],
)
def test_bad_arguments_exit_with_2_and_say_why(arguments, message):
    write("short.csv", ["a.jpg"], ["robin"], ["erithacus"])
    np.save("wide.npy", np.ones((4, 3), np.float32))
    np.save("zeros.npy", FOUR * [[1], [1], [0], [1]])
    np.save("nan.npy", FOUR * [[1], [np.nan], [1], [1]])
    if "means.json" in arguments:
        evaluated("--out", "means.json", "--quiet")
    named = () if arguments[0].endswith((".npy", "q.csv")) else ("q.npy",)
    assert message in refusal(*named, "--labels", "q.csv", *arguments)


def test_embeddings_and_labels_are_required():
    assert "Missing argument" in refusal("--labels", "q.csv")
    assert "name a file of labels with embeddings in a file" in refusal("q.npy")


@pytest.mark.parametrize(
    ("text", "expected"), [("2GiB", 2**31), ("2g", 2**31), ("500 MB", 500 * 10**6), ("1.5KiB", 1536), ("4096", 4096), ("9b", 9)]
)
def test_sizes_are_binary_unless_they_say_bytes(text, expected):
    from suprank.cli.evaluate import parse_bytes

    assert parse_bytes(text) == expected


def test_a_missing_pyarrow_names_the_extra(folder):
    (folder / "q.parquet").touch()
    script = "import sys; sys.modules['pyarrow'] = None; from suprank.cli.main import main; main()"
    command = [sys.executable, "-c", script, "evaluate", "q.npy", "--labels", "q.parquet"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert run.returncode == 2
    assert "q.parquet: reading .parquet needs pyarrow; pip install" in " ".join(run.stderr.split())
    assert "Traceback" not in run.stderr


def test_too_little_memory_says_what_to_do(monkeypatch):
    def full(*_, **__):
        raise MemoryError("Unable to allocate 9 GiB.")

    monkeypatch.setattr(evaluation, "evaluate", full)
    assert "Unable to allocate 9 GiB. Give a smaller --memory-budget." in refusal("q.npy", "--labels", "q.csv")


def test_ctrl_c_ends_with_a_plain_message_and_leaves_no_file(monkeypatch, capsys, folder):
    def interrupted(*_, progress, **__):
        progress(1, 4)
        raise KeyboardInterrupt

    monkeypatch.setattr(evaluation, "evaluate", interrupted)
    monkeypatch.setattr(sys, "argv", ["suprank", "evaluate", "q.npy", "--labels", "q.csv", "--out", "r.json"])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 130
    assert capsys.readouterr().err.endswith("\nsuprank: stopped.\n")
    assert not (folder / "r.json").exists()


def test_an_earlier_report_is_read_before_anything_is_computed(monkeypatch):
    monkeypatch.setattr(evaluation, "evaluate", lambda *_, **__: pytest.fail("computed"))
    assert "gone.json" in refusal("q.npy", "--labels", "q.csv", "--against", "gone.json")


@pytest.mark.filterwarnings("always::suprank.evaluation.QueryInGalleryWarning")
def test_a_gallery_that_is_the_queries_is_said_in_one_line():
    same = ("q.npy", "--labels", "q.csv", "--gallery", "q.npy", "--gallery-labels", "q.csv", "--device", "cpu")
    result = invoke(*same, "--save-run", "run.trec")
    assert result.exit_code == 0, result.output
    output = [line for line in result.stderr.splitlines() if "warning" in line]
    assert len(output) == 1, "once, though evaluation and the rankings both see it"
    assert output[0].startswith("warning: the gallery is the queries themselves: ")
    assert "give ids (of files id_column)" in output[0]
    assert "warnings.warn" not in result.stderr
    assert "warning" not in invoke("q.npy", "--labels", "q.csv", "--device", "cpu").stderr


@pytest.mark.filterwarnings("always::suprank.files.labels.LabelSpellingWarning")
def test_a_gallery_whose_labels_are_spelled_otherwise_is_matched_and_said(folder):
    np.save(folder / "g.npy", np.load(folder / "q.npy")[::-1] + 0.01)
    count = len(np.load(folder / "q.npy"))
    (folder / "whole.csv").write_text("label\n" + "".join(f"{row}\n" for row in range(count)))
    (folder / "float.csv").write_text("label\n" + "".join(f"{row}.0\n" for row in reversed(range(count))))
    result = invoke(
        *("q.npy", "--labels", "whole.csv", "--gallery", "g.npy", "--gallery-labels", "float.csv"),
        *("--metric", "AP", "--device", "cpu"),
    )
    assert result.exit_code == 0, result.output
    assert "left out" not in result.stdout
    (output,) = [line for line in result.stderr.splitlines() if "warning" in line]
    assert output.startswith("warning: label: two spellings are taken for one class: '3' and '3.0', '2' and '2.0', ")


def test_a_checkpoint_stays_and_is_refused_for_other_labels():
    first = evaluated("--checkpoint", "saved").stdout
    assert evaluated("--checkpoint", "saved").stdout == first
    arguments = ("q.npy", "--labels", "two.csv", "--device", "cpu", "--checkpoint", "saved")
    text = refusal(*arguments)
    assert "saved is the checkpoint of another evaluation: labels is" in text
    assert "Choose another folder, or delete it to start again." in text
    assert "is a file; name a folder" in refusal(*arguments[:-1], "q.csv")
    assert "--checkpoint cannot be combined with --protocol dml" in refusal(*arguments, "--protocol", "dml")
    assert "--checkpoint cannot be combined with --gap" in refusal(*arguments, "--gap", 2)
