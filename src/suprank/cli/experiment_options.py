"""Options that `suprank compare` and `suprank sweep` share."""

from __future__ import annotations

from typing import Annotated

import typer

KeepProcesses = Annotated[
    bool,
    typer.Option(
        "--keep-processes",
        help="Train run after run in the same processes, as many as --jobs, so that each initializes CUDA only once: for "
        "many short runs on a GPU. Linux only.",
    ),
]
