"""How an experiment goes, in a file, in a terminal and in a notebook: the same words."""

import io
import sys
from types import ModuleType, SimpleNamespace

import pytest

from suprank.cli.experiments import CommandDisplay
from suprank.experiments import ProgressDisplay


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def go(display, clock):
    """Four runs: one ends, one fails, one is in the middle, and one is found when the first has ended."""
    display.begin(["nsm,seed=0", "csl,seed=0", "roadmap,seed=0"], "R@1")
    for name in ("nsm,seed=0", "csl,seed=0"):
        display.run_started(name)
    clock.now = 20
    display.run_ended("nsm,seed=0", value=0.6125)
    display.run_added("roadmap,seed=1")
    display.run_ended("csl,seed=0", "was ended by SIGKILL")
    display.note("csl,seed=0 failed: was ended by SIGKILL\nIts log is logs/csl,seed=0.log.")
    display.run_started("roadmap,seed=0")
    clock.now = 90
    display.run_progress("roadmap,seed=0", 50, 100, 0.4321)


SUMMARY = "1 of 4 done, 1 running, 1 failed, about 0:00:54 left, best so far: R@1 61.25 (nsm,seed=0)"


def test_a_file_has_a_line_for_each_run_that_ends_and_one_now_and_then(capsys):
    clock = Clock()
    go(display := ProgressDisplay(clock=clock), clock)
    display.end()
    assert capsys.readouterr().err.splitlines() == [
        "nsm,seed=0: done  R@1 61.25  0:00:20  (1 of 3 done, 1 running, 0 failed, about 0:00:40 left, "
        "best so far: R@1 61.25 (nsm,seed=0))",
        "csl,seed=0: failed  0:00:20  (1 of 4 done, 0 running, 1 failed, about 0:00:20 left, "
        "best so far: R@1 61.25 (nsm,seed=0))",
        "csl,seed=0 failed: was ended by SIGKILL",
        "Its log is logs/csl,seed=0.log.",
        SUMMARY,
    ]


def lines(clock):
    return [
        SUMMARY,
        "  nsm,seed=0      done  R@1 61.25  0:00:20",
        "  csl,seed=0      failed  0:00:20",
        "  roadmap,seed=0  running  50 %  loss 0.4321",
    ]


def test_a_terminal_has_a_line_for_each_run_which_stay_at_the_end(monkeypatch, capsys):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    clock, terminal = Clock(), Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    go(display := ProgressDisplay(clock=clock), clock)
    assert display.lines() == lines(clock)
    display.end()
    shown = terminal.getvalue()
    assert "Its log is logs/csl,seed=0.log." in shown
    assert all(line in shown.rpartition("\x1b")[2].replace("\r", "") or line in shown for line in lines(clock))


def test_a_notebook_has_the_same_lines_in_one_output_that_is_updated(monkeypatch, capsys):
    shown = []
    handle = SimpleNamespace(update=shown.append)
    ipython, display_module = ModuleType("IPython"), ModuleType("IPython.display")
    ipython.get_ipython = lambda: SimpleNamespace(kernel=1)
    display_module.display = lambda text, display_id: shown.append(text) or handle
    display_module.Pretty = str
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", display_module)
    clock = Clock()
    go(display := ProgressDisplay(clock=clock), clock)
    display.end()
    assert shown[-1].splitlines() == lines(clock)


def test_quiet_shows_notes_only_and_names_cannot_move_the_cursor(capsys):
    clock = Clock()
    go(ProgressDisplay(quiet=True, clock=clock), clock)
    assert capsys.readouterr().err == "csl,seed=0 failed: was ended by SIGKILL\nIts log is logs/csl,seed=0.log.\n"
    display = CommandDisplay()
    display.begin(["\x1b[31mred"])
    display.run_started("\x1b[31mred")
    display.run_ended("\x1b[31mred")
    assert "\x1b" not in capsys.readouterr().err


@pytest.mark.parametrize("ended", [0, 2])
def test_the_time_left_is_known_when_something_is_done(ended):
    clock = Clock()
    display = ProgressDisplay(quiet=True, clock=clock)
    display.begin(["a", "b", "c", "d"])
    clock.now = 30
    for name in "abcd"[:ended]:
        display.run_started(name)
        display.run_ended(name)
    assert ("about 0:00:30 left" in display.summary()) == bool(ended)
