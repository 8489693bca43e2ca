"""The core of suprank as Windows and macOS run it: without calls that only Linux or Unix has, and with spawned workers.

`main` is called in a process of its own, in a folder with photos.zip and model/.
"""

import importlib
import io
import json
import multiprocessing
import os
import pkgutil
import signal
import sys
from multiprocessing import popen_fork, resource_tracker
from pathlib import Path
from types import SimpleNamespace

MISSING = {
    os: (
        *("sched_getaffinity", "sysconf", "killpg", "getpgid", "setsid", "pread", "fork", "waitid", "getuid", "geteuid"),
        *("uname", "getloadavg", "statvfs", "mkfifo", "posix_fadvise", "O_CLOEXEC", "O_DIRECTORY"),
    ),
    signal: (
        *("SIGKILL", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGALRM", "SIGBUS"),
        *("pthread_sigmask", "setitimer", "ITIMER_REAL", "alarm"),
    ),
}
MODULES = ("fcntl", "resource", "pwd", "grp", "termios", "tty", "pty")
IMAGES = ("--size", 32, "--resize", 0, "--device", "cpu", "--workers", 0)
TRAIN = (
    *("train", "glyphs/happier", "data.manifest=train.parquet", "data.workers=1", "data.cache_images=false"),
    *("images.size=32", "images.test_resize=0", "evaluation.at_start=false"),
    *("model.backbone=test_resnet", "model.pretrained=false", "batch.size=4", "batch.images_per_class=2", "run.epochs=1"),
)


def import_every_module():
    """Import all of suprank but what other packages have to be there for, and return how many modules that were."""
    import suprank

    names = [module.name for module in pkgutil.walk_packages(suprank.__path__, "suprank.")]
    left_out = (".fused", "kernels", "_triton", ".mteb", ".sentence_transformers")  # Triton's, for a GPU; seconds of imports
    names = [name for name in names if not name.endswith(left_out)]
    for name in names:
        importlib.import_module(name)
    return len(names)


def main():
    """Print as JSON what came out."""
    multiprocessing.set_start_method("spawn")
    importlib.import_module("requests_cache")  # elsewhere, another module of its platformdirs would be imported
    resource_tracker.ensure_running()  # Python itself uses here what Unix has, and there other things
    popen_fork.signal = SimpleNamespace(**vars(signal))
    for name in [name for name in sys.modules if name.startswith("suprank.")]:
        del sys.modules[name]  # other packages stay: they may need at import what they like
    for module, names in MISSING.items():
        for name in names:
            delattr(module, name)
    sys.modules |= dict.fromkeys(MODULES)
    found = {"modules": import_every_module()}

    sys.stdout = io.TextIOWrapper(sys.stdout.buffer, encoding="ascii", write_through=True)  # which lacks more than cp1252
    from suprank.cli.main import main as suprank

    def run(*words):
        sys.argv = ["suprank", *map(str, words)]
        try:
            suprank()
        except SystemExit as end:
            if end.code:
                raise

    run("data", "import", "folder", "photos.zip", "split=test", "--out", "test.parquet")
    run("data", "import", "folder", "photos.zip", "--out", "train.parquet")
    run("embed", "model", "test.parquet", "--out", "e", *IMAGES)
    run("search", "e", "--queries", "e/test/embeddings.npy", "--kind", "ivf")
    run(*TRAIN, "--out", "r")
    run("recipes")  # prints τ
    found |= _values()
    print(json.dumps(found))


def _values():
    """The loss and the metrics of the embeddings, and what locks and writes do."""
    import numpy as np
    import torch

    from suprank.data import Manifest
    from suprank.evaluation import evaluate
    from suprank.files.atomic import write_atomically
    from suprank.files.locking import lock_folder
    from suprank.losses import SupAP

    manifest = Manifest.read("e/test/items.parquet")
    embeddings = torch.from_numpy(np.load("e/test/embeddings.npy")).requires_grad_()
    labels = torch.from_numpy(manifest.labels.copy())
    loss = SupAP()(embeddings, labels[:, 0])
    loss.backward()
    manifest.save("again.csv")
    with lock_folder(Path("locked"), "writing to", "wait"):
        try:
            with lock_folder(Path("locked"), "writing to", "wait"):
                refused = ""
        except BlockingIOError as error:
            refused = str(error)
    for text in ("first", "second"):
        write_atomically(Path("atomic.txt"), text.encode())
    return {
        "loss": loss.item(),
        "report": dict(evaluate(embeddings.detach(), labels)),
        "again": Manifest.read("again.csv").labels.tolist(),
        "refused": refused,
        "atomic": Path("atomic.txt").read_text(encoding="utf-8"),
    }
