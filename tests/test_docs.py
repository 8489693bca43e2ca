"""The documentation keeps its promises: names exist, equations are all there, and code runs."""

import importlib
import re
from pathlib import Path

import numpy as np
import pytest
import torch

import suprank
from suprank import adaptation, data, embedding, evaluation, explorer, hierarchy, losses, models, paper, ranking, training
from suprank.data import importers
from suprank.hierarchy import agreement, lint, review
from suprank.training.config import ConfigTable
from tests.training.runs import two_ranks

ROOT = Path(__file__).parents[1]
PAPER = ROOT.parent / "shared" / "paper.tex"
EQUATIONS = (ROOT / "docs" / "paper.md").read_text().partition("\n## Equations and the functions")[2]
LABELS = (ROOT / "tests" / "paper_labels.txt").read_text().split()
CITED = r"\b(?:eq|fig|prop|sec|seq|tab):[A-Za-z][\w-]*"
ROWS = re.findall(r"^\| `((?:eq|sec|prop):[^`]+)` \|.*\| (.+) \|$", EQUATIONS, flags=re.MULTILINE)


def resolved(name):
    """The object behind a dotted name."""
    package, *path = name.removeprefix("suprank.").split(".")
    found = importlib.import_module(f"suprank.{package}")
    assert path[0] in found.__all__, f"{name} is not public"
    for part in path:
        found = getattr(found, part)
    return found


@pytest.mark.parametrize(("label", "computed_by"), ROWS, ids=[label for label, _ in ROWS])
def test_every_equation_names_the_public_function_that_computes_it(label, computed_by):
    names = re.findall(r"\{py:\w+\}`~(suprank[^`]+)`", computed_by)
    assert names
    assert all(callable(found) or isinstance(found, property) for found in map(resolved, names))


def test_no_equation_of_the_paper_is_missing():
    equations = {label for label in LABELS if label.startswith(("eq:", "prop:"))}
    assert {"eq:ap_definition", "eq:upperBound", "eq:upperBoundRefined", "prop:link_hap_ap"} <= equations
    assert equations <= {label for label, _ in ROWS}


@pytest.mark.parametrize("folder", ["docs", "recipes", "src"])
def test_every_label_that_we_cite_is_one_of_the_papers(folder):
    texts = {path: path.read_text() for end in ("md", "py", "toml") for path in (ROOT / folder).rglob(f"*.{end}")}
    cited = {(label, path) for path, text in texts.items() for label in re.findall(CITED, text)}
    assert cited
    assert [(label, str(path)) for label, path in cited if label not in LABELS] == []


@pytest.mark.skipif(not PAPER.exists(), reason="the paper is not beside this checkout")
def test_the_list_of_labels_is_the_papers():
    # Two equations are labeled by a table column, `& eq:upperBound`, which a macro turns into a label.
    found = re.findall(r"\\label\{(\w+:[^}]+)\}|^\s*& (eq:\w+)$", PAPER.read_text(), flags=re.MULTILINE)
    assert [one or other for one, other in found] == LABELS


PACKAGES = [
    *(ranking, losses, evaluation, data, importers, models, embedding, training, adaptation, paper),
    *(explorer, hierarchy, review, agreement, lint, suprank),
]


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.__name__)
def test_the_api_page_has_every_public_name(package):
    api = (ROOT / "docs" / "api.md").read_text()
    documented = re.findall(rf"^\.\. [\w:]+:: {package.__name__}\.(\w+)$", api, flags=re.MULTILINE)
    assert sorted(documented) == sorted(package.__all__)


def test_the_api_page_has_every_entry_of_a_recipe():
    api = (ROOT / "docs" / "api.md").read_text()
    tables = re.findall(r"^\.\. autoclass:: suprank\.training\.config\.(\w+)\n   :members: (.+)$", api, flags=re.MULTILINE)
    shown = {name: members.split(", ") for name, members in tables}
    for field in training.TrainConfig.model_fields.values():
        kinds = [
            kind
            for kind in field.annotation.__mro__
            if kind.__module__ == "suprank.training.config" and kind is not ConfigTable
        ]
        own = [entry for kind in kinds for entry in kind.__annotations__ if entry in kind.model_fields]
        assert sorted(own) == sorted(entry for kind in kinds for entry in shown[kind.__name__])


def test_the_page_on_data_has_every_importer_and_every_preset():
    page = (ROOT / "docs" / "data.md").read_text()
    assert re.findall(r"^\| `([\w-]+)` \|(?:[^|\n]*\|){4}$", page, flags=re.MULTILINE) == list(importers.BENCHMARKS)
    assert all(f"| `{preset}` |" in page for preset in data.PRESETS)


def test_the_readme_names_every_importer():
    readme = (ROOT / "README.md").read_text()
    assert all(f"`{name}`" in readme for name in [*importers.BENCHMARKS, "folder", "csv", "glyphs", "emoji"])


def test_the_page_on_models_has_every_setting_and_alias():
    page = (ROOT / "docs" / "models.md").read_text()
    cells = " ".join(re.findall(r"^\| ([^|]+) \|", page, flags=re.MULTILINE))
    assert {*models.EmbedderConfig.model_fields, *models.ALIASES} <= set(re.findall(r"`(\w+)`", cells))


PAGES = [
    "README",
    "docs/quickstart",
    "docs/data",
    "docs/models",
    "docs/training",
    "docs/adapting",
    "docs/evaluation",
    "docs/losses",
    "docs/own-loops",
    "docs/ranking",
    "docs/looking",
    "docs/hierarchies",
    "docs/conventions",
]


@pytest.mark.parametrize("page", [f"{page}.md" for page in PAGES])
def test_code_in_the_documentation_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # pages write where they are
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(), flags=re.MULTILINE | re.DOTALL)
    assert blocks
    given = {"model": torch.nn.Linear(8, 4), "images": torch.randn(8, 8), "labels": torch.arange(8) // 2}
    exec("\n".join(blocks), given)


@pytest.mark.slow
@pytest.mark.skipif(not torch.distributed.is_available(), reason="needs torch.distributed")
def test_the_script_for_several_processes_runs_as_torchrun_runs_it(forked, tmp_path):
    page = (ROOT / "docs" / "evaluation.md").read_text()
    (script,) = re.findall(
        r"^```\{code-block\} python\n:caption: evaluate_all.py\n(.*?)^```", page, flags=re.MULTILINE | re.DOTALL
    )
    species = np.arange(60) // 3
    np.save(tmp_path / "labels.npy", np.stack([species, species // 4], 1))
    np.save(tmp_path / "test.npy", np.random.default_rng(0).standard_normal((60, 8)))
    started = [
        forked.script(script, cwd=tmp_path, variables=variables | {"CUDA_VISIBLE_DEVICES": ""}) for variables in two_ranks()
    ]
    for process in started:
        process.succeed(timeout=120)
    alone = evaluation.evaluate(tmp_path / "test.npy", np.load(tmp_path / "labels.npy"), levels=["species", "genus"])
    assert evaluation.Report.load(tmp_path / "report.json") == alone


@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("*.md")), ids=lambda page: page.stem)
def test_bold_text_has_no_bare_asterisk_which_would_end_it(page):
    lines = [line for line in page.read_text(encoding="utf-8").splitlines() if not line.startswith("|")]
    bold = [text for line in lines for text in line.split("**")[1::2]]
    assert not [text for text in bold if re.search(r"(?<!\\)\*", text)]
