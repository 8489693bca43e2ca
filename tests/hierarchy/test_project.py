"""A project's file: transactions that are whole or nothing, steps that know when they are stale, a log that only grows."""

import signal
import sqlite3
import subprocess
import sys
from contextlib import closing

import pytest

from suprank.hierarchy.project import BusyError, FullError, Project, digest_rows, record_step
from suprank.hierarchy.recipe import read_recipe
from tests.hierarchy.branches import plain, write_branch
from tests.hierarchy.full_disk import full_disk


@pytest.fixture
def project(tmp_path):
    return Project.create(tmp_path / "p", read_recipe("plain"))


def step(project, name, digest, inputs=""):
    with project.transaction() as db:
        record_step(db, name, {"k": 3}, inputs=inputs, result={"n": 1}, digest=digest)


def test_what_is_written_is_read_and_the_recipe_comes_back(project):
    with project.transaction() as db:
        db.execute("INSERT INTO meta VALUES ('manifest', 'm.parquet')")
    again = Project(project.folder)
    assert (again.meta("manifest"), again.meta("nothing")) == ("m.parquet", None)
    assert again.recipe == read_recipe("plain")
    assert again.check() == []
    assert not list(project.folder.glob(".*"))


def test_a_block_that_fails_leaves_nothing(project):
    def failing():
        with project.transaction() as db:
            db.execute("INSERT INTO meta VALUES ('half', 'done')")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        failing()
    assert project.meta("half") is None


def test_who_reads_sees_one_moment_while_another_writes(project):
    with project.snapshot() as db:
        before = db.execute("SELECT count(*) FROM meta").fetchone()[0]
        with project.transaction() as other:
            other.execute("INSERT INTO meta VALUES ('new', '1')")
        assert db.execute("SELECT count(*) FROM meta").fetchone()[0] == before
    assert project.meta("new") == "1"


def test_a_second_project_in_the_folder_is_refused(project):
    with pytest.raises(FileExistsError, match="holds a project already"):
        Project.create(project.folder, read_recipe("plain"))


def test_what_is_no_project_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="does not exist; create it with `suprank hierarchy new"):
        Project(tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match="holds no project"):
        Project(tmp_path)
    (tmp_path / "project.sqlite").write_bytes(b"not a database, but long enough to be taken for one" * 40)
    with pytest.raises(ValueError, match="is not a project"):
        Project(tmp_path)
    (tmp_path / "project.sqlite").unlink()
    with closing(sqlite3.connect(tmp_path / "project.sqlite")) as db:
        db.execute("CREATE TABLE meta (key, value)")  # by another program
    with pytest.raises(ValueError, match="has no schema of suprank"):
        Project(tmp_path)


@pytest.mark.parametrize(
    ("raised", "code", "said"),
    [
        (sqlite3.OperationalError, sqlite3.SQLITE_READONLY, "may not be written .*check its permissions"),
        (sqlite3.OperationalError, sqlite3.SQLITE_CANTOPEN, "may not be written .*check its permissions"),
        (sqlite3.DatabaseError, sqlite3.SQLITE_CORRUPT, "is not a project, or is damaged"),
    ],
)
def test_a_file_that_may_not_be_written_or_is_damaged_is_told(project, raised, code, said):
    error = raised("SQLite says so")
    error.sqlite_errorcode = code
    with pytest.raises((PermissionError, ValueError), match=said), project.snapshot():
        raise error


def test_a_project_of_a_newer_tool_is_refused(project):
    with project.transaction() as db:
        db.execute("UPDATE meta SET value = '99' WHERE key = 'schema'")
    with pytest.raises(ValueError, match="has schema 99.*update suprank"):
        Project(project.folder)


def test_steps_are_stale_where_one_before_ran_again_with_another_outcome(project):
    step(project, "new", "a")
    step(project, "clean", "b", inputs="a")
    step(project, "embed", "c", inputs="b")
    assert [(one.name, one.stale) for one in project.steps().values()] == [("new", False), ("clean", False), ("embed", False)]
    step(project, "clean", "b", inputs="a")  # again, with the same outcome
    assert not project.steps()["embed"].stale
    step(project, "clean", "other", inputs="a")
    assert [one.stale for one in project.steps().values()] == [False, False, True]
    step(project, "types", "types", inputs="a")  # comes between
    assert [(one.name, one.stale) for one in project.steps().values()] == [
        ("new", False),
        ("types", False),
        ("clean", True),
        ("embed", True),
    ]
    assert project.steps()["embed"].settings == {"k": 3}


def test_a_locked_file_is_told_and_nothing_saved(project):
    impatient = Project(project.folder, busy_seconds=0.05)
    with project.transaction() as db:
        db.execute("INSERT INTO meta VALUES ('mine', '1')")
        with pytest.raises(BusyError, match="being written to by somebody else; nothing was saved"), impatient.transaction():
            pass
        assert impatient.meta("mine") is None  # and reading goes on
    assert impatient.meta("mine") == "1"


def test_a_full_disk_is_told_and_nothing_saved(project):
    with full_disk(), pytest.raises(FullError, match="nothing was saved. Make room"), project.transaction() as db:
        db.executemany("INSERT INTO meta VALUES (?, ?)", ((f"key {number}", "x" * 1000) for number in range(200)))
    assert project.meta("key 0") is None
    assert project.check() == []


KILLED = """
import os, signal, sys
from suprank.hierarchy.project import Project
with Project(sys.argv[1]).transaction() as db:
    for number in range(2000):
        db.execute("INSERT INTO meta VALUES (?, ?)", (f"key {number}", "x" * 1000))
    print("written", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_process_killed_in_a_transaction_leaves_nothing_of_it(project):
    done = subprocess.run([sys.executable, "-c", KILLED, str(project.folder)], capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("written\n", -signal.SIGKILL)
    assert project.meta("key 0") is None
    assert project.check() == []
    with project.transaction() as db:  # and no lock is left
        db.execute("INSERT INTO meta VALUES ('after', '1')")


def test_a_label_is_in_one_place_and_the_log_only_grows(tmp_path):
    project = write_branch(plain(tmp_path / "p"), events=1)
    with pytest.raises(sqlite3.IntegrityError, match="UNIQUE"), project.transaction() as db:
        db.execute("INSERT INTO member VALUES (1, 1, 2, NULL)")
    for query in ("UPDATE event SET who = 'me'", "DELETE FROM event"):
        with pytest.raises(sqlite3.IntegrityError, match="only grows"), project.transaction() as db:
            db.execute(query)
    with pytest.raises(sqlite3.IntegrityError, match="CHECK"), project.transaction() as db:
        db.execute("UPDATE member SET reason = 'both in a group and excluded' WHERE label = 1")
    with pytest.raises(sqlite3.IntegrityError, match="FOREIGN KEY"), project.transaction() as db:
        db.execute('UPDATE member SET "group" = 99 WHERE label = 1')


def test_rows_that_point_nowhere_are_found(tmp_path):
    project = write_branch(plain(tmp_path / "p"))
    db = sqlite3.connect(project.file)
    db.execute("DELETE FROM label WHERE id = 1")  # behind the project's back: foreign keys are off
    db.commit()
    db.close()
    assert any("refers to a missing row of label" in line for line in project.check())


def test_digests_tell_rows_apart_and_not_their_kind():
    assert digest_rows([("a", 1), ("b", 2)]) == digest_rows([["a", 1], ["b", 2]])
    assert len({digest_rows(rows) for rows in ([], [()], [("a",)], [("a",), ("a",)], [("a", "a")])}) == 5
