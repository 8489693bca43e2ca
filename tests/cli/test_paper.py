"""suprank paper: what is listed, refused, planned, trained, resumed, and written, and what exit codes say."""

import csv
import json
import signal
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from suprank.cli import paper as command
from suprank.executors.local import ExperimentStopped
from suprank.experiments import plots
from suprank.experiments.experiment import Executor
from suprank.paper.contents import contents
from suprank.paper.runs import PaperRuns
from tests.cli.collection import done, invoke, refused
from tests.experiments.runs import training_by
from tests.paper import miniature

ROOT = Path(__file__).parents[2]
COMPARISONS = ROOT / "benchmarks" / "results" / "comparison"
XBM = ("paper", "tab:compa_xbm", "--small", "--dataset", "glyphs", "--out", "out")


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """The working folder, where results are pretended."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Executor, "train", training_by(miniature.pretend))
    return tmp_path


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    return miniature.manifest(tmp_path_factory.mktemp("pictures"))


def table_rows(text):
    """The cells of a table that was printed, row by row, without its head."""
    lines = text.splitlines()
    rule = next(place for place, line in enumerate(lines) if set(line.strip()) == {"─"})
    body = lines[rule + 1 :]
    return [line.split() for line in body[: next(place for place, line in enumerate(body) if not line.strip())]]


def test_all_tables_and_figures_are_listed():
    listed = done("paper").stdout
    for item in contents().values():
        assert item.label in listed
        assert item.title in listed
    assert "suprank paper LABEL --out DIR" in listed


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["tab:compa"], "the paper has no tab:compa; did you mean tab:compa_xbm?"),
        (["compa_xbm"], "name a folder for what is written: suprank paper compa_xbm --out DIR"),
        (["run.epochs=1"], "run.epochs=1 changes runs, but no label is named"),
        (["compa_xbm", "--out", "file"], "out='file' is a file; name a folder."),
        (["compa_xbm", "--out", "out", "--data", "nowhere"], "data='nowhere' does not exist; name a folder."),
        (["compa_xbm", "--out", "out", "--data", "file", "--small"], "data='file' is a file; name a folder."),
        (["compa_xbm", "--out", "out", "--seeds", "0"], "greater than or equal to 1"),
        (
            ["compa_xbm", "--out", "out", "--small", "--dataset", "sop"],
            "datasets='sop' is none of the datasets of compa_xbm; choose from",
        ),
        (["compa_xbm", "--out", "out", "--method", "roadmp"], "choose from contrastive-xbm, roadmap."),
        (["smooth_rank", "--out", "out", "--dataset", "sop"], "smooth_rank needs no dataset; leave out datasets='sop'."),
        (["smooth_rank", "--out", "out", "--method", "csl"], "methods chooses rows of tables of results"),
        (["compa_xbm", "--out", "out", "--small", "run.epoch=1"], "run.epoch: there is no such key; did you mean run.epochs?"),
        (["fig:gldv2_scraping", "--out", "out"], "fig:gldv2_scraping is not reproduced. It shows web pages."),
        (["fig:dg_ap", "--out", "out"], "fig:dg_ap is an illustration. In a checkout, `python -m docs.drawings OUT fig:dg_ap`"),
        (["compa_xbm", "--out", "out"], "sop (Stanford Online Products) is missing: no folder of data was named (data)"),
        (["compa_xbm", "--out", "out", "--results", "empty"], "empty has no .csv files of `suprank compare`"),
        (["compa_xbm", "--out", "out", "--results", COMPARISONS], "small=True lays out the results of small sets."),
        (["compa_xbm", "--out", "out", "--small", "--results", COMPARISONS, "run.seed=1"], "run.seed=1 would change nothing"),
        (["compa_xbm", "--small", "--results", COMPARISONS, "--plan"], "leave out --plan"),
    ],
)
def test_what_cannot_be_done_is_refused_in_a_sentence_and_nothing_is_written(folder, arguments, sentence):
    (folder / "file").touch()
    (folder / "empty").mkdir()
    assert sentence in refused("paper", *arguments)
    assert sorted(path.name for path in folder.iterdir()) == ["empty", "file"]


def test_the_plan_before_in_the_middle_and_after(monkeypatch):
    assert "4 runs to do." in done("paper", "compa_xbm", "--small", "--plan").stdout, "without a folder"
    assert "2 runs to do." in done(*XBM, "--plan").stdout
    assert not Path("out").exists()
    done(*XBM, "--method", "roadmap")
    planned = done(*XBM, "--plan").stdout
    assert "1 run to do." in planned
    assert table_rows(planned) == [
        ["tab:compa_xbm", "glyphs/contrastive-xbm", "1", "0", "1"],
        ["tab:compa_xbm", "glyphs/roadmap", "1", "1", "0"],
    ]
    monkeypatch.setattr(PaperRuns, "state", lambda self, training, seed: "interrupted")
    assert "2 runs to do, of which 2 were interrupted and will be resumed." in done(*XBM, "--plan").stdout


def test_the_plan_of_finished_runs_and_of_drawings_says_so(folder):
    done(*XBM)
    planned = done(*XBM, "--plan").stdout
    assert "All runs are finished." in planned
    assert "Nothing has to be trained" in done("paper", "fig:smooth_rank", "--plan").stdout


def test_a_plan_refuses_what_no_recipe_has():
    assert "did you mean run.epochs?" in refused(*XBM, "--plan", "run.epoch=1")


def test_a_plan_says_where_datasets_are_and_which_are_missing(folder, pictures):
    data = folder / "[data]"
    data.mkdir()
    (data / "dyml-product.parquet").write_bytes(pictures.read_bytes())
    chosen = ("--dataset", "dyml-animal", "--dataset", "dyml-product", "--method", "smooth-ap")
    planned = done("paper", "main_dyml", "--data", data, *chosen, "--plan").stdout
    assert f"dyml-product: manifest {data / 'dyml-product.parquet'}." in planned
    assert "dyml-animal (DyML-Animal) is missing: " in planned
    assert "suprank data import dyml-animal dyml_animal --out dyml-animal.parquet" in planned
    assert [row[1] for row in table_rows(planned)] == ["dyml-animal/smooth-ap", "dyml-product/smooth-ap"]


def test_the_table_that_is_printed_is_that_of_the_files_and_of_compare():
    printed = table_rows(done(*XBM, "--seeds", 2).stdout)
    lines = Path("out/tab-compa_xbm-small.md").read_text(encoding="utf-8").splitlines()
    written = [line.replace("*", "").replace("|", " ").split() for line in lines[4:6]]
    assert printed == written
    rows = list(csv.DictReader(StringIO(Path("out/tab-compa_xbm-small.csv").read_text(encoding="utf-8"))))
    assert [f"{float(row['ours']):.1f}" for row in rows if row["metric"] == "R@1"] == [row[1] for row in printed]
    done("compare", "glyphs/contrastive-xbm", "glyphs/roadmap", "run.epochs=4", "--seeds", 2, "--out", "comparison")
    compared = Path("comparison/comparison.md").read_text(encoding="utf-8").splitlines()[2:4]
    first = [line.replace("*", "").split(" | ")[1].split()[0] for line in compared]
    assert [f"{float(number):.1f}" for number in first] == [row[1] for row in printed]
    assert Path("out/tab-compa_xbm-small.tex").read_text(encoding="utf-8").count(r"\textbf") == 2


def test_finished_runs_are_not_run_again_and_seeds_are_added():
    assert "finished already" not in done(*XBM).stderr
    assert "2 of 2 runs are finished already." in done(*XBM).stderr
    result = done(*XBM, "--seeds", 2)
    assert "2 of 4 runs are finished already." in result.stderr
    assert "over 2 seeds" in result.stdout
    assert len(json.loads(Path("out/experiment.json").read_text())["runs"]) == 4


def test_collect_writes_the_table_without_running(monkeypatch):
    done(*XBM, "--method", "roadmap")
    monkeypatch.setattr(Executor, "train", lambda *_: pytest.fail("nothing is to be run"))
    xbm, roadmap = table_rows(done(*XBM, "--collect").stdout)
    assert xbm[1] == "–"
    assert float(roadmap[1]) > 0


def test_settings_that_conflict_with_finished_runs_are_refused_and_not_recorded():
    done(*XBM)
    before = Path("out/experiment.json").read_text()
    assert "with other settings: run.epochs was 4 and is 3" in refused(*XBM, "run.epochs=3")
    assert Path("out/experiment.json").read_text() == before


def test_a_run_that_fails_gives_exit_code_1_and_the_table_of_the_others(monkeypatch):
    def one_fails(config, folder):
        if "contrastive" in folder.name:
            raise OSError("the disk is full")
        miniature.pretend(config, folder)

    monkeypatch.setattr(Executor, "train", training_by(one_fails))
    result = invoke(*XBM)
    assert result.exit_code == 1
    assert "1 of 2 runs failed: glyphs/contrastive-xbm,seed=0. Given again, the command resumes them." in result.stderr
    xbm, roadmap = table_rows(result.stdout)
    assert (xbm[1], roadmap[1] != "–") == ("–", True)
    assert Path("out/tab-compa_xbm-small.md").exists()


def test_ctrl_c_gives_exit_code_130_and_says_how_to_resume(monkeypatch):
    def stopped(*_):
        raise ExperimentStopped(signal.SIGINT)

    monkeypatch.setattr(Executor, "train", stopped)
    result = invoke(*XBM)
    assert result.exit_code == 130
    assert "Give the same command again to resume them in out." in result.stderr


def test_drawings_go_anywhere_and_tables_into_folders_of_their_own(monkeypatch, folder):
    monkeypatch.setattr(plots, "save_figure", lambda figure, files, alt: [file.touch() for file in files])
    (folder / "notes").mkdir()
    (folder / "notes" / "letter.txt").touch()
    for name in ("notes", "out"):
        assert f"{name}/fig-smooth_rank.svg" in done("paper", "smooth_rank", "fig:smooth_rank", "--out", name).stdout
    assert "it has fig-smooth_rank.png, but no experiment.json" in refused(*XBM[:-1], "notes")
    done(*XBM)
    assert {"fig-smooth_rank.png", "tab-compa_xbm-small.md"} <= {file.name for file in Path("out").iterdir()}


def test_saved_comparisons_are_laid_out_and_tables_that_are_computed_left_out():
    result = done("paper", "tables", "--small", "--results", COMPARISONS, "--dataset", "cub112", "--out", "out")
    assert "tab-compa_bounds" not in result.stdout
    with (COMPARISONS / "cub112.csv").open(encoding="utf-8") as file:
        shares = [float(row["R@1"]) for row in csv.DictReader(file) if row["recipe"] == "roadmap" and row["finished"] == "yes"]
    rows = csv.DictReader(StringIO(Path("out/tab-compa_xbm-small.csv").read_text(encoding="utf-8")))
    (ours,) = [float(row["ours"]) for row in rows if (row["method"], row["metric"]) == ("ROADMAP", "R@1")]
    assert ours == pytest.approx(100 * sum(shares) / len(shares))


def test_numbers_of_three_test_sets_are_their_mean(monkeypatch, folder, pictures):
    def three(config, folder):
        miniature.pretend(config, folder)
        result = json.loads((folder / "result.json").read_text())
        shares = {"fine": 0.1, "middle": 0.2, "coarse": 0.6}
        result["metrics"] = {name: {"AP": share, "ASI": 1 - share, "R@1": share / 2} for name, share in shares.items()}
        (folder / "result.json").write_text(json.dumps(result))

    monkeypatch.setattr(Executor, "train", training_by(three))
    for test in ("", "-fine", "-middle", "-coarse"):
        (folder / f"dyml-vehicle{test}.parquet").write_bytes(pictures.read_bytes())
    choice = ("--dataset", "dyml-vehicle", "--method", "happier")
    done("paper", "main_dyml", "--data", ".", "--out", "out", *choice)
    rows = csv.DictReader(StringIO(Path("out/tab-main_dyml.csv").read_text(encoding="utf-8")))
    numbers = [float(row["ours"]) for row in rows if row["method"] == "HAPPIER"]
    assert numbers == pytest.approx([30, 70, 15])


@pytest.mark.parametrize("columns", [40, 80, 400])
def test_no_number_is_folded_in_a_terminal(monkeypatch, capsys, columns):
    class Terminal(Console):
        def __init__(self, **options):
            super().__init__(**options, width=columns, force_terminal=True, color_system=None)

    monkeypatch.setattr("rich.console.Console", Terminal)
    head = ["", "Method", *(f"Omniglot R@{k}" for k in range(12))]
    command._print_rows(head, [["Fine", "NSM", *(f"{k}.5 ± 0.1" for k in range(12))]], right_from=2, split=True)
    printed = capsys.readouterr().out
    assert all(f"{k}.5 ± 0.1" in printed for k in range(12))
    assert max(map(len, printed.splitlines())) <= columns
    assert (printed.count("NSM") == 1) == (columns == 400)


def test_on_says_where_runs_are_trained(monkeypatch):
    places = []

    def train(executor, *arguments):
        places.append((executor.on, executor.jobs))
        return training_by(miniature.pretend)(executor, *arguments)

    monkeypatch.setattr(Executor, "train", train)
    done(*XBM, "--on", "ray=10.0.0.1:6379", "--jobs", 2)
    assert places == [("ray=10.0.0.1:6379", 2)]
    assert "on='spark' must be local, ray, ray=HOST:PORT, or slurm" in refused(*XBM, "--on", "spark")
