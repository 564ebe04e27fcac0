"""Predictions, labels and edges in tables of many parts, on disk or in an object store, read in bounded memory."""

from edgewise.tables.pair_prediction import PairTable, predict_tables
from edgewise.tables.table_evaluation import evaluate_tables

__all__ = ["PairTable", "evaluate_tables", "predict_tables"]
