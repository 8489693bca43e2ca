"""The examples run, print what the documentation says, and are the code of their notebooks."""

import ast
import base64
import importlib
import importlib.util
import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
EXAMPLES = sorted((ROOT / "examples").glob("0*.py"))
PAGE = (ROOT / "docs" / "examples.md").read_text(encoding="utf-8")

# Training amplifies how CPUs round, so that a percentage may differ by a point or two. Nothing else depends on it that much.
PERCENT, OTHER = 3.0, {"08_graded_lists": 1.5}


def load_script(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


MAKE_NOTEBOOKS = load_script(ROOT / "docs" / "make_notebooks.py")
NOTEBOOKS = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in MAKE_NOTEBOOKS.NOTEBOOKS.glob("*.ipynb")}


def source_text(field):
    return field if isinstance(field, str) else "".join(field)


def stored_output(notebook):
    """What the cells printed, and the pictures that they drew."""
    outputs = [one for cell in notebook["cells"] for one in cell.get("outputs", ())]
    printed = "".join(source_text(one["text"]) for one in outputs if one["output_type"] == "stream")
    return printed, [base64.b64decode(one["data"]["image/png"]) for one in outputs if one["output_type"] == "display_data"]


def stated_output(name):
    """What the page says that the example prints."""
    (block,) = re.findall(rf"^```console\n\$ python examples/{name}\.py\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)
    return block


def check_same(name, printed, stated):
    """The same lines, but for numbers that may differ between machines."""
    number = re.compile(r"\d[\d,]*(?:\.\d+)?")
    assert number.sub("#", printed) == number.sub("#", stated)
    for line, expected in zip(printed.splitlines(), stated.splitlines(), strict=True):
        tolerance = PERCENT if "%" in line else OTHER.get(name, 0.05)
        found, wanted = ([float(one.replace(",", "")) for one in number.findall(text)] for text in (line, expected))
        assert found == pytest.approx(wanted, abs=tolerance), (line, expected)


@pytest.fixture(scope="module")
def drawings(tmp_path_factory):
    """The cache of the images that suprank draws, for all examples."""
    return tmp_path_factory.mktemp("drawings")


@pytest.mark.slow
@pytest.mark.parametrize("script", EXAMPLES, ids=lambda script: script.stem)
def test_an_example_prints_what_the_page_and_its_notebook_say(script, forked, drawings, tmp_path):
    run = f"import runpy; runpy.run_path({str(script)!r}, run_name='__main__')"
    code, printed, errors = forked.script(run, cwd=tmp_path, variables={"SUPRANK_CACHE": str(drawings)}).end(timeout=240)
    assert code == 0, errors
    check_same(script.stem, printed, stated_output(script.stem))
    if script.stem in NOTEBOOKS:
        check_same(script.stem, printed, stored_output(NOTEBOOKS[script.stem])[0])
        assert (tmp_path / f"{script.stem}.png").stat().st_size > 10_000
    else:
        assert not any(tmp_path.iterdir()), "it leaves files behind"


@pytest.mark.parametrize("script", EXAMPLES, ids=lambda script: script.stem)
def test_an_example_is_short_and_says_what_it_shows_how_to_run_it_and_how_long_it_takes(script):
    source = script.read_text(encoding="utf-8")
    assert source.count("\n") < 80
    title, blank, *text = ast.get_docstring(ast.parse(source)).splitlines()
    assert title.endswith(".")
    assert not blank
    (command,) = [line for line in text if f"$ python examples/{script.name} " in line]
    assert re.search(r"# suprank(\[[a-z,]+\])?; \d+ seconds on a CPU$", command)


@pytest.mark.parametrize("script", EXAMPLES, ids=lambda script: script.stem)
def test_an_example_uses_public_names_only(script):
    for node in ast.walk(ast.parse(script.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Attribute):
            assert not re.match(r"_(?!_)", node.attr), node.attr
        if isinstance(node, ast.ImportFrom) and node.module.startswith("suprank"):
            package = importlib.import_module(node.module)
            for name in node.names:
                is_module = importlib.util.find_spec(f"{node.module}.{name.name}") is not None
                assert name.name in package.__all__ or is_module, f"{node.module} has no public {name.name}"


def test_the_first_three_examples_have_notebooks():
    assert sorted(NOTEBOOKS) == [script.stem for script in MAKE_NOTEBOOKS.SCRIPTS] == [script.stem for script in EXAMPLES[:3]]


@pytest.mark.parametrize("script", MAKE_NOTEBOOKS.SCRIPTS, ids=lambda script: script.stem)
def test_a_notebook_has_the_cells_of_its_script_and_the_picture_of_the_page(script):
    notebook = NOTEBOOKS[script.stem]
    cells = [(cell["cell_type"], source_text(cell["source"])) for cell in notebook["cells"]]
    assert cells == MAKE_NOTEBOOKS.script_cells(script.read_text(encoding="utf-8")), "run `make notebooks`"
    assert [text for kind, text in cells if kind == "code"]
    assert (MAKE_NOTEBOOKS.NOTEBOOKS / f"{script.stem}.ipynb").stat().st_size < 300_000
    _, (picture,) = stored_output(notebook)
    assert (ROOT / "docs" / "pictures" / f"example-{script.stem}.png").read_bytes() == picture


def test_the_lists_of_examples_are_complete():
    readme = (ROOT / "examples" / "README.md").read_text(encoding="utf-8")
    there = {path.name for path in (ROOT / "examples").glob("*.py")}
    assert set(re.findall(r"\(([\w]+\.py)\)", readme)) == there
    assert set(re.findall(r"examples/(\w+\.py)", PAGE)) == there
