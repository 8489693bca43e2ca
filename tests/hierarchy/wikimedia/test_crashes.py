"""Whatever ends a scrape, and whenever: run again, it ends with the same tables, and repeats one request at most."""

import os
import shutil
import signal
import sqlite3
from contextlib import closing, contextmanager

import pytest
from typer.testing import CliRunner

from suprank.cli.app import app
from suprank.hierarchy.project import BusyError, FullError, Project
from tests.hierarchy.wikimedia import fake_server as faults
from tests.hierarchy.wikimedia.fake_server import serving
from tests.hierarchy.wikimedia.worlds import Clock, landmarks, project_of, run, tables


class Crash(BaseException):
    """Nobody catches this."""


@contextmanager
def crash(at, moment):
    """End the process, as it were, at its n-th transaction: before what it wrote is kept, or right after."""
    original, count = Project.transaction, 0

    @contextmanager
    def transaction(self):
        nonlocal count
        count += 1
        number = count
        with original(self) as db:
            yield db
            if number == at and moment == "before":
                raise Crash
        if number == at:
            raise Crash

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Project, "transaction", transaction)
        yield lambda: count


@pytest.fixture(scope="module")
def few(tmp_path_factory):
    """A project that was never scraped, and what an undisturbed run of it asks and leaves; one title fails for good in it."""
    world, sources, _ = landmarks(8)
    folder = tmp_path_factory.mktemp("few") / "p"
    project_of(folder, sources, batch=4)
    with serving(world) as fake:
        fake.fault(faults.cut_json, lambda request: "Category:Place 7" in request.keys, times=10000)
        untouched = shutil.copytree(folder, folder.parent / "untouched")
        with crash(0, "never") as count:
            run(Project(folder), fake)
        yield fake, untouched, len(fake.asked), tables(Project(folder)), count()


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_crash_at_any_transaction_loses_nothing(few, tmp_path, moment):
    fake, untouched, requests, undisturbed, transactions = few
    assert transactions > 12
    # Right after a transaction is nearly right before the next: some of these will do.
    for at in range(1, transactions + 1, 1 if moment == "before" else 4):
        project = Project(shutil.copytree(untouched, tmp_path / str(at)))
        fake.asked.clear()
        with crash(at, moment), pytest.raises(Crash):
            run(project, fake)
        first = [request.keys for request in fake.asked]
        fake.asked.clear()
        run(project, fake)
        again = [request.keys for request in fake.asked]
        assert tables(project) == undisturbed
        # The same keys are asked for three times where they fail; a crash repeats those of one job at most.
        repeated = len(first) + len(again) - requests
        assert repeated <= (0 if moment == "after" else 3)
        if repeated:
            assert first[-1] == again[0]


@pytest.mark.parametrize("number", range(1, 10, 2))
def test_an_interrupt_while_it_waits_loses_nothing(few, tmp_path, number):
    fake, untouched, requests, undisturbed, _ = few
    project = Project(shutil.copytree(untouched, tmp_path / "p"))
    fake.asked.clear()

    class Stopped(Clock):
        def sleep(self, seconds):
            super().sleep(seconds)
            if len(self.slept) == number:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(project, fake, Stopped())
    run(project, fake)
    assert tables(project) == undisturbed
    assert len(fake.asked) <= requests + 3


def test_kill_9_at_several_points_of_the_real_command(forked, tmp_path):
    world, sources, _ = landmarks(110)
    with serving(world) as fake:
        undisturbed = project_of(tmp_path / "undisturbed", sources)
        assert CliRunner().invoke(app, [*map(str, command(undisturbed, fake))]).exit_code == 0
        requests = len(fake.asked)
        assert requests == 7
        fake.asked.clear()
        project = project_of(tmp_path / "killed", sources)
        process = None

        def kill(handler=None, body=None):
            os.kill(process.pid, signal.SIGKILL)

        fake.fault(kill, lambda request: request.number == 5, times=1)  # while it waits for the reply
        fake.after = lambda request: kill() if request.number == 3 else None  # while it works on the reply
        ends = []
        while not ends or ends[-1] == -signal.SIGKILL:
            process = forked.start(*command(project, fake), cwd=tmp_path)
            ends.append(process.end(timeout=60)[0])
    assert ends == [-signal.SIGKILL] * 2 + [0]
    assert len(fake.asked) <= requests + 2
    assert tables(project) == tables(undisturbed)
    assert project.check() == []


def command(project, fake):
    options = ("--rate", "100000", "--contact", "tester@example.org", *fake.options)
    return ("hierarchy", "scrape", project.folder, *options)


def test_a_database_that_somebody_holds_is_said_and_gone_on_with(few, tmp_path):
    fake, untouched, _, undisturbed, _ = few
    project = Project(shutil.copytree(untouched, tmp_path / "p"), busy_seconds=0.1)
    fake.asked.clear()
    with closing(sqlite3.connect(project.file, isolation_level=None, check_same_thread=False)) as other:
        fake.after = lambda request: other.execute("BEGIN IMMEDIATE") if request.number == 4 else None
        try:
            with pytest.raises(BusyError, match="written to by somebody else; nothing was saved"):
                run(project, fake)
        finally:
            fake.after = lambda request: None
            other.execute("ROLLBACK")
    run(project, fake)
    assert tables(project) == undisturbed


def test_a_full_disk_is_said_and_gone_on_with(tmp_path, monkeypatch):
    world, sources, _ = landmarks(200)
    undisturbed, project = project_of(tmp_path / "undisturbed", sources), project_of(tmp_path / "full", sources)
    connect = sqlite3.connect
    with closing(connect(project.file)) as db:
        begun = db.execute("PRAGMA page_count").fetchone()[0]
    with serving(world) as fake:
        run(undisturbed, fake)
        for pages in (2, 9, 15, 20):  # of the 25 it needs

            def small(*args, room=begun + pages, **options):
                db = connect(*args, **options)
                db.execute(f"PRAGMA max_page_count = {room}")
                return db

            with monkeypatch.context() as patch:
                patch.setattr("suprank.hierarchy.project.sqlite3.connect", small)
                with pytest.raises(FullError, match="nothing was saved. Make room"):
                    run(project, fake)
            assert project.check() == []
        run(project, fake)
        assert len(fake.asked) <= 2 * 10 + 4
    assert tables(project) == tables(undisturbed)
