"""The `suprank` command: runs the verbs, and ends plainly when a part is missing or the user stops it."""

import sys

from suprank.system.extras import extras_of

INTERRUPTED = 130  # what shells expect of a program that Ctrl-C ended


def main() -> None:
    """Run the command line with the arguments of this process."""
    try:
        from suprank.cli.app import app  # here, because typer comes with an extra and may be missing
        from suprank.cli.terminal import escape_warnings

        escape_warnings()
        app()
    except ModuleNotFoundError as missing:
        part = (missing.name or "").partition(".")[0]
        if part in ("", "suprank"):  # a mistake of ours, which wants its traceback
            raise
        extras = extras_of(sys.argv[1:], part)
        print(f'suprank: this needs {part}, which is not installed; pip install "suprank[{extras}]"', file=sys.stderr)
        raise SystemExit(1) from None
    except (KeyboardInterrupt, SystemExit) as end:
        if isinstance(end, SystemExit) and end.code != INTERRUPTED:
            raise
        print("suprank: stopped.", file=sys.stderr)
        raise SystemExit(INTERRUPTED) from None


if __name__ == "__main__":
    main()
