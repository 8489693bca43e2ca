"""Labels here are drawn at random, or have an id under two parents on purpose: losses warn of that, and these tests go on."""

from pathlib import Path

import pytest


def pytest_collection_modifyitems(items):
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings("ignore::suprank.losses.LabelTreeWarning"), append=False)
