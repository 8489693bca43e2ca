"""Tasks on a real Ray cluster of two nodes at 127.0.0.1: what dies is done elsewhere, and the result is that of one process."""

import json
import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

import suprank
from suprank.embedding import collection
from suprank.executors import parse_on, ray_cluster
from suprank.executors.ray_cluster import RayCluster
from suprank.experiments import plan_comparison
from suprank.training import train
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
FAST = {"size": 32, "batch_size": 8, "workers": 0}
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
# Starting a process that imports torch and Ray takes seconds, and so does each worker of it: one caller does all of this.
CALLER = """
import json, os, pathlib, signal, sys, threading, time
import ray
import suprank
from suprank.executors import ray_cluster
from suprank.executors.local import Crashed, ExperimentStopped, Task
from suprank.executors.ray_cluster import RayCluster
from tests.executors import work

def task(what, *arguments):
    return Task(f"{what}{arguments}", (what, *arguments))

def say(name, value):
    print(json.dumps([name, value]))

def refusal(function, *arguments, **options):
    try:
        function(*arguments, **options)
    except (ValueError, OSError) as error:
        return f"{type(error).__name__}: {error}"

def kill_once_it_works():
    while not pathlib.Path("stopped/staying").exists():
        time.sleep(0.05)
    os.kill(os.getpid(), signal.SIGTERM)

address, broken = sys.argv[1:]
with RayCluster() as cluster:
    seen = []
    tasks = [task("count", 5, 4), *(task("double", number) for number in range(50)), task("fail", "memory")]
    tasks += [task("fail", "odd"), task("fail", "unpicklable"), task("lambdas"), Task("argument", ("double", lambda: 0))]
    tasks += [task("facts")]
    started = lambda task: seen.append((task.name, None))
    reported = lambda task, values: seen.append((task.name, values))
    found = {one.name: answer for one, answer in cluster.run(work.act, tasks, on_start=started, on_report=reported)}
    say("doubled", [found[one.name].value for one in tasks[1:51]])
    say("reported", [values for name, values in seen if name == "count(5, 4)"])
    say("failed", [f"{type(found[one.name].error).__name__}: {found[one.name].error}" for one in tasks[51:56]])
    say("cause", str(found[tasks[51].name].error.__cause__))
    facts = found["facts()"].value
    say("facts", [facts["safe"], facts["PYTHONSAFEPATH"], os.getcwd() in facts["path"], facts["threads"]])
    say("no GPU", refusal(lambda: next(cluster.run(work.act, tasks[:1], gpus=1))))

    threading.Thread(target=kill_once_it_works).start()
    try:
        next(cluster.run(work.act, [task("stay", os.path.abspath("stopped"))]))
    except ExperimentStopped as stopped:
        say("stopped", [str(stopped), os.path.exists("stopped/saved")])
    for one, answer in cluster.run(work.act, [task("double", 1), task("stay", os.path.abspath("left"))]):
        while not os.path.exists("left/staying"):
            time.sleep(0.05)
        break
    del one, answer
    say("left", os.path.exists("left/saved"))

    ray_cluster._RETRIES = 1
    lost = next(cluster.run(work.act, [task("end", 3)]))[1].error
    say("lost", [str(lost), isinstance(lost, Crashed)])

ray.init(address, namespace="mine", log_to_driver=False)
before = ray.get_runtime_context().get_job_id()
say("other address", refusal(RayCluster("10.0.0.1:6379").__enter__))
with RayCluster() as cluster:
    path = next(cluster.run(work.act, [task("facts")]))[1].value["path"]
    say("session", path.index(os.getcwd()) == len(path) - 1)
say("broken", refusal(suprank.embed, "mine.py:build", broken, "refused", size=32, on="ray"))
say("stays", ray.is_initialized() and ray.get_runtime_context().get_job_id() == before)
"""


@pytest.fixture(scope="module")
def nodes():
    with RayNodes() as started:
        yield started


@pytest.fixture(scope="module")
def said(nodes, tmp_path_factory):
    """What the caller says, by name. Beside it is a trap: a module with the name of one that workers import."""
    place = tmp_path_factory.mktemp("caller")
    (place / "torch.py").write_text("1 / 0")
    (place / "mine.py").write_text(SLOW)
    (place / "broken").mkdir()
    photographs(place / "broken", count=3, split=["test"] * 3, label_fine=["a"] * 3).save(place / "broken.csv")
    (place / "broken" / "a2.png").write_bytes(b"no picture")
    with python(place, CALLER, nodes.address, "broken.csv", **nodes.environment) as process:
        said, errors = process.communicate(timeout=240)
    assert process.returncode == 0, errors
    return dict(json.loads(line) for line in said.splitlines())


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
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        patch.setattr(collection, "SHARD_ROWS", SHARD)
        suprank.embed("mine.py:build", "m.csv", "alone", root=".", on_broken="skip", device="cpu", **FAST)
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


def embed_on_ray(nodes, place, out):
    """`suprank embed` with 8 images in a shard."""
    fast = [word for name, value in FAST.items() for word in (f"--{name.replace('_', '-')}", value)]
    words = ("embed", "mine.py:build", "m.csv", "--root", ".", *fast, "--on-broken", "skip")
    return python(place, COMMAND, *words, "--out", out, "--on", f"ray={nodes.address}", **nodes.environment)


def files(out):
    return {file.relative_to(out): file.read_bytes() for file in Path(out).rglob("*.npy")}


def test_each_task_is_answered_and_a_failure_has_its_type_and_fails_its_own_task(said):
    assert said["doubled"] == [2 * number for number in range(50)]
    memory, odd, unpicklable, value, argument = said["failed"]
    assert memory == "MemoryError: too much"
    assert "in fail" in said["cause"]
    assert "OddError: this and that" in odd
    assert "Unpicklable: so it is" in unpicklable
    assert "lambda" in value
    assert "lambda" in argument
    reason, is_crashed = said["lost"]
    assert reason.startswith("lost its process or machine 2 times, perhaps because memory ran out: ")
    assert is_crashed


def test_workers_start_safely_and_what_tasks_report_arrives(said):
    assert said["facts"] == [True, None, False, ["1", 1]]
    assert said["reported"][0] is None, "it has begun"
    assert said["reported"][-1] == [4, 5]


def test_a_signal_lets_tasks_save_and_a_caller_that_goes_on_leaves_none(said):
    assert said["stopped"] == ["stopped by SIGTERM", True]
    assert said["left"]


def test_a_session_that_the_user_has_begun_is_used_and_stays(nodes, said):
    assert said["other address"].startswith(f"ValueError: this process is connected to the Ray cluster at {nodes.address}, not")
    assert said["session"], "the working folder comes last"
    assert said["stays"]


def test_what_a_machine_cannot_do_and_an_image_that_cannot_be_read_are_one_sentence(said):
    gpu = "ValueError: a task takes 1 GPU, and the most that a machine of the Ray cluster at 127.0.0.1"
    assert said["no GPU"].startswith(gpu)
    assert "a2.png" in said["broken"]
    assert "\n" not in said["broken"]


@pytest.mark.slow
def test_a_comparison_with_a_node_killed_half_way_equals_trainings_of_this_process(nodes, tmp_path):
    (tmp_path / "r.toml").write_text(to_toml(recipe(pictures(tmp_path / "pictures"), run={"epochs": 10})))
    arguments = ("compare", "r.toml", "--seeds", 2, "--out", "there", "--on", "ray")
    with python(tmp_path, COMMAND, *arguments, **nodes.environment) as process:
        wait_until(lambda: len(list((tmp_path / "there").glob("*/metrics.jsonl"))) >= 2)
        assert nodes.kill(1) > 3
        nodes.add()
        errors = process.communicate(timeout=300)[1]
        assert process.returncode == 0, errors
    assert "2 of 2 done" in errors
    for run in plan_comparison(str(tmp_path / "r.toml"), tmp_path / "here", seeds=2).runs:
        alone = train(run.config, run.folder)
        there = json.loads((tmp_path / "there" / run.name / "result.json").read_bytes())
        assert there["metrics"] == json.loads((alone.folder / "result.json").read_bytes())["metrics"]


def test_a_driver_and_a_node_are_killed_half_way_and_the_result_is_that_of_one_process(nodes, photos):
    parts = photos / "e/test/parts"
    with embed_on_ray(nodes, photos, "e") as process:
        wait_until(lambda: len(list(parts.glob("*.npy"))) >= 3)
        process.kill()
    begun = {part.name: part.stat().st_mtime_ns for part in parts.glob("*.npy")}
    assert 3 <= len(begun) < IMAGES // SHARD - 3
    with embed_on_ray(nodes, photos, "e") as process:
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
