"""suprank report: the page of one run or two, from a folder to a file; what is embedded on the way; refusals."""

import shutil

import numpy as np
import pytest

import suprank
from suprank.cli import report as verb
from tests.cli.collection import done, refused
from tests.explorer.report.reading import of, parsed
from tests.explorer.runs import RECIPE, collection, embeddings, run


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """`one` and `two` are runs on the same pictures, `embedded` their embeddings, `other` is of other pictures."""
    root = tmp_path_factory.mktemp("report")
    manifest = collection(root / "data")
    run(root / "one", manifest)
    run(root / "two", manifest, loss="smooth-ap", noise=2.0, seed=1)
    embeddings(root / "embedded", manifest, seed=2)
    run(root / "other", collection(root / "more", images=5))
    return root


def test_a_page_is_written_and_named(folder, tmp_path):
    out = tmp_path / "new" / "page.html"
    output = done("report", folder / "one", "--out", out, "--queries", 2, "--top", 3)
    assert output.stdout == f"{out} ({out.stat().st_size / 1e6:.1f} MB)\n"
    assert "one: metrics" in output.stderr
    elements = parsed(out.read_text())
    assert of(elements, "h1")[0].text == "one"
    assert len([one for one in of(elements, "article") if one.within(id="random")]) == 2
    assert len(of(elements, "ol", class_="strip")[0].text.split("same ")) <= 4


def test_two_runs_stand_beside_each_other_under_a_title_and_quietly(folder, tmp_path):
    out = tmp_path / "page.html"
    output = done("report", folder / "one", "--against", folder / "two", "--out", out, "--title", "Mine <b>", "-q")
    assert output.stderr == ""
    elements = parsed(out.read_text())
    assert of(elements, "h1")[0].text == "Mine <b>"
    assert of(elements, "section", id="better")


def test_an_embeddings_folder_is_as_good_as_a_run(folder, tmp_path):
    done("report", folder / "one", "--against", folder / "embedded", "--out", tmp_path / "page.html", "-q")
    assert "one against embedded" in (tmp_path / "page.html").read_text()


def test_the_seed_draws_the_sample(folder, tmp_path):
    pages = []
    for place, seed in enumerate((0, 0, 5)):
        out = tmp_path / f"{place}.html"
        done("report", folder / "embedded", "--out", out, "--seed", seed, "--queries", 3, "-q")
        pages.append(out.read_text())
    assert pages[0] == pages[1]
    assert pages[0] != pages[2]


def test_a_page_that_is_large_is_written_and_told(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(verb, "LARGE", 1000)
    output = done("report", folder / "embedded", "--out", tmp_path / "page.html", "-q")
    assert "give fewer --queries" in output.stderr


def test_wrong_arguments_are_refused_with_the_rule_and_the_way_out(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    one = folder / "one"
    (tmp_path / "file").write_text("")
    (tmp_path / "empty").mkdir()
    for arguments, message in (
        ((folder / "gone",), "there is no"),
        ((tmp_path / "empty",), "empty has no embeddings; name a folder of `suprank train` or `suprank embed`"),
        ((one, "--against", folder / "gone"), "there is no"),
        ((one, "--against", folder / "other"), "have different queries"),
        ((one, "--test", "wild"), "has no test set 'wild'; choose from test."),
        ((folder / "embedded", "--test", "wild"), "leave out test and frozen"),
        ((one, "--out", tmp_path), "is a folder; name a file in it."),
        ((one, "--out", tmp_path / "file" / "page.html"), "the folder cannot be made"),
        ((one, "--queries", 0), "--queries"),
        ((one, "--top", "many"), "valid integer"),
        ((one, "--device", "tpu"), "'tpu' is not a device"),
    ):
        assert message in refused("report", *arguments, "-q"), arguments
    assert not (tmp_path / "report.html").exists(), "nothing is written"


def test_a_missing_package_is_found_out_before_any_work(folder, tmp_path, monkeypatch):
    monkeypatch.setattr("suprank.workflows.reports.find_spec", lambda name: None)
    monkeypatch.setattr("suprank.workflows.opening.open_data", lambda *_: pytest.fail("embedded before"))
    with pytest.raises(ModuleNotFoundError, match="openTSNE") as missing:
        suprank.report(folder / "one", out=tmp_path / "page.html")
    assert missing.value.name == "openTSNE"  # for `main`, which names the extra


def test_a_run_without_a_model_and_without_embeddings_says_so(folder, tmp_path):
    manifest = collection(tmp_path / "data")
    manifest.save(tmp_path / "m.parquet")
    bare = run(tmp_path / "run", manifest, recipe=RECIPE.replace("m.parquet", str(tmp_path / "m.parquet")))
    shutil.rmtree(bare / "embeddings")
    assert "has no model yet" in refused("report", bare, "--out", tmp_path / "page.html", "-q")


def test_damaged_embeddings_are_refused_plainly(folder, tmp_path):
    broken = tmp_path / "embedded"
    shutil.copytree(folder / "embedded", broken)
    np.save(broken / "test" / "embeddings.npy", np.zeros((3, 4), np.float32))
    assert "3" in refused("report", broken, "--out", tmp_path / "page.html", "-q")
