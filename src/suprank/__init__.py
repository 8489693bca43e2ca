"""Rank losses, exact rank metrics and label hierarchies for image retrieval.

Commands are functions too, each imported when it is first used:

    suprank.train(config, folder)            suprank.compare(...)      suprank.open_data(run)
    suprank.embed(model, manifest, out)      suprank.evaluate(run)     suprank.report(run)      suprank.explore(run)
    suprank.search(embeddings, queries)      suprank.adapt(embeddings, head)   suprank.push_to_hub(run, repo_id)
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from suprank.experiments import compare
    from suprank.training import train
    from suprank.workflows import adapt, embed, evaluate, explore, open_data, push_to_hub, report, search

__version__ = "0.2.0"

__all__ = [
    "__version__",
    "adapt",
    "compare",
    "embed",
    "evaluate",
    "explore",
    "open_data",
    "push_to_hub",
    "report",
    "search",
    "train",
]

_MODULES = {
    "adapt": "suprank.workflows",
    "compare": "suprank.experiments",
    "embed": "suprank.workflows",
    "evaluate": "suprank.workflows",
    "explore": "suprank.workflows",
    "open_data": "suprank.workflows",
    "push_to_hub": "suprank.workflows",
    "report": "suprank.workflows",
    "search": "suprank.workflows",
    "train": "suprank.training",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})
