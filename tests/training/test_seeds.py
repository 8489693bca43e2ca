"""Seeds are a function of their place, the same in every process, and unrelated between places."""

import struct
from hashlib import blake2b

from hypothesis import given
from hypothesis import strategies as st

from suprank.training.seeds import derive_seed

PLACES = st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=5).map(tuple)


def test_a_seed_is_the_same_in_every_version():
    """Runs that older versions began would go on with other random numbers."""
    assert derive_seed(0, 1, 2) == int.from_bytes(blake2b(struct.pack("<3q", 0, 1, 2), digest_size=8).digest(), "little") >> 1
    assert (derive_seed(0), derive_seed(1), derive_seed(0, 0)) == (893442142816765029, 9116012252223111705, 520810605562734633)


@given(place=PLACES, other=PLACES)
def test_other_places_have_other_seeds(place, other):
    assert (derive_seed(*place) == derive_seed(*other)) == (place == other)


@given(place=PLACES)
def test_seeds_are_what_torch_takes(place):
    assert 0 <= derive_seed(*place) < 2**63


def test_neighboring_places_differ_in_half_of_their_bits():
    differing = [(derive_seed(3, step) ^ derive_seed(3, step + 1)).bit_count() for step in range(500)]
    assert 30 < sum(differing) / len(differing) < 33
