"""Settling: what two annotators differ in is decided, one by one or many at once, on the branch `final`."""

from suprank.hierarchy.adjudication.beginning import Origin, begin_final, origin_of
from suprank.hierarchy.adjudication.deciding import Choice, Settling, Subject, Unsettled
from suprank.hierarchy.adjudication.decisions import Decision

__all__ = ["Choice", "Decision", "Origin", "Settling", "Subject", "Unsettled", "begin_final", "origin_of"]
