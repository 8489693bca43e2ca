"""Settling: what two annotators differ in is decided, one by one or many at once, on the branch `final`."""

from suprank.hierarchy.settling.beginning import Origin, begin_final, origin_of
from suprank.hierarchy.settling.deciding import Choice, Settling, Subject, Unsettled
from suprank.hierarchy.settling.decisions import Decision

__all__ = ["Choice", "Decision", "Origin", "Settling", "Subject", "Unsettled", "begin_final", "origin_of"]
