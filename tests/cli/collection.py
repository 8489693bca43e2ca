"""A small collection of pictures on disk, and the command line run on it."""

import numpy as np
from PIL import Image
from typer.testing import CliRunner

from suprank.cli.app import app


def photographs(root, groups=3, classes=3, images=4, side=48, tint=0):
    """group0/class00/0.png, ...: the pictures of a class are one picture with some noise, each in a tint of its own. The root.

    Groups share the upper half of the picture. `tint`, from 0 to 1, is what hides a class until one has learnt to look past it.
    """
    draw = np.random.default_rng(0)
    for group in range(groups):
        shared = draw.uniform(0, 255, (2, 4, 3))
        for one in range(classes):
            folder = root / f"group{group}" / f"class{group}{one}"
            folder.mkdir(parents=True)
            colors = np.concatenate([shared, draw.uniform(0, 255, (2, 4, 3))])
            for image in range(images):
                noisy = np.clip(colors + draw.uniform(-60, 60, colors.shape), 0, 255)
                tinted = (1 - tint) * noisy + tint * draw.uniform(0, 255, 3)
                Image.fromarray(tinted.astype(np.uint8)).resize((side + 8, side)).save(folder / f"{image}.png")
    return root


def invoke(*arguments, columns=250):
    """The command line in this process, by default in a terminal wide enough for every message."""
    environment = {"COLUMNS": str(columns), "NO_COLOR": "1", "TERM": "dumb"}
    return CliRunner().invoke(app, [str(one) for one in arguments], env=environment)


def done(*arguments):
    """A command that succeeds."""
    result = invoke(*arguments)
    assert result.exit_code == 0, result.output
    return result


def refused(*arguments):
    """What a command that is refused says, on one line: the exit code is 2, and there is no traceback."""
    result = invoke(*arguments)
    assert result.exit_code == 2, result.output
    assert "Traceback" not in result.output
    return " ".join(result.output.replace("│", " ").split())
