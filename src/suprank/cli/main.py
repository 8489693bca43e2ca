"""The `suprank` command: runs the verbs, and ends plainly when a part is missing or the user stops it."""

import sys

INTERRUPTED = 130  # what shells expect of a program that Ctrl-C ended
EXTRAS = {
    **dict.fromkeys(("rich", "typer"), "cli"),
    **dict.fromkeys(("PIL", "matplotlib", "pyarrow", "pydantic", "safetensors", "scipy", "timm", "torchvision"), "vision"),
    **dict.fromkeys(("lightning", "submitit", "tensorboard"), "train"),
    **dict.fromkeys(("faiss", "fastapi", "jinja2", "markupsafe", "openTSNE", "python_multipart"), "explore"),
    **dict.fromkeys(("starlette", "uvicorn"), "explore"),
    **dict.fromkeys(("pymilvus", "qdrant_client"), "servers"),
    **dict.fromkeys(("httpx2", "rapidfuzz", "sklearn"), "hierarchy"),
    **dict.fromkeys(("open_clip", "sentence_transformers"), "encoders"),
    "pytorch_metric_learning": "baselines",
}
"""What the verbs import, and the extra that brings it."""


def main() -> None:
    """Run the command line with the arguments of this process."""
    try:
        from suprank.cli.app import app  # here, because typer comes with an extra and may be missing

        app()
    except ModuleNotFoundError as missing:
        part = (missing.name or "").partition(".")[0]
        if part not in EXTRAS:
            raise
        print(f'suprank: this needs {part}, which is not installed; pip install "suprank[{EXTRAS[part]}]"', file=sys.stderr)
        raise SystemExit(1) from None
    except (KeyboardInterrupt, SystemExit) as end:
        if isinstance(end, SystemExit) and end.code != INTERRUPTED:
            raise
        print("suprank: stopped.", file=sys.stderr)
        raise SystemExit(INTERRUPTED) from None


if __name__ == "__main__":
    main()
