"""Speed and memory of the losses and of the evaluation beside their peers."""

from suprank.system.extras import explain_missing_extra

with explain_missing_extra(__name__):
    from suprank.bench.cases import CASES, Case
    from suprank.bench.evaluation import EvaluationRun
    from suprank.bench.evaluators import EVALUATORS, Evaluator
    from suprank.bench.losses import measurements, plan
    from suprank.bench.measurement import Evaluated, Measurement
    from suprank.bench.report import Run
    from suprank.bench.retrieval import SHAPES, Retrieval, Shape
    from suprank.bench.settings import Settings
    from suprank.bench.workload import Workload

__all__ = [
    "CASES",
    "EVALUATORS",
    "SHAPES",
    "Case",
    "Evaluated",
    "EvaluationRun",
    "Evaluator",
    "Measurement",
    "Retrieval",
    "Run",
    "Settings",
    "Shape",
    "Workload",
    "measurements",
    "plan",
]
