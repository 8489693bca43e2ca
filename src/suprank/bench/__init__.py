"""Benchmarks: time and memory of the losses and of the evaluation, compared with other libraries."""

from suprank.system.extras import explain_missing_extra

with explain_missing_extra(__name__):
    from suprank.bench.evaluation_benchmark import EvaluationBenchmarkRun, measure_evaluation, plan_evaluation
    from suprank.bench.evaluators import EVALUATORS, Evaluator
    from suprank.bench.loss_benchmark import LossBenchmarkRun, measure_losses, plan_losses
    from suprank.bench.loss_cases import LOSS_CASES, LossCase
    from suprank.bench.loss_workload import LossWorkload
    from suprank.bench.measurement import EvaluationMeasurement, LossMeasurement
    from suprank.bench.settings import BenchmarkSettings
    from suprank.bench.synthetic_collections import SHAPES, CollectionShape, SyntheticCollection

__all__ = [
    "EVALUATORS",
    "LOSS_CASES",
    "SHAPES",
    "BenchmarkSettings",
    "CollectionShape",
    "EvaluationBenchmarkRun",
    "EvaluationMeasurement",
    "Evaluator",
    "LossBenchmarkRun",
    "LossCase",
    "LossMeasurement",
    "LossWorkload",
    "SyntheticCollection",
    "measure_evaluation",
    "measure_losses",
    "plan_evaluation",
    "plan_losses",
]
