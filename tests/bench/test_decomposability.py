"""benchmarks/decomposability.py: the figure shows differences between methods at the same size."""

import runpy
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "decomposability.py"


def test_a_gain_is_the_difference_to_sup_ap_at_the_same_size_with_an_interval_over_seeds():
    values = {
        ("sup-ap", 16): (10.0, 12.0),
        ("roadmap", 16): (11.0, 13.0),
        ("sup-ap", 32): (20.0, 20.0),
        ("roadmap", 32): (25.0, 25.0),
    }
    rows = [{"method": name, "batch": size, "mAP@R": one} for (name, size), found in values.items() for one in found]
    gains = runpy.run_path(str(SCRIPT))["gains"](rows, "batch", "roadmap")
    assert list(gains) == [16, 32]
    assert gains[16].difference == pytest.approx(1.0)
    assert gains[16].low < 0 < gains[16].high
    assert (gains[32].difference, gains[32].low) == pytest.approx((5.0, 5.0))
