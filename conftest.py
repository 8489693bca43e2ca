"""For every test, and for doctests, which live beside the code rather than under tests/."""

import atexit
import os
import shutil
import tempfile

import pytest
import torch

from suprank.system import cpu_features

# Doctests are looked for in every module, and these take seconds to import, in each worker, or are not there.
collect_ignore = ["src/suprank/integrations/mteb.py", "src/suprank/integrations/sentence_transformers.py"]

if "SUPRANK_CACHE" not in os.environ:  # nothing is written to the user's cache; workers inherit that of the first process
    os.environ["SUPRANK_CACHE"] = tempfile.mkdtemp(prefix="suprank-cache-")
    atexit.register(shutil.rmtree, os.environ["SUPRANK_CACHE"], ignore_errors=True)

os.environ.setdefault("HF_DATASETS_CACHE", f"{os.environ['SUPRANK_CACHE']}/datasets")

if "SUPRANK_TEST_CONFIG" not in os.environ:  # nor are consents to run code
    os.environ["SUPRANK_TEST_CONFIG"] = os.environ["XDG_CONFIG_HOME"] = tempfile.mkdtemp(prefix="suprank-config-")
    atexit.register(shutil.rmtree, os.environ["XDG_CONFIG_HOME"], ignore_errors=True)

# Tests of vector databases leave threads of gRPC behind. A process that is forked from theirs, and forks in turn (image
# workers), can die in gRPC's own handlers of forks: a segmentation fault once in a few runs.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

# Before anything is computed, and before workers start, which inherit it: many tests compute in bf16.
cpu_features.avoid_amx()


@pytest.fixture(autouse=True)
def torch_in_doctests(doctest_namespace):
    doctest_namespace["torch"] = torch
