"""Stand-ins for a training process, chosen by the name of the run's folder. Imports little: every process imports it anew."""

import json
import os
import signal
import time

from suprank.experiments import parallel
from suprank.experiments.parallel import TrainingError
from suprank.training.callbacks import StepValues
from suprank.training.signals import stop_on_signals

_train = parallel._train


class OddError(Exception):
    """Can be pickled but not unpickled: it takes two arguments, and keeps one."""

    def __init__(self, one, two):
        super().__init__(f"{one} and {two}")


def steps(config, folder, callback):
    folder.mkdir()
    (folder / "begun").write_text(str(time.monotonic()))
    callback.on_train_start(0, 3, "about")
    callback.on_message("a [bold] warning")
    for step in (1, 2, 3):
        callback.on_step_end(StepValues(step, 0.5, {"loss": 1 / step}, {}, 1.0, 1.0))
    time.sleep(0.2)  # long enough for one beside it to be seen
    (folder / "ended").write_text(str(time.monotonic()))


def until_stopped(config, folder, callback):
    with stop_on_signals() as stop:
        callback.on_train_start(0, 9, "about")
        callback.on_step_end(StepValues(1, 0.5, {"loss": 0.5}, {}, 1.0, 1.0))
        while not stop.signal:
            time.sleep(0.01)
        callback.on_message("saving")
        folder.mkdir()
        (folder / "saved").touch()
        return stop.signal


def killed(config, folder, callback):
    callback.on_step_end(StepValues(1, 0.5, {"loss": 0.5}, {}, 1.0, 1.0))
    os.kill(os.getpid(), signal.SIGKILL)


def killed_on_go(config, folder, callback):
    while not (folder.parent / "go").exists():
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGKILL)


def stopped_from_outside(config, folder, callback):
    return signal.SIGTERM


def interrupted_twice(config, folder, callback):
    raise KeyboardInterrupt


def refused(config, folder, callback):
    raise ValueError(f"batch.size={json.loads(config)['batch']['size']} is too much; take less.")


def without_lightning(config, folder, callback):
    raise ModuleNotFoundError("No module named 'lightning'", name="lightning")


def not_finite(config, folder, callback):
    raise TrainingError("step 7: the loss is nan.")


def odd(config, folder, callback):
    raise OddError("this", "that")


def process(config, folder, connection):
    """In place of `parallel._train`, which it calls with the function of this file that the folder is named after."""
    parallel._run_training = globals()[folder.name.split("-")[0]]
    _train(config, folder, connection)
