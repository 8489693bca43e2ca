"""What the commands do, as Python functions.

    import suprank

    suprank.embed("resnet50", "cub.parquet", "embeddings")
    report = suprank.evaluate("embeddings")
    suprank.report("runs/happier", against="runs/smooth-ap", out="report.html")

They bring data, models, training and pages together, and print nothing: progress goes to a function of yours, and notes go to
the logger `suprank.workflows`. The command line is a thin layer on top.
"""

from suprank.workflows.adaptation import adapt
from suprank.workflows.embeddings import embed
from suprank.workflows.evaluation import evaluate
from suprank.workflows.explorers import explore
from suprank.workflows.opening import open_data
from suprank.workflows.publish import push_to_hub
from suprank.workflows.reports import report
from suprank.workflows.searches import search

__all__ = ["adapt", "embed", "evaluate", "explore", "open_data", "push_to_hub", "report", "search"]
