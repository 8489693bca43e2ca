"""From the types that were found to labels: rules of the recipe, applied to every item, each removal with its reason."""

from suprank.hierarchy.cleaning.report import Cleaned, write_list
from suprank.hierarchy.cleaning.run import clean

__all__ = ["Cleaned", "clean", "write_list"]
