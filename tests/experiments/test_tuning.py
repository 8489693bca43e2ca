"""The search of a comparison: equal budgets, validation classes from the training classes, and trials that survive a stop."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from suprank.data import Manifest
from suprank.executors.local import Answer, Crashed
from suprank.experiments import Display, SearchSettings, compare, plan_comparison, plots, tuning
from suprank.experiments.experiment import Executor
from suprank.experiments.folds import fold_level, fold_manifests
from suprank.experiments.train_run import train_run
from suprank.training.batches import batches_per_epoch
from suprank.training.recipe import read_recipe, to_toml
from tests.experiments.runs import write_recipe
from tests.training import runs

TWO = SearchSettings(4, folds=2)


def write_manifest(classes=16, images=2, splits=("train", "test"), groups=4):
    """Classes of `splits` in turn, each in one of some groups; the images do not exist."""
    rows = [
        (f"{one}-{image}.jpg", splits[one % len(splits)], f"k{one:02}", f"g{one // len(splits) % groups}")
        for one in range(classes)
        for image in range(images)
    ]
    path, split, fine, coarse = map(list, zip(*rows, strict=True))
    Manifest.from_columns({"path": path, "split": split, "label_fine": fine, "label_coarse": coarse}, root=".").save(
        "m.parquet"
    )
    return Manifest.read("m.parquet")


@pytest.fixture(autouse=True)
def recipes(folder, monkeypatch):
    """Two recipes; λ, which the stand-in for training makes a result of, is the only setting that matters."""
    write_manifest()
    for name, weight in {"a": 0.1, "b": 0.2}.items():
        write_recipe(name, weight, batch={"size": 4, "images_per_class": 2})
    for function in ("draw_comparison", "draw_search"):
        monkeypatch.setattr(plots, function, lambda one: [])


def tuned(*recipes, tune=TWO, overrides=("data.manifest=m.parquet",), **options):
    return compare(recipes, "out", list(overrides), tune=tune, **options)


class Notes(Display):
    """Keeps notes, and may raise when a number of runs has ended."""

    def __init__(self, stop_after=None):
        self.notes, self.ended, self.stop_after = [], 0, stop_after

    def note(self, text):
        self.notes.append(text)

    def run_ended(self, name, failure="", value=None):
        self.ended += 1
        if self.ended == self.stop_after:
            raise KeyboardInterrupt


def test_every_recipe_is_searched_then_trained_as_it_is_and_with_its_best_setting(folder):
    result = tuned("a.toml", "b.toml", seeds=2)
    assert [row.label for row in result.table.rows] == ["a", "a, tuned", "b", "b, tuned"]
    assert result.planned == 8
    assert {label: len(trials) for label, trials in result.search.trials.items()} == {"a": 4, "b": 4}
    for label, own in (("a", 0.1), ("b", 0.2)):
        trials, best = result.search.trials[label], result.search.best(label)
        assert trials[0].params["loss.weight"] == own, "the first trial is the recipe"
        assert best.params["loss.weight"] == max(trial.params["loss.weight"] for trial in trials) > own
        assert best.folds == (best.params["loss.weight"] / 2,) * 2, "H-AP, with the same seed in both folds"
        recipe = read_recipe(f"out/tuned/{label}.toml")
        assert (recipe.loss.weight, recipe.data.manifest) == (best.params["loss.weight"], "m.parquet")
        rows = {row.label: row.statistics["R@1"].mean for row in result.table.rows}
        assert rows[f"{label}, tuned"] == pytest.approx(100 * best.params["loss.weight"] + 0.5)
    written = (folder / "out/comparison.md").read_text()
    assert "| recipe | tuned | R@1, % |" in written
    assert "| a | loss" not in written
    assert "4 trials for every recipe, each of 2 runs of 100 epochs, on 2 folds of the training classes" in written
    assert "| 4 | 0 | 800 | 12 |" in written, "trials, failed, epochs, seconds"
    assert len((folder / "out/comparison-search.csv").read_text().splitlines()) == 9
    display = Notes()
    assert tuned("a.toml", "b.toml", seeds=2, display=display).table == result.table
    best = result.search.best("a")
    assert f"loss.weight={best.params['loss.weight']}" in display.notes[-1]
    assert f"; H-AP on validation classes 5.00 → {100 * best.value:.2f} %\nb: " in display.notes[-1]
    assert display.notes[-1].endswith("all trials: out/comparison-search.md, .csv and .png")
    assert {len(begun.read_text()) for begun in (folder / "out").glob("*/begun")} == {1}, "nothing runs twice"


def test_a_trial_has_only_training_images_and_one_evaluation(folder):
    plan = plan_comparison(["a.toml"], "out", ["data.manifest=m.parquet"], tune=TWO)
    assert plan.runs[0].overrides[:3] == ["data.manifest=m.parquet", "evaluation.every=0", "evaluation.at_start=false"]
    tuned("a.toml")
    trial = read_recipe("out/a,trial=1,fold=1/recipe.toml")
    assert trial.data.manifest == f"{folder}/out/search/fold-1.parquet"
    assert (trial.data.tests, trial.data.root, trial.evaluation.every) == ({}, None, 0)
    whole = Manifest.read("m.parquet")
    for number in (0, 1):
        fold = Manifest.read(f"out/search/fold-{number}.parquet")
        assert fold.paths.to_pylist() == whole.split("train").paths.to_pylist()


def test_a_search_that_was_killed_continues_with_the_trials_it_would_have_had(folder):
    whole = tuned("a.toml", "b.toml", tune=SearchSettings(6, folds=2)).search.trials
    (folder / "out").rename("whole")
    for stop_after in (1, 4, 10):
        with pytest.raises(KeyboardInterrupt):
            tuned("a.toml", "b.toml", tune=SearchSettings(6, folds=2), display=Notes(stop_after))
    display = Notes()
    resumed = tuned("a.toml", "b.toml", tune=SearchSettings(6, folds=2), display=display).search.trials
    assert resumed == whole
    assert display.ended < 24, "what had ended was not run again"


def test_without_its_journal_a_search_reads_the_trials_from_their_runs(folder):
    whole = tuned("a.toml").search.trials
    (folder / "out/search/optuna.journal").unlink()
    display = Notes()
    assert tuned("a.toml", display=display).search.trials == whole
    assert display.ended == 0


@pytest.mark.parametrize(
    ("order", "reason"),
    [
        ("too-high", "the loss is nan"),
        ("too-large", "MemoryError: 9 GiB"),
        ("killed", "was ended by SIGKILL (perhaps memory ran out)"),
    ],
)
def test_a_setting_whose_loss_is_nan_or_that_runs_out_of_memory_is_the_worst_and_counts(folder, order, reason):
    Path(order).write_text("0.5")
    display = Notes()
    result = tuned("a.toml", tune=SearchSettings(6, folds=2), display=display)
    trials = result.search.trials["a"]
    failed = [trial for trial in trials if trial.params["loss.weight"] > 0.5]
    assert failed
    assert len(trials) == 6
    assert all(trial.value == 0 and trial.failure.endswith(reason) for trial in failed)
    assert result.search.best("a").params["loss.weight"] <= 0.5
    assert result.failed == ()
    number = failed[0].number
    log = folder / f"out/logs/a,trial={number},fold=0.log"
    assert f"a,trial={number},fold=0: {reason}\nSo its trial is the worst; its log is {log}." in display.notes


def test_where_all_trials_fail_there_is_no_tuned_row_and_it_is_said(folder):
    Path("too-high").write_text("0.001")
    display = Notes()
    result = tuned("a.toml", tune=SearchSettings(2, folds=2), display=display)
    assert "all 2 trials of a failed, so there is no tuned run of it." in display.notes
    assert result.table is None
    assert result.failed == ("a,tuned=no,seed=0",)


def test_a_failure_for_which_no_setting_is_to_blame_ends_the_search_and_names_the_log(folder):
    Path("refuse").touch()
    with pytest.raises(
        ValueError, match=r"(?s)a,trial=0,fold=0 failed, and no setting .*no file images/7.jpg.*out/logs/a,trial"
    ):
        tuned("a.toml")
    Path("refuse").unlink()
    assert len(tuned("a.toml").search.trials["a"]) == 4


def test_a_run_that_somebody_stopped_is_no_setting_s_fault():
    faults = {-9: True, -11: True, -15: False, -2: False, 1: False}
    assert {code: tuning.is_settings_fault(Crashed(code)) for code in faults} == faults
    assert not tuning.is_settings_fault(RuntimeError("batch.size=9: try to allocate fewer"))


def test_a_recipe_that_was_best_as_it_is_is_not_trained_again(folder):
    write_recipe("top", 0.9, batch={"size": 4, "images_per_class": 2})
    result = tuned("top.toml")
    assert result.search.best("top").number == 0
    assert [row.statistics["R@1"].mean for row in result.table.rows] == [90.0, 90.0]
    assert not (folder / "out/top,tuned=yes,seed=0").exists()
    assert "(the recipe's own)" in result.search.markdown()


# Equal budgets


def test_other_budgets_than_those_in_the_folder_are_refused(folder):
    tuned("a.toml")
    for tune, complaint in [
        (replace(TWO, trials=5), "tune was 4 and is 5"),
        (replace(TWO, folds=3), "folds was 2 and is 3"),
        (replace(TWO, level="coarse"), "fold_level was 'fine' and is 'coarse'"),
        (replace(TWO, search=("loss.tau=",)), "search was '' and is 'loss.tau='"),
        (None, "was tuned with tune=4, and methods can only be compared with the same budget; give that too"),
    ]:
        with pytest.raises(ValueError, match=complaint):
            plan_comparison(["b.toml"], "out", ["data.manifest=m.parquet"], tune=tune)
    more = tuned("b.toml")
    assert [row.label for row in more.table.rows] == ["a", "a, tuned", "b", "b, tuned"]
    assert more.planned == 2


def test_methods_whose_trials_cost_more_are_refused_whatever_may_differ():
    write_recipe("long", run={"epochs": 300}, batch={"size": 4, "images_per_class": 2})
    plan_comparison(["a.toml", "long.toml"], "out", may_differ=["run.epochs"])
    with pytest.raises(ValueError, match=r"run.epochs is 100 in a, 300 in long, but tune gives every method the same budget"):
        plan_comparison(["a.toml", "long.toml"], "out", may_differ=["run.epochs"], tune=TWO)


@pytest.mark.parametrize(
    ("tune", "overrides", "complaint"),
    [
        (SearchSettings(2), ["evaluation.every=1"], "evaluation.every is set by tune"),
        (SearchSettings(2, search=("loss.ratio=1,2",)), [], "search=loss.ratio is a key of none of the recipes"),
        (SearchSettings(2, search=("loss.weight=0:2",)), [], r"a cannot be tuned in loss.weight=0:2, so nothing was"),
        (SearchSettings(2, search=("run.epochs=1,2",)), [], r"search=run.epochs: .* the same budget and the same evaluation"),
        (SearchSettings(2, search=("evaluation.decay=0.5,1",)), [], r"search=evaluation.decay: .* the same evaluation"),
        (
            SearchSettings(2, search=tuple(f"{key}=" for key in ("optimizer.lr", "proxies.lr", "batch.images_per_class"))),
            [f"loss.{key}=0.1" for key in ("tau", "weight", "temperature")],
            "a has nothing to tune",
        ),
    ],
)
def test_what_cannot_be_searched_is_refused_before_anything_runs(tune, overrides, complaint, folder):
    with pytest.raises(ValueError, match=complaint):
        compare(["a.toml"], "out", overrides, tune=tune)
    assert not (folder / "out").exists()


def test_too_few_trials_or_folds_are_refused():
    with pytest.raises(ValueError, match="tune=1 must be 2 or more"):
        SearchSettings(1)
    with pytest.raises(ValueError, match="folds=1 must be 2 or more"):
        SearchSettings(4, folds=1)


def test_keys_that_are_given_for_all_are_not_searched_and_ranges_can_be_replaced():
    given = ("optimizer.lr=0.1:0.2", "batch.images_per_class=", "run.clip_grad_norm=")
    plan = plan_comparison(["a.toml"], "out", ["loss.tau=0.05"], tune=SearchSettings(2, search=given))
    space = plan.record.search.spaces["a"]
    assert set(space) == {"optimizer.lr", "proxies.lr", "loss.temperature", "loss.weight"}
    assert str(space["optimizer.lr"]) == "1e-05:0.2", "widened to the recipe's own"


def test_the_rate_of_the_head_keeps_its_ratio():
    write_recipe("head", optimizer={"lr": 0.001, "head_lr": 0.002})
    config = read_recipe("head.toml")
    assert tuning.params_overrides(config, {"optimizer.lr": 0.0005, "batch.images_per_class": 2}) == [
        "optimizer.lr=0.0005",
        "batch.images_per_class=2",
        "optimizer.head_lr=0.001",
    ]
    fixed = tuning.params_overrides(config, {"optimizer.lr": 0.0005}, ["optimizer.head_lr=0.002"])
    assert fixed == ["optimizer.lr=0.0005"], "it was given for all"


# Validation classes


def test_folds_have_no_test_image_and_every_training_class_is_validated_once():
    manifest = write_manifest(classes=24, groups=3)
    folds = fold_manifests(manifest, 4, "fine")
    own = set(np.unique(manifest.split("train").labels[:, 0]).tolist())
    held_out = []
    for fold in folds:
        assert set(fold.paths.to_pylist()) == set(manifest.split("train").paths.to_pylist())
        train, test = (set(np.unique(fold.split(part).labels[:, 0]).tolist()) for part in ("train", "test"))
        assert not train & test
        assert train | test == own
        assert len({int(group) for group in fold.split("test").labels[:, 1]}) == 3, "of every group"
        held_out += test
    assert sorted(held_out) == sorted(own)


def test_folds_without_wrong_answers_are_refused():
    manifest = write_manifest(classes=16)
    with pytest.raises(ValueError, match="folds=5 leaves a fold with one class"):
        fold_manifests(manifest, 5, "fine")
    with pytest.raises(ValueError, match="cannot be divided into validation folds: folds=9 must be from 2 to 8"):
        fold_manifests(manifest, 9, "fine")
    assert len(fold_manifests(manifest, 4, "coarse")) == 4


def test_validation_classes_are_to_training_classes_as_test_classes_are():
    shared = write_manifest(classes=32)
    assert fold_level(shared, None, 2) == "fine", "other classes of the same groups"
    columns = {name: shared.table[name].to_pylist() for name in ("path", "label_fine", "label_coarse")}
    apart = [
        f"{split} {group}" for split, group in zip(shared.table["split"].to_pylist(), columns["label_coarse"], strict=True)
    ]
    other = Manifest.from_columns({**columns, "label_coarse": apart, "split": shared.table["split"].to_pylist()}, root=".")
    assert fold_level(other, None, 2) == "coarse", "other groups, as Omniglot's alphabets"
    assert fold_level(other, None, 3) == "fine", "four groups are too few for three folds"
    assert fold_level(other, ["fine"], 2) == "fine"
    assert fold_level(other.split("train"), None, 2) == "fine"
    with pytest.raises(ValueError, match="no labeled training images"):
        fold_level(other.split("test"), None, 2)


def test_images_per_class_leave_enough_classes_for_a_batch_in_every_fold():
    # Of 8 training classes a fold trains on 4: batches of 8 have 4 classes of 2, 2 of 4 or 1 of 8, and not 8 of 1.
    batch = ["data.manifest=m.parquet", "batch.size=8"]
    plan = plan_comparison(["a.toml"], "out", batch, tune=replace(TWO, search=("batch.images_per_class=1,2,4",)))
    found = tuning.Search.prepare(plan)
    assert found.settings.spaces["a"]["batch.images_per_class"].values == (2, 4)
    assert (found.settings.level, found.settings.metric) == ("fine", "H-AP")
    large = plan_comparison(["a.toml"], "out", ["data.manifest=m.parquet", "batch.size=12"], tune=TWO)
    with pytest.raises(ValueError, match=r"a: a fold cannot fill a batch: .*needs 6 classes.* More folds leave more classes"):
        tuning.Search.prepare(large)


def test_every_setting_has_the_steps_of_its_recipe(folder):
    given = ["data.manifest=m.parquet"]
    plan = plan_comparison(["a.toml"], "out", given, tune=replace(TWO, search=("batch.images_per_class=2,4",)))
    search = tuning.Search.prepare(plan)
    params = {"batch.images_per_class": 4, "loss.weight": 0.5}
    own = [f"{key}={value}" for key, value in params.items()]
    counts = {}
    for fold, images in ((None, search.train), (0, search.folds[0].split("train"))):
        filled_up, equal = (read_recipe("a.toml", [*given, *one]) for one in (own, search.setting("a", params, fold)))
        counts[fold] = [batches_per_epoch(one, images) for one in (plan.configs["a"], filled_up, equal)]
        assert counts[fold][2] == counts[fold][0]
    assert counts[None][1] > counts[None][0], "a class of two images fills a group of two, and is repeated in a group of four"
    assert counts[0][0] < counts[None][0]
    assert search.setting("a", {"batch.images_per_class": 2}) == ["batch.images_per_class=2"]
    search.folder.mkdir(parents=True)
    search._write_folds()
    assert search.fold_runs("a", 1, params)[0].config.batch.batches == counts[0][0]


def test_other_training_images_than_those_of_the_search_are_refused(folder):
    tuned("a.toml")
    write_manifest(classes=18)
    with pytest.raises(ValueError, match=r"not those of .*fold-0.parquet, with which the search began"):
        tuned("a.toml")


def test_a_metric_that_no_run_measures_is_refused():
    with pytest.raises(ValueError, match=r"'mAP@7' is not measured on .*m.parquet"):
        tuned("a.toml", overrides=("data.manifest=m.parquet", "evaluation.best=mAP@7"))


# With real training


def test_no_test_image_is_read_before_the_search_is_over(folder, monkeypatch):
    manifest = runs.pictures(folder / "pictures", classes=8, tests=2)
    table = Manifest.read(manifest)
    is_test = table.labels[:, 0] >= 4
    table.with_columns(split=["test" if one else "train" for one in is_test.tolist()]).save(manifest)
    hidden = [folder / "pictures" / path for path, one in zip(table.paths.to_pylist(), is_test, strict=True) if one]
    short = {"batch": {"size": 4, "images_per_class": 2, "batches": 2}, "run": {"epochs": 1}}
    Path("real.toml").write_text(to_toml(runs.recipe(manifest, **short)))
    for image in hidden:
        image.rename(image.with_suffix(".hidden"))
    trained = []

    def train_here(executor, tasks, configs, folder, display):
        """Train in this process; the test images are back after the trials."""
        if "tuned" in tasks[0].name:
            for image in hidden:
                image.with_suffix(".hidden").rename(image)
        while tasks:
            task = tasks.popleft()
            display.run_started(task.name)
            trained.append(task.name)
            yield task, Answer(train_run(*task.arguments))

    monkeypatch.setattr(Executor, "train", train_here)
    result = compare(["real.toml"], "out", tune=SearchSettings(2, folds=2), metrics=["R@1"])
    assert trained[:4] == [f"real,trial={trial},fold={fold}" for trial in (0, 1) for fold in (0, 1)]
    assert all(not trial.failure and trial.value > 0 for trial in result.search.trials["real"])
    assert all(name.startswith("real,tuned=") for name in trained[4:])
    assert not (folder / "out/real,trial=0,fold=0/model").exists(), "weights of trials are not kept"
    assert (folder / "out/real,tuned=no,seed=0/model").exists()
    reports = sorted(file.name for file in (folder / "out/real,tuned=no,seed=0/reports").iterdir())
    assert reports == ["test-epoch-0001.json", "test-epoch-0001.queries.npz"], "one evaluation"
    assert result.significance.missing.startswith("a single training says nothing about another one")
