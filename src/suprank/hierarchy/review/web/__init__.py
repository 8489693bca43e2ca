"""The page on which annotators review: one for each branch, under the annotator's name."""

from suprank.hierarchy.review.web.app import create_app

__all__ = ["create_app"]
