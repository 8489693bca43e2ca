"""Metrics, curves, examples and maps of retrieval data, as numbers; `explorer.report` draws them."""
