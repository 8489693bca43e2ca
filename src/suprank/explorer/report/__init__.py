"""The report: one self-contained HTML file."""

from suprank.explorer.report.build import report_page

__all__ = ["report_page"]
