"""Processes that are forked from the fork server use the GPU: `PYTHONPATH=src:. python benchmarks/gpu_processes.py`.

What the GPU test of tests/executors/test_local.py checks, for a machine without pytest and our other dependencies: it needs
Python 3.11 or later, torch and numpy. The server must not have touched CUDA, a kept process initializes it once, and processes
of their own each once.
"""

from suprank.executors.local import Task, run
from tests.executors import work

if __name__ == "__main__":
    ((_, facts),) = run(work.act, [Task("facts", ("facts",))])
    assert facts.error is None, facts.error
    assert facts.value["cuda"] == [False, False], "the server has initialized CUDA"
    for keep in (True, False):
        tasks = [Task(str(number), ("use_cuda",)) for number in range(3)]
        answers = [answer for _, answer in run(work.act, tasks, keep=keep)]
        assert not any(answer.error for answer in answers), [answer.error for answer in answers]
        pids, before, sums = zip(*(answer.value for answer in answers), strict=True)
        assert sums == (3.0, 3.0, 3.0)
        assert len(set(pids)) == (1 if keep else 3)
        assert before == ((False, True, True) if keep else (False, False, False))
        print(f"keep={keep}: processes {pids}, CUDA was initialized before the task: {before}")
