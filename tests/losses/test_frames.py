"""How long a call of a loss is to read: the functions of ours that it passes, how deep, and in how many files."""

import sys
from pathlib import Path

import torch

import suprank
from suprank.losses import SupAP

MOST_FRAMES, DEEPEST, MOST_FILES = 62, 10, 10
SOURCE = str(Path(suprank.__file__).parent)


def frames(function):
    """The file and the depth of each call of a function of ours, and each resumption of a generator."""
    found, depth = [], 0

    def watch(frame, event, _):
        nonlocal depth
        if not frame.f_code.co_filename.startswith(SOURCE):
            return
        if event == "call":
            depth += 1
            found.append((frame.f_code.co_filename, depth))
        elif event == "return":
            depth -= 1

    before = sys.getprofile()
    sys.setprofile(watch)
    try:
        function()
    finally:
        sys.setprofile(before)
    return found


def test_a_training_step_on_a_cpu_is_short_to_read():
    loss, labels = SupAP(), torch.arange(64) // 4
    embeddings = torch.randn(64, 32, generator=torch.Generator().manual_seed(0)).requires_grad_()
    for _ in range(2):
        found = frames(lambda: loss(embeddings, labels).backward())
        files, depths = zip(*found, strict=True)
        assert 20 < len(found) <= MOST_FRAMES
        assert max(depths) <= DEEPEST
        assert len(set(files)) <= MOST_FILES
