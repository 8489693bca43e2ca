"""Labels here are drawn at random, or have an id under two parents or no positives: losses warn of that, and tests go on."""

from pathlib import Path

import pytest


def pytest_collection_modifyitems(items):
    for item in items:
        if Path(__file__).parent in item.path.parents:
            for kind in ("LabelTreeWarning", "NoPositivesWarning"):
                item.add_marker(pytest.mark.filterwarnings(f"ignore::suprank.losses.{kind}"), append=False)
