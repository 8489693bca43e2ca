"""Tables and figures from the first run to the files: what is trained, shared, resumed, refused and written."""

import csv
import json
from pathlib import Path

import pytest

from suprank.experiments import Outcome, Statistic
from suprank.experiments.experiment import Executor
from suprank.paper import layout, reproduce
from suprank.paper.contents import StudyItem, TableItem, contents, recipes_of_the_paper, table_items
from suprank.paper.output import Output
from suprank.paper.reproduction import Reproduction
from suprank.paper.runs import Training
from tests.experiments.runs import training_by
from tests.paper import miniature

ROOT = Path(__file__).parents[2]
COMPARISONS = ROOT / "benchmarks" / "results" / "comparison"


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    return miniature.manifest(tmp_path_factory.mktemp("pictures"))


@pytest.fixture
def pretended(monkeypatch):
    """Results without training. Returns the names of the runs, as they are run."""
    names = []

    def pretend(config, folder):
        names.append(f"{folder.parent.name}/{folder.name}")
        miniature.pretend(config, folder)

    monkeypatch.setattr(Executor, "train", training_by(pretend))
    return names


@pytest.fixture
def datasets(tmp_path, pictures):
    """A folder with a manifest of every dataset of the paper, all of the same few pictures."""
    folder = tmp_path / "datasets"
    folder.mkdir()
    for preset in ("sop", "cub", "inat-base", "inat-full", "dyml-product"):
        (folder / f"{preset}.parquet").write_bytes(pictures.read_bytes())
    return folder


def test_every_table_and_figure_of_trained_models_on_a_miniature(monkeypatch, tmp_path, pictures):
    """The whole paper, trained for real: everything that is drawn or laid out here comes from the runs of one folder."""
    monkeypatch.setattr(Executor, "train", training_by(miniature.train_here))
    labels = [label for label, item in contents().items() if item.kind not in ("drawing", "illustration", "none", "study")]
    labels += ["fig:analysis_lambda"]
    options = {"small": True, "datasets": ["glyphs"], "overrides": miniature.overrides(pictures)}
    result = reproduce(labels, tmp_path / "out", **options)
    assert not result.failed
    assert {table.item.label for table in result.tables} == set(table_items())
    for table in result.tables:
        assert all(cell.ours for line in table.lines for cell in line.cells.values()), table.item.label
        assert table.order_sentences()
    written = {file.name for file in result.files}
    for item in contents().values():
        suffixes = {"table": (".md", ".tex", ".csv"), "study": (".csv", ".png", ".svg"), "map": (".png", ".svg")}.get(
            item.kind, (".png",)
        )
        if item.label in labels and not item.parts:
            assert {f"{item.file_name}-small{suffix}" for suffix in suffixes} <= written, item.label
    again = reproduce([*table_items()], tmp_path / "out", **options, collect=True)
    assert again.tables == result.tables


def test_the_runs_of_a_table_are_shared_with_other_tables(pretended, tmp_path, datasets):
    out = tmp_path / "out"
    reproduce("tab:compa_ranking_losses", out, data=datasets, seeds=2)
    assert len(pretended) == 5 * 2 * 2
    assert "sop/roadmap,seed=1" in pretended
    pretended.clear()
    reproduce("tab:ablation_study", out, data=datasets, seeds=2)
    assert "sop/roadmap,seed=1" not in pretended
    assert len(pretended) == 6 * 2 * 2
    runs = json.loads((out / "experiment.json").read_text())["runs"]
    assert len(runs) == len(set(map(str, runs))) == 20 + 24


def test_the_table_has_the_papers_numbers_beside_ours(pretended, tmp_path, datasets):
    result = reproduce("tab:hrank_optim", tmp_path / "out", data=datasets, seeds=2, command="suprank paper tab:hrank_optim")
    text = (tmp_path / "out" / "tab-hrank_optim.md").read_text(encoding="utf-8")
    assert "# How H-AP is optimized" in text
    (table,) = result.tables
    cell = table.lines[0].cells["inat-base", "H-AP"]
    assert cell.paper == 52.3
    assert cell.ours.seeds == 2
    assert f"/ 52.3 ({cell.difference:+.1f})".replace("-", "−") in text
    assert (tmp_path / "out" / "tab-hrank_optim.tex").read_text().startswith("% suprank paper tab:hrank_optim\n")
    rows = list(csv.DictReader((tmp_path / "out" / "tab-hrank_optim.csv").read_text().splitlines()))
    assert [float(row["paper"]) for row in rows] == [52.3, 53.1, 54.3]
    assert len(pretended) == 6


def test_a_table_states_its_exceptions_and_others_are_refused(pretended, tmp_path, datasets):
    result = reproduce("tab:compa_xbm", tmp_path / "out", data=datasets)
    assert any("batch.size is 128 in contrastive-xbm" in note for note in result.tables[0].notes)
    paper = Reproduction(("tab:compa_xbm",), tmp_path / "other", data=datasets)
    with pytest.raises(ValueError, match="sop: the recipes do not have the same dataset and budget: batch.size"):
        paper.runs.check(paper.trainings(paper.items[0]))


def test_a_number_of_workers_is_no_other_setting(pretended, tmp_path, datasets):
    out = tmp_path / "out"
    reproduce("tab:hrank_optim", out, data=datasets)
    pretended.clear()
    reproduce("tab:hrank_optim", out, data=datasets, overrides=["data.workers=3"])
    assert pretended == []


def test_a_plan_counts_the_runs_of_each_seed_once_and_changes_nothing(pretended, tmp_path, datasets):
    out = tmp_path / "out"
    reproduce("tab:hrank_optim", out, data=datasets, methods=["happier"])
    before = {file: file.stat().st_mtime_ns for file in out.rglob("*")}
    labels = ("tab:hrank_optim", "fig:analysis_alpha", "tab:landmark_retrieval")
    plan = Reproduction(labels, out, data=datasets, seeds=2).plan()
    assert {label: len(trainings) for label, trainings in plan.trainings.items()} == {labels[0]: 3, labels[1]: 6, labels[2]: 7}
    assert len(plan.states) == 3 + 6 + 7 - 1, "HAPPIER with the recipe's own α is in two of them"
    assert plan.states[Training("inat-base", "happier")] == ["finished", "missing"]
    rows = [row for row in plan.text_cells() if row[1] == "inat-base/happier"]
    assert rows == [[label, "inat-base/happier", "2", "1", "1"] for label in labels[:2]]
    runs, found, missing = plan.sentences()
    assert runs == f"{2 * len(plan.states) - 1} runs to do; runs that several tables or figures need are done once."
    assert found == f"inat-base: manifest {datasets / 'inat-base.parquet'}."
    assert missing.startswith("hgldv2 (H-GLDv2) is missing")
    assert "suprank data import hgldv2 google-landmark --out hgldv2.parquet" in missing
    assert {file: file.stat().st_mtime_ns for file in out.rglob("*")} == before


def test_rows_and_columns_can_be_chosen(pretended, tmp_path, datasets):
    result = reproduce("tab:main_sop_inat", tmp_path / "out", data=datasets, methods=["happier", "csl"], datasets=["sop"])
    assert sorted(pretended) == ["sop/csl,seed=0", "sop/happier,seed=0"]
    (table,) = result.tables
    assert [columns.preset for columns in table.columns] == ["sop"]
    assert sum(any(cell.ours for cell in line.cells.values()) for line in table.lines) == 2


def test_a_study_shares_the_run_of_the_recipe_itself(pretended, tmp_path, datasets):
    result = reproduce("fig:lambda_roadmap", tmp_path / "out", data=datasets)
    assert "inat-base/roadmap,seed=0" in pretended, "λ = 0.1 is the recipe's own"
    assert "inat-base/roadmap,loss.weight=0.3,seed=0" in pretended
    assert len(pretended) == 7
    rows = list(csv.DictReader((tmp_path / "out" / "fig-lambda_roadmap.csv").read_text().splitlines()))
    assert [row["loss.weight"] for row in rows] == ["0", "0.1", "0.3", "0.5", "0.7", "0.9", "1"]
    assert [float(row["paper"]) for row in rows][:2] == [68.93, 71.76]
    assert (tmp_path / "out" / "fig-lambda_roadmap.png").stat().st_size > 1000
    assert len(result.files) == 3


def test_an_increase_is_that_over_the_other_recipe_at_the_same_value(pretended, tmp_path, datasets):
    reproduce("fig:relative_increase_sop", tmp_path / "out", data=datasets, seeds=2)
    assert len(pretended) == 5 * 2 * 2
    read = {
        run: json.loads((tmp_path / "out" / "sop" / run / "result.json").read_text())
        for run in ("roadmap,seed=0", "sup-ap,seed=0")
    }
    ours, base = (one["metrics"]["test"]["mAP@R"] for one in read.values())
    rows = {
        row["batch.size"]: row
        for row in csv.DictReader((tmp_path / "out" / "fig-relative_increase_sop.csv").read_text().splitlines())
    }
    assert set(rows) == {"32", "64", "128", "256", "384"}
    first, second = 100 * (ours / base - 1), float(rows["256"]["mAP@R increase, %"])
    assert second == pytest.approx(first, abs=1.0)
    assert rows["256"]["paper"] == "0.7"


def test_an_increase_is_of_seeds_that_both_have(tmp_path):
    study = Reproduction(("fig:relative_increase_sop",), tmp_path).studies(contents()["fig:relative_increase_sop"])[0]
    point = study.points[0]

    def outcome(share):
        return None if share is None else Outcome(1, 1, 1.0, {"test": {"mAP@R": share}})

    results = {point.training: list(map(outcome, (0.3, None, 0.6))), point.base: list(map(outcome, (0.2, 0.1, None)))}
    assert study.value(point, results) == Statistic.from_shares([0.3 / 0.2 - 1])


def test_a_figure_with_parts_is_made_of_its_parts():
    parts = Reproduction(("fig:analysis_alpha_lambda",), Path("unused")).items
    assert [item.label for item in parts] == ["fig:analysis_alpha", "fig:analysis_lambda"]
    assert [item.label for item in Reproduction(("fig:smooth_rank",), Path("unused")).items] == ["fig:smooth_rank"]
    assert {item.label for item in Reproduction(("all",), Path("unused")).items} >= {
        item.label for item in contents().values() if not item.parts
    }
    assert all(
        isinstance(item, TableItem) or item.kind == "drawing" for item in Reproduction(("tables",), Path("unused")).items
    )


def test_the_tables_of_saved_comparisons_are_those_of_the_page():
    """Two ways to one number: the page of results and the command give the same digits."""
    paper = Reproduction(("tab:compa_ranking_losses",), Path("unused"), small=True, results=COMPARISONS)
    text = layout.markdown(Output(paper, paper.saved_results).table(paper.items[0]), notes=False)
    assert text in (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    with pytest.raises(ValueError, match="results is for tables, and fig:lambda_roadmap is a figure"):
        reproduce("fig:lambda_roadmap", "unused", small=True, results=COMPARISONS)


def test_every_study_and_model_of_the_paper_has_a_recipe_that_a_table_has_too():
    for item in contents().values():
        if isinstance(item, StudyItem):
            assert {item.recipe, item.base or item.recipe} <= recipes_of_the_paper()
