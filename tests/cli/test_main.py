import subprocess
import sys

import pytest
from typer.testing import CliRunner

from suprank import __version__
from suprank.cli.app import app
from suprank.cli.main import main


def test_help_names_every_verb():
    shown = CliRunner().invoke(app, ["--help"])
    assert shown.exit_code == 0
    assert {"demo", "bench"} <= set(shown.output.split())


def test_version_is_the_packages():
    assert CliRunner().invoke(app, ["--version"]).output.strip() == f"suprank {__version__}"


def test_an_unknown_verb_is_refused_without_a_traceback():
    refused = CliRunner().invoke(app, ["rnak"])
    assert refused.exit_code == 2
    assert "rnak" in refused.output
    assert "Traceback" not in refused.output


@pytest.mark.parametrize("part", ["typer", "rich"])
def test_a_missing_part_names_the_extra_that_brings_it(part):
    script = f"import sys; sys.modules[{part!r}] = None; from suprank.cli.main import main; main()"
    run = subprocess.run([sys.executable, "-c", script, "demo", "--steps", "1"], capture_output=True, text=True, timeout=60)
    assert run.returncode == 1
    assert part in run.stderr
    assert 'pip install "suprank[cli]"' in run.stderr
    assert "Traceback" not in run.stderr


def test_ctrl_c_ends_with_a_plain_message_and_the_shells_code(monkeypatch, capsys):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("suprank.cli.experiment.training", interrupted)
    monkeypatch.setattr(sys, "argv", ["suprank", "demo", "--batch-size", "8"])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 130
    assert capsys.readouterr().err.endswith("\nsuprank: stopped.\n")
