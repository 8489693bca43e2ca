"""Benchmarks: time and memory of the losses and of the evaluation, compared with other libraries."""

from bench.evaluation_benchmark import EvaluationBenchmarkRun, measure_evaluation, plan_evaluation
from bench.evaluators import EVALUATORS, Evaluator
from bench.loss_benchmark import LossBenchmarkRun, measure_losses, plan_losses
from bench.loss_cases import LOSS_CASES, LossCase
from bench.loss_workload import LossWorkload
from bench.measurement import EvaluationMeasurement, LossMeasurement
from bench.settings import BenchmarkSettings
from bench.synthetic_collections import SHAPES, CollectionShape, SyntheticCollection

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
