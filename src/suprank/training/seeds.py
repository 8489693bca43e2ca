"""Seeds of everything random in training, each derived from where it is used.

No random stream continues from one step to the next, so that a resumed run needs no saved generator state, and what a process
draws does not depend on the number of processes.
"""

from __future__ import annotations

import hashlib
import struct


def derive_seed(*place: int) -> int:
    """A seed below 2⁶³ for a place such as (seed, epoch, batch, image); seeds of different places are unrelated.

    Example:
        >>> derive_seed(0, 1, 2) == derive_seed(0, 1, 2), derive_seed(0, 1, 2) == derive_seed(0, 2, 1)
        (True, False)
    """
    digest = hashlib.blake2b(struct.pack(f"<{len(place)}q", *place), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1
