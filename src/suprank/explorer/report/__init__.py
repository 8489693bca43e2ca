"""The static report: one HTML file that opens from disk and needs nothing else."""

from suprank.explorer.report.build import report_page

__all__ = ["report_page"]
