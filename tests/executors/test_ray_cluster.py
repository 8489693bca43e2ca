"""Tasks on a real Ray cluster of two nodes at 127.0.0.1: what dies is done elsewhere, and the result is that of one process."""

import json
import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from suprank.executors import parse_on, ray_cluster
from suprank.executors.ray_cluster import RayCluster
from suprank.training.recipe import to_toml
from tests.data.pictures import folder as photographs
from tests.ray_nodes import IS_INSTALLED, ROOT, RayNodes
from tests.training.runs import pictures, recipe
from tests.waiting import wait_until

pytestmark = [
    pytest.mark.skipif(not IS_INSTALLED, reason='needs Ray: pip install "suprank[ray]"'),
    pytest.mark.skipif(sys.platform != "linux", reason="kills the processes that it finds in /proc"),
    pytest.mark.xdist_group("ray"),
]
IMAGES, SHARD = 96, 8
SLOW = """
import time
import timm, torch

class Slow(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net = timm.create_model("test_resnet", num_classes=0)
        self.num_features = self.net.num_features

    def forward(self, images):
        time.sleep(0.3)
        return self.net(images)

def build():
    torch.manual_seed(0)
    return Slow()
"""
COMMAND = """
import sys
from suprank.cli.main import main
from suprank.embedding import collection
collection.SHARD_ROWS = 8
sys.argv[0] = "suprank"
main()
"""
START = """
import os, signal, sys
from suprank.executors.local import Crashed, ExperimentStopped, Task
from suprank.executors.ray_cluster import RayCluster
from tests.executors import work

def task(what, *arguments):
    return Task(f"{what}{arguments}", (what, *arguments))
"""


@pytest.fixture(scope="module")
def nodes():
    with RayNodes() as started:
        yield started


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Photos, their manifest, a slow backbone, what one process makes of them, and traps: modules beside the photos."""
    place = tmp_path_factory.mktemp("photos")
    split = ["test"] * IMAGES
    photographs(place, count=IMAGES, split=split, label_fine=split, label_coarse=split).save(place / "m.csv")
    (place / "mine.py").write_text(SLOW)
    (place / f"a{IMAGES - 1}.png").write_bytes(b"no picture")
    for name in ("typer", "numpy", "suprank"):
        (place / f"{name}.py").write_text(f"open({str(place / 'trapped')!r}, 'a').write('{name} ')\n")
    with command(place, "--out", "alone", "--on-broken", "skip", "--device", "cpu") as process:
        assert process.wait(120) == 0, process.stderr.read()
    return place


@contextmanager
def python(place, code, *arguments, **variables):
    """Python with the command line's options in a folder; killed at the end."""
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}", "OMP_NUM_THREADS": "1", **variables}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    words = [sys.executable, "-P", "-c", code, *map(str, arguments)]
    with subprocess.Popen(words, cwd=place, env=environment, start_new_session=True, **pipes) as process:
        try:
            yield process
        finally:
            process.kill()


def command(place, *arguments, **variables):
    """`suprank embed` with 8 images in a shard."""
    fast = ("--root", ".", "--size", 32, "--batch-size", 8, "--workers", 0)
    return python(place, COMMAND, "embed", "mine.py:build", "m.csv", *fast, *arguments, **variables)


def on_ray(nodes, place, out):
    return command(place, "--out", out, "--on-broken", "skip", "--on", f"ray={nodes.address}", **nodes.environment)


def files(out):
    return {file.relative_to(out): file.read_bytes() for file in Path(out).rglob("*.npy")}


def said_by(nodes, place, code):
    with python(place, START + code, **nodes.environment) as process:
        said, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    return said


def test_each_task_is_answered_and_a_failure_has_its_type_and_fails_its_own_task(nodes, tmp_path):
    said = said_by(
        nodes,
        tmp_path,
        """
with RayCluster() as cluster:
    tasks = [task("double", number) for number in range(50)] + [task("fail", "memory"), task("fail", "odd"), task("end", 3)]
    tasks += [task("fail", "unpicklable"), task("lambdas"), Task("argument", ("double", lambda: 0))]
    found = {task.name: answer for task, answer in cluster.run(work.act, tasks)}
    assert [found[one.name].value for one in tasks[:50]] == [2 * number for number in range(50)]
    for one in tasks[50:]:
        print(type(found[one.name].error).__name__, found[one.name].error, isinstance(found[one.name].error, Crashed))
    assert "in fail" in str(found["fail('memory',)"].error.__cause__)
    facts = next(cluster.run(work.act, [task("facts")]))[1].value
    print(facts["safe"], facts["PYTHONSAFEPATH"], os.getcwd() in facts["path"], facts["threads"])
""",
    )
    failures = said.splitlines()
    assert failures[0] == "MemoryError too much False"
    assert "OddError: this and that" in failures[1]
    assert failures[2].startswith("WorkerLost lost its process or machine 6 times, perhaps because memory ran out: ")
    assert failures[2].endswith("True")
    assert "Unpicklable: so it is" in failures[3]
    assert "lambda" in failures[4]
    assert "lambda" in failures[5]
    assert failures[6] == "True None False ['1', 1]"


def test_a_signal_lets_tasks_save_and_a_caller_that_goes_on_leaves_none(nodes, tmp_path):
    said = said_by(
        nodes,
        tmp_path,
        """
import pathlib, threading, time
def kill():
    while not pathlib.Path("stopped/staying").exists():
        time.sleep(0.05)
    os.kill(os.getpid(), signal.SIGTERM)
with RayCluster() as cluster:
    threading.Thread(target=kill).start()
    try:
        next(cluster.run(work.act, [task("stay", os.path.abspath("stopped"))]))
    except ExperimentStopped as stopped:
        print(stopped, os.path.exists("stopped/saved"))
    for one, answer in cluster.run(work.act, [task("double", 1), task("stay", os.path.abspath("left"))]):
        while not os.path.exists("left/staying"):
            time.sleep(0.05)
        break
    del one, answer
    print(os.path.exists("left/saved"))
""",
    )
    assert said == "stopped by SIGTERM True\nTrue\n"


def test_what_tasks_report_arrives_and_so_does_that_they_have_begun(nodes, tmp_path):
    said = said_by(
        nodes,
        tmp_path,
        """
seen = []
with RayCluster() as cluster:
    started = lambda task: seen.append((task.name, None))
    list(cluster.run(work.act, [task("count", 5, 4)], on_start=started, on_report=lambda *of: seen.append(of)))
assert seen[0] == ("count(5, 4)", None), seen
print(seen[-1][1])
""",
    )
    assert said == "(4, 5)\n"


@pytest.mark.slow
def test_a_comparison_with_a_node_killed_half_way_equals_the_one_of_this_machine(nodes, tmp_path):
    (tmp_path / "r.toml").write_text(to_toml(recipe(pictures(tmp_path / "pictures"), run={"epochs": 8})))
    arguments = ("compare", "r.toml", "loss.weight=0,0.1", "--seeds", 2, "--out")
    with python(tmp_path, COMMAND, *arguments, "here") as process:
        errors = process.communicate(timeout=300)[1]
        assert process.returncode == 0, errors
    with python(tmp_path, COMMAND, *arguments, "there", "--on", "ray", **nodes.environment) as process:
        wait_until(lambda: len(list((tmp_path / "there").glob("*/metrics.jsonl"))) >= 2)
        assert nodes.kill(1) > 3
        nodes.add()
        errors = process.communicate(timeout=300)[1]
        assert process.returncode == 0, errors
    here, there = (
        {file.parent.name: without_times(file) for file in (tmp_path / out).glob("*/result.json")} for out in ("here", "there")
    )
    assert len(here) == 4
    assert here == there
    assert "4 of 4 done" in errors


def without_times(file):
    content = json.loads(file.read_text())
    return {key: value for key, value in content.items() if key in ("epoch", "step", "metrics")}


def test_a_session_that_the_user_has_begun_is_used_and_stays(nodes, tmp_path):
    (tmp_path / "torch.py").write_text("1 / 0")
    said = said_by(
        nodes,
        tmp_path,
        """
import ray
ray.init(os.environ["ADDRESS"], namespace="mine", log_to_driver=False)
before = ray.get_runtime_context().get_job_id()
try:
    RayCluster("10.0.0.1:6379").__enter__()
except ValueError as error:
    print(str(error).partition(",")[0])
with RayCluster() as cluster:
    answer = next(cluster.run(work.act, [task("facts")]))[1]
    assert answer.error is None, answer
    facts = answer.value
    print(facts["path"].index(os.getcwd()) == len(facts["path"]) - 1)
print(ray.is_initialized() and ray.get_runtime_context().get_job_id() == before)
""".replace('os.environ["ADDRESS"]', repr(nodes.address)),
    )
    assert said == f"this process is connected to the Ray cluster at {nodes.address}\nTrue\nTrue\n"


def test_a_driver_and_a_node_are_killed_half_way_and_the_result_is_that_of_one_process(nodes, photos):
    parts = photos / "e/test/parts"
    with on_ray(nodes, photos, "e") as process:
        wait_until(lambda: len(list(parts.glob("*.npy"))) >= 3)
        process.kill()
    begun = {part.name: part.stat().st_mtime_ns for part in parts.glob("*.npy")}
    assert 3 <= len(begun) < IMAGES // SHARD - 3
    with on_ray(nodes, photos, "e") as process:
        wait_until(lambda: len(list(parts.glob("*.npy"))) >= len(begun) + 3)
        assert begun.items() <= {part.name: part.stat().st_mtime_ns for part in parts.glob("*.npy")}.items()
        assert nodes.kill(1) > 3, "the raylet and a worker"
        output, errors = process.communicate(timeout=120)
    nodes.add()
    assert (process.returncode, output) == (0, "test: e/test\n"), errors
    assert f"of {IMAGES // SHARD} shards were there" in errors
    assert "a95.png" in errors, "the broken one"
    assert files(photos / "e") == files(photos / "alone")
    assert len(files(photos / "e")) == 1 + IMAGES // SHARD
    assert not (photos / "trapped").exists()


def test_what_a_machine_cannot_do_is_one_sentence(nodes, photos):
    arguments = ("--out", "refused", "--on", "ray")
    with command(photos, *arguments, "--device", "cuda", **nodes.environment) as process:
        assert "a task takes 1 GPU, and the most that a machine of the Ray cluster at 127.0.0.1" in one_line(process)
    with command(photos, *arguments, **nodes.environment) as process:
        assert "a95.png" in one_line(process)


def one_line(process):
    """What a command that is refused says."""
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 2, errors
    assert "Traceback" not in errors
    return " ".join(errors.replace("│", " ").split())


def test_addresses_that_lead_nowhere_are_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    for address, complaint in {
        "": "there is no Ray cluster on this machine; start one with `ray start --head`, or name it: on='ray=HOST:PORT'.",
        "nonsense": "on='ray=nonsense' must be ray=HOST:PORT, as `ray start` prints it",
        "ray://127.0.0.1:10001": "must be ray=HOST:PORT",
        "127.0.0.1:1": "no Ray cluster answers at 127.0.0.1:1 ([Errno 111] Connection refused); start one",
    }.items():
        with pytest.raises((ConnectionError, ValueError)) as failure:
            RayCluster(address).__enter__()
        assert complaint in str(failure.value)


def test_without_ray_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ModuleNotFoundError, match=r'on="ray" needs ray, which is not installed; pip install "suprank\[ray\]"'):
        RayCluster().__enter__()


@pytest.mark.parametrize("on", ["spark", "local=1", "ray=", "slurm ", "rays", "ray 127.0.0.1:1"])
def test_a_place_that_nobody_knows_is_refused(on):
    with pytest.raises(ValueError, match="must be local, ray, ray=HOST:PORT, or slurm with options of sbatch"):
        parse_on(on)


def test_a_machine_that_is_lost_is_said_and_what_is_handed_out_follows_the_machines(monkeypatch, caplog):
    machines = [{"CPU": 4.0, "GPU": 2.0}, {"CPU": 8.0, "GPU": 1.0}]
    cluster = RayCluster()
    monkeypatch.setattr(cluster, "machines", lambda: list(machines))
    monkeypatch.setattr(ray_cluster, "_LOOK_SECONDS", 0)
    found = ray_cluster._Machines(cluster, cpus=4, gpus=1)
    assert found.places() == 4, "each does one, and one follows"
    del machines[0]
    assert found.places() == 2
    del machines[0]
    assert found.places() == 1, "for a machine that may come"
    assert [record.getMessage() for record in caplog.records] == [
        "1 of 2 machines of the Ray cluster are lost; their tasks are done by others.",
        "1 of 1 machines of the Ray cluster are lost; their tasks are done by others, once there are any.",
    ]
