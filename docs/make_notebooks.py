"""Write the notebooks of the first examples from their scripts, executed, and their pictures for the documentation.

    make notebooks

A script's docstring and its cells (`# %% [markdown]` and `# %%`) become the notebook's. Of what a cell prints and draws, stdout
and the pictures are kept. `tests/test_examples.py` checks that scripts, notebooks and pictures agree; it needs no Jupyter.
"""

from __future__ import annotations

import ast
import base64
import re
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
NOTEBOOKS = ROOT / "examples" / "notebooks"
PICTURES = ROOT / "docs" / "pictures"
SCRIPTS = [ROOT / "examples" / f"{name}.py" for name in ("01_training_loop", "02_label_tree", "03_compare_models")]


def script_cells(source: str) -> list[tuple[str, str]]:
    """The cells of a script, as pairs of "markdown" or "code" and the text; the first is the docstring."""
    title, _, text = (ast.get_docstring(ast.parse(source)) or "").partition("\n")
    cells = [("markdown", f"# {title.removesuffix('.')}\n{text}".strip())]
    for cell in re.split(r"^# %%", source, flags=re.MULTILINE)[1:]:
        kind, _, body = cell.partition("\n")
        if kind.strip() == "[markdown]":
            cells.append(("markdown", re.sub(r"^# ?", "", body, flags=re.MULTILINE).strip()))
        else:
            cells.append(("code", body.strip()))
    return cells


def write_notebook(script: Path) -> None:
    """Execute the notebook of a script in an empty folder, and save it and its last picture."""
    import nbclient
    from nbformat import v4, write

    make = {"markdown": v4.new_markdown_cell, "code": v4.new_code_cell}
    cells = [make[kind](text, id=f"cell-{number}") for number, (kind, text) in enumerate(script_cells(script.read_text()))]
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    notebook = v4.new_notebook(cells=cells, metadata={"kernelspec": kernel})
    with tempfile.TemporaryDirectory() as folder:  # where the script saves its picture
        nbclient.NotebookClient(notebook, timeout=600, resources={"metadata": {"path": folder}}).execute()
    pictures = []
    for cell in notebook.cells:
        cell.metadata.clear()  # times
        if cell.cell_type == "code":
            cell.outputs = [one for one in cell.outputs if one.get("name") == "stdout" or "image/png" in one.get("data", {})]
            pictures += [one["data"]["image/png"] for one in cell.outputs if one.output_type == "display_data"]
    notebook.metadata = {"kernelspec": kernel}
    write(notebook, NOTEBOOKS / f"{script.stem}.ipynb")
    (PICTURES / f"example-{script.stem}.png").write_bytes(base64.b64decode(pictures[-1]))


if __name__ == "__main__":
    NOTEBOOKS.mkdir(exist_ok=True)
    for script in SCRIPTS:
        write_notebook(script)
        print(NOTEBOOKS / f"{script.stem}.ipynb")
