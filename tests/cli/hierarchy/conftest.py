"""Projects by the hundred, here too."""

from tests.hierarchy.conftest import without_waiting_for_the_disk  # noqa: F401
