"""What processes do in place of training, by the name of their folder. Imports little, because each of them imports it anew."""

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
    """Pickled, but not to be read again: it takes two arguments, and keeps one."""

    def __init__(self, one, two):
        super().__init__(f"{one} and {two}")


def steps(config, folder, watch):
    folder.mkdir()
    (folder / "begun").write_text(str(time.monotonic()))
    watch.begin(0, 3, "about")
    watch.say("a [bold] warning")
    for step in (1, 2, 3):
        watch.step(StepValues(step, 0.5, {"loss": 1 / step}, {}, 1.0, 1.0))
    time.sleep(0.2)  # long enough for one beside it to be seen
    (folder / "ended").write_text(str(time.monotonic()))


def until_stopped(config, folder, watch):
    with stop_on_signals() as stop:
        watch.begin(0, 9, "about")
        watch.step(StepValues(1, 0.5, {"loss": 0.5}, {}, 1.0, 1.0))
        while not stop.signal:
            time.sleep(0.01)
        watch.say("saving")
        folder.mkdir()
        (folder / "saved").touch()
        return stop.signal


def killed(config, folder, watch):
    watch.step(StepValues(1, 0.5, {"loss": 0.5}, {}, 1.0, 1.0))
    os.kill(os.getpid(), signal.SIGKILL)


def killed_on_go(config, folder, watch):
    while not (folder.parent / "go").exists():
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGKILL)


def stopped_from_outside(config, folder, watch):
    return signal.SIGTERM


def interrupted_twice(config, folder, watch):
    raise KeyboardInterrupt


def refused(config, folder, watch):
    raise ValueError(f"batch.size={json.loads(config)['batch']['size']} is too much; take less.")


def without_lightning(config, folder, watch):
    raise ModuleNotFoundError("No module named 'lightning'", name="lightning")


def not_finite(config, folder, watch):
    raise TrainingError("step 7: the loss is nan.")


def odd(config, folder, watch):
    raise OddError("this", "that")


def process(config, folder, telling):
    """In place of `parallel._train`, which it calls with a training that is named after the folder, up to a hyphen."""
    parallel._stopped = globals()[folder.name.split("-")[0]]
    _train(config, folder, telling)
