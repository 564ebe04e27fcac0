"""Predictions, labels and edges in tables of many parts, on disk or in an object store, read in bounded memory."""

from edgewise.tables.table_evaluation import evaluate_tables

__all__ = ["evaluate_tables"]
