"""Entry point of the `suprank` command. A missing package or Ctrl-C ends it with one line, without a traceback."""

import atexit
import gc
import sys

from suprank.system.child_processes import restore_environment
from suprank.system.extras import required_extra

INTERRUPTED = 130  # exit code of a program that Ctrl-C ended


def main() -> None:
    """Run the command line with the arguments of this process."""
    restore_environment()
    atexit.register(gc.freeze)  # Python would look through all of torch for garbage once more: over a second
    try:
        from suprank.cli.app import app  # typer comes with an extra and may be missing
        from suprank.cli.terminal import escape_unprintable, escape_warnings

        escape_unprintable()
        escape_warnings()
        app(prog_name="suprank")  # under `python -m suprank` too
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package in ("", "suprank"):  # a bug of ours: show the traceback
            raise
        extra = required_extra(sys.argv[1:], package)
        print(f'suprank: this needs {package}, which is not installed; pip install "suprank[{extra}]"', file=sys.stderr)
        raise SystemExit(1) from None
    except (KeyboardInterrupt, SystemExit) as end:
        if isinstance(end, SystemExit) and end.code != INTERRUPTED:
            raise
        print("suprank: stopped.", file=sys.stderr)
        raise SystemExit(INTERRUPTED) from None


if __name__ == "__main__":
    main()
