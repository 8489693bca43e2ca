"""Projects by the hundred, here too."""

from tests.hierarchy.conftest import no_disk_sync  # noqa: F401
