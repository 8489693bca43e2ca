"""What can go wrong that a script wants to tell apart; the command line gives each its own exit code."""


class MalformedError(ValueError):
    """A file is not what it must be; the message names file, line and what was expected. Nothing was written."""


class GaveUpError(OSError):
    """A server did not answer, or told us to stop. What was fetched is kept; the same command goes on from there."""
