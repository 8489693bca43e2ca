"""benchmarks/decomposability.py: which runs there are and in which order, one of each kind, and the tables and figures."""

import json
import runpy
import sys
from pathlib import Path
from types import SimpleNamespace

import matplotlib.image
import numpy as np
import pytest
from PIL import Image

from suprank.data import Manifest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "decomposability.py"
STUDIES = ["images", "sizes"]
CLASSES = 800


@pytest.fixture(scope="module")
def script():
    return SimpleNamespace(**runpy.run_path(str(SCRIPT)))


def arguments(tmp_path=None, **changes):
    options = {"study": STUDIES, "images": 64_000, "batches": [16, 32, 1024], "seeds": 2, "steps": 2000}
    return SimpleNamespace(**{**options, "out": tmp_path and tmp_path / "rows.jsonl", **changes})


def row(script, point, value=10.0, gap=5.0, seconds=2.0):
    gaps = None if point.study == "tuning" else {"gap": gap}
    return json.loads(json.dumps({**vars(point), "mAP@R": value, "gap": gaps, "images": 8000, "seconds": seconds}))


def test_a_gain_is_the_difference_to_sup_ap_at_the_same_size_with_an_interval_over_seeds(script):
    values = {
        ("sup-ap", 16): (10.0, 12.0),
        ("roadmap", 16): (11.0, 13.0),
        ("sup-ap", 32): (20.0, 20.0),
        ("roadmap", 32): (25.0, 25.0),
    }
    rows = [{"method": name, "batch": size, "mAP@R": one} for (name, size), found in values.items() for one in found]
    gains = script.gains(rows, "batch", "roadmap")
    assert list(gains) == [16, 32]
    assert gains[16].difference == pytest.approx(1.0)
    assert gains[16].low < 0 < gains[16].high
    assert (gains[32].difference, gains[32].low) == pytest.approx((5.0, 5.0))


# Which runs


def test_three_learning_rates_are_compared_for_every_method_and_batch_size(script):
    points = script.tuning_points(STUDIES, CLASSES, arguments())
    assert len(points) == len(set(points)) == 3 * 3 * 3
    rates = [point.lr for point in points if (point.method, point.batch) == ("roadmap", 16)]
    assert rates == pytest.approx([2e-3 / 3, 2e-3, 6e-3], rel=2e-3)
    assert {point.batch: point.steps for point in points} == {16: 1000, 32: 500, 1024: 62}
    assert {point.batch for point in script.tuning_points(["sizes"], CLASSES, arguments())} == {32}
    assert {point.batch for point in script.tuning_points(STUDIES, CLASSES, arguments(batches=[64]))} == {32, 64}


def test_the_best_learning_rate_is_tested_once_all_three_are_compared(script):
    options = arguments()
    tuning = script.tuning_points(STUDIES, CLASSES, options)
    of_one = [point for point in tuning if (point.method, point.batch) == ("sup-ap", 32)]
    rows = [row(script, point, value) for point, value in zip(of_one, (1.0, 3.0, 2.0), strict=True)]
    assert script.tested_points(STUDIES, CLASSES, options, rows[:2]) == []
    points = script.tested_points(STUDIES, CLASSES, options, rows)
    assert {(point.study, point.classes, point.seed) for point in points} == {
        (study, classes, seed) for study, classes in (("images", 200), ("sizes", 50), ("sizes", 800)) for seed in (0, 1)
    }
    assert {(point.lr, point.steps, point.batch) for point in points} == {(4e-3, 2000, 32)}
    others = [{**one, "steps": 7} for one in rows]
    assert script.tested_points(STUDIES, CLASSES, options, others) == [], "of another number of images"
    assert {point.study for point in script.tested_points(STUDIES, CLASSES, arguments(batches=[16]), rows)} == {"sizes"}


def test_the_most_important_runs_start_first_and_those_that_would_end_too_late_do_not(script, tmp_path):
    schedule = script.Schedule(arguments(tmp_path), CLASSES)
    order = []
    while (point := schedule.next(1e9)) is not None:
        order.append(point)
        schedule.add(row(script, point))
    assert len(order) == len(set(order)) == 27 + 18 + 12
    methods = [point.method == "roadmap-pairs" for point in order if point.study != "sizes"]
    assert methods == sorted(methods), "L_DG after the others"
    assert {point.study for point in order[-12:]} == {"sizes"}
    assert [point.batch for point in order[:6]] == [16] * 6

    schedule = script.Schedule(arguments(tmp_path), CLASSES)
    assert schedule.seconds(order[0]) == 0, "unknown yet"
    first, second = (script.Point("tuning", "sup-ap", batch, CLASSES, 0, 500, 1.0) for batch in (16, 32))
    schedule.add(row(script, first, seconds=7.0))
    schedule.add(row(script, second, seconds=2.0))
    assert schedule.seconds(script.Point("images", "sup-ap", 16, CLASSES, 0, 4000, 1.0)) == pytest.approx(2 + 4000 * 5 / 500)
    assert schedule.next(11.0).batch != 16
    assert schedule.next(1.0) is None


def test_runs_of_the_file_are_not_repeated(script, tmp_path):
    options = arguments(tmp_path)
    done = script.tuning_points(STUDIES, CLASSES, options)[:5]
    options.out.write_text("".join(json.dumps(row(script, point)) + "\n" for point in done))
    assert not set(done) & set(script.Schedule(options, CLASSES).waiting())


# A run


def test_runs_train_and_test_from_a_packed_file_without_the_images(script, tmp_path):
    images, generator = tmp_path / "drawn", np.random.default_rng(0)
    images.mkdir()
    columns = {"path": [], "label_character": [], "label_script": []}
    for number in range(96):
        Image.fromarray(generator.integers(0, 255, (32, 32), np.uint8)).save(images / f"{number}.png")
        columns["path"].append(f"{number}.png")
        columns["label_character"].append(f"character {number // 4}")
        columns["label_script"].append(f"script {number // 48}")
    manifest = Manifest.from_columns({**columns, "split": ["train"] * 96}, root=images)
    manifest.save(tmp_path / "many.parquet")
    classes = script.prepare(str(tmp_path / "many.parquet"), tmp_path / "first", 0)
    assert classes == 18
    script.pack(tmp_path / "first", tmp_path / "many.zip")
    for path in images.iterdir():
        path.unlink()
    images.rmdir()

    folder = tmp_path / "second"
    assert script.prepare(str(tmp_path / "many.zip"), folder, 0) == classes
    assert np.array_equal(np.load(folder / "pixels.npy"), np.load(tmp_path / "first" / "pixels.npy"))
    points = [
        script.Point("tuning", "roadmap", 16, classes, 0, 2, 1e-3),
        script.Point("images", "sup-ap", 16, classes, 0, 2, 1e-3),
        script.Point("sizes", "roadmap-pairs", 16, classes // 2, 1, 2, 1e-3),
    ]
    script.write_train_manifests(folder, points)
    rows = [script.train_point(point, folder) for point in points]
    assert [one["images"] for one in rows] == [4 * 14, 4 * 18, 4 * 9]
    assert [one["gap"] is None for one in rows] == [True, False, False]
    assert all(0 < one["mAP@R"] <= 100 for one in rows)
    assert [script._point_of(json.loads(json.dumps(one))) for one in rows] == points


# Tables and figures


def results(script):
    """Sup-AP has 10 points at batches of 16, twice as many at twice the size; L*_DG gains less and less, L_DG more and more.

    The batch sizes have a quarter of the classes, the other numbers of classes are a sixteenth and all.
    """
    options = arguments(images=64_000, batches=[16, 32, 64], seeds=3)
    tuning = [  # the middle rate is best for Sup-AP and L_DG, the lowest for L*_DG
        row(script, point, 10 - abs(point.lr - (7e-4 if point.method == "roadmap" else 4e-3)))
        for point in script.tuning_points(STUDIES, CLASSES, options)
    ]
    rows = []
    for point in script.tested_points(STUDIES, CLASSES, options, tuning):
        factor = {"roadmap": 1 + 3.2 / point.batch, "roadmap-pairs": 1 + point.batch / 3200}.get(point.method, 1)
        value = 10 * point.batch / 16 * factor * (1 + 0.01 * point.seed)
        rows.append(row(script, point, value, gap=160 / point.batch + point.classes / 1000))
    return tuning + rows


def test_a_relative_gain_has_the_interval_of_a_ratio_of_means(script):
    assert script.relative_gain([12.0] * 3, [10.0] * 3) == pytest.approx((20.0, 0.0), abs=1e-9)
    wide = script.relative_gain([11.0, 12.0, 13.0], [9.0, 10.0, 11.0])
    assert wide.percent == pytest.approx(20.0)
    assert wide.half == pytest.approx(25.3, abs=0.1)  # t = 2.80 with 3.87 degrees of freedom, times √((0.1² + 0.12²) / 3)
    assert script.relative_gain([12.0], [10.0]).half is None
    assert script.relative_gain([12.0], []) is None
    assert script.relative_gain([12.0], [0.0]) is None


def test_the_correlation_of_gap_and_gain_is_over_settings_with_both(script):
    rows = results(script)
    batches = [one for one in script.settings(rows) if one.classes == CLASSES // 4]
    assert script.correlation(rows, batches, "roadmap") == (pytest.approx(1.0), 3)
    assert script.correlation(rows, batches, "roadmap-pairs") == (pytest.approx(-1.0), 3)
    assert script.correlation(rows, batches[:2], "roadmap") is None
    first, second = script.correlations(rows).splitlines()
    assert first.endswith("over 3 batch sizes: −1.00 for L_DG, 1.00 for L*_DG.")
    assert "over 5 settings" in second


def test_the_figure_shows_what_is_there(script, tmp_path):
    rows = results(script)
    script.draw_images(rows, tmp_path / "all.png")
    script.draw_images([one for one in rows if one["seed"] == 0 and one["study"] != "sizes"], tmp_path / "few.png")
    script.draw_images([one for one in rows if one["study"] != "images"], tmp_path / "sizes.png")
    assert all(matplotlib.image.imread(tmp_path / name).shape[1] > 1000 for name in ("all.png", "few.png", "sizes.png"))


def test_the_page_shows_the_runs_of_the_results_file(monkeypatch):
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), "--check"])
    runpy.run_path(str(SCRIPT), run_name="__main__")  # or exits with 1


def test_a_page_with_other_numbers_is_an_error(script, tmp_path, monkeypatch):
    page = tmp_path / "page.md"
    monkeypatch.setitem(script.write_page.__globals__, "PAGE", page)
    page.write_text("<!-- begin images -->\n<!-- end images -->\n")
    with pytest.raises(SystemExit, match="--write"):
        script.write_page(check=True)
    script.write_page(check=False)
    script.write_page(check=True)
    assert "| 1,024 | 2,191 |" in page.read_text()
