"""The web pages of a review. Each annotator has their own, under their name."""

from suprank.hierarchy.review.web.app import create_app

__all__ = ["create_app"]
