import runpy
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from suprank import __version__
from suprank.cli.app import app
from suprank.cli.main import main
from suprank.data import Manifest
from tests.cli.collection import photographs


def test_help_names_every_verb():
    for group, verbs in {
        (): {
            "demo",
            "train",
            "recipes",
            "compare",
            "report",
            "explore",
            "search",
            "embed",
            "evaluate",
            "data",
        },
        ("data",): {"import", "export", "check", "show"},
        ("models",): {"create", "export", "push"},
    }.items():
        shown = CliRunner().invoke(app, [*group, "--help"])
        assert shown.exit_code == 0
        assert verbs <= set(shown.output.split())


def test_help_lists_and_descriptions_do_not_import_torch(tmp_path, monkeypatch):
    monkeypatch.setenv("SUPRANK_CACHE", str(tmp_path))
    (tmp_path / "labels.txt").write_text("castle\nbridge\n", encoding="utf-8")
    script = """
import sys
from click.testing import CliRunner
from typer.main import get_command
from suprank.cli.app import app

command_line = get_command(app)

def commands(group, words=()):
    for name, command in group.commands.items():
        yield (*words, name)
        yield from commands(command, (*words, name)) if hasattr(command, "commands") else ()

shown = [(*words, "--help") for words in commands(command_line)]
shown += [("recipes",), ("recipes", "sop"), ("recipes", "cub/roadmap"), ("recipes", "cub112/nsm")]
shown += [("paper",)]
project = sys.argv[1] + "/project"
shown += [("hierarchy", "new", project, "--labels", sys.argv[1] + "/labels.txt")]
shown += [("hierarchy", "status", project), ("hierarchy", "status", "--log", project)]
for words in shown:
    ended = CliRunner().invoke(command_line, words)
    assert ended.exit_code == 0, (words, ended.output)
    assert "<bool>" not in ended.output, (words, "a flag looks as if a value had to follow")
    assert not {"torch", "timm"} & set(sys.modules), words
print(len(shown))
"""
    ended = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert int(ended.stdout) > 30


def test_paragraphs_of_help_fill_the_lines_of_the_terminal():
    shown = CliRunner().invoke(app, ["embed", "--help"], env={"COLUMNS": "300"}).output
    assert "Under torchrun the processes share the images." in shown
    assert "\n suprank evaluate embeddings " in shown, "commands keep their lines"


def test_version_is_the_packages():
    assert CliRunner().invoke(app, ["--version"]).output.strip() == f"suprank {__version__}"


@pytest.mark.parametrize("module", ["suprank", "suprank.cli.main"])
@pytest.mark.filterwarnings("ignore:'suprank.cli.main' found in sys.modules")
def test_python_m_suprank_is_the_command_under_its_name(module, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["/somewhere/__main__.py", "rnak"])
    with pytest.raises(SystemExit, match="2"):
        runpy.run_module(module, run_name="__main__", alter_sys=False)
    assert capsys.readouterr().err.startswith("Usage: suprank [OPTIONS] COMMAND")


def test_an_unknown_verb_is_refused_without_a_traceback():
    refused = CliRunner().invoke(app, ["rnak"])
    assert refused.exit_code == 2
    assert "rnak" in refused.output
    assert "Traceback" not in refused.output


def without(part, *arguments):
    """The command line on a machine that lacks a package."""
    script = f"import sys; sys.modules[{part!r}] = None; from suprank.cli.main import main; main()"
    return subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True, text=True, timeout=60)


def test_a_missing_command_line_names_the_extra_of_the_verb():
    run = without("typer", "search", "e")
    assert run.returncode == 1
    assert run.stderr == 'suprank: this needs typer, which is not installed; pip install "suprank[explore]"\n'


def test_help_needs_nothing_but_the_command_line():
    assert without("pyarrow", "--help").returncode == 0


def test_a_fault_of_ours_is_no_fault_of_the_users(monkeypatch):
    """A module of this package that is missing is a bug to report with its traceback, whichever verb meets it."""
    monkeypatch.setitem(sys.modules, "suprank.data.check", None)
    with pytest.raises(ModuleNotFoundError, match="suprank.data.check"):
        CliRunner().invoke(app, ["data", "check", "m.parquet"], catch_exceptions=False)


def test_ctrl_c_ends_with_a_plain_message_and_the_shells_code(monkeypatch, capsys, tmp_path):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.chdir(tmp_path)
    photographs(tmp_path / "photos", groups=1, classes=2, images=1)
    Manifest.from_columns(
        {
            "path": ["group0/class00/0.png", "group0/class01/0.png"],
            "split": ["train", "test"],
            "label_class": ["class00", "class01"],
        },
        root=tmp_path / "photos",
    ).save("m.parquet")
    monkeypatch.setattr("suprank.data.check.scan_files", interrupted)
    monkeypatch.setattr(sys, "argv", ["suprank", "data", "check", "m.parquet"])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 130
    assert capsys.readouterr().err.endswith("suprank: stopped.\n")
