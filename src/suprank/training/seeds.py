"""Seeds of everything random in training, each a function of where it is used.

A run draws nothing from a stream that goes on: so nothing has to be saved to go on with it, and what one process draws does not
depend on how many there are.
"""

from __future__ import annotations

import hashlib
import struct


def seed_of(*place: int) -> int:
    """A seed below 2⁶³ for this place, such as (seed, epoch, batch, image); other places have unrelated ones.

    Example:
        >>> seed_of(0, 1, 2) == seed_of(0, 1, 2), seed_of(0, 1, 2) == seed_of(0, 2, 1)
        (True, False)
    """
    digest = hashlib.blake2b(struct.pack(f"<{len(place)}q", *place), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1
