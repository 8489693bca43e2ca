"""Speed and memory of the losses beside their peers."""

from suprank.bench.cases import CASES, Case
from suprank.bench.losses import Settings, measurements, plan
from suprank.bench.measurement import Measurement
from suprank.bench.report import Run
from suprank.bench.workload import Workload

__all__ = ["CASES", "Case", "Measurement", "Run", "Settings", "Workload", "measurements", "plan"]
