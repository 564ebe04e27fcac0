"""Hyper-parameters at the door."""

import math
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import numpy as np

from edgewise.data.arrays import check_whole_number

if TYPE_CHECKING:
    from edgewise.models.model import Model

MOST = 1 << 20  # units, epochs, rounds, heads or samples


def check_numbers(model: "Model[Any]") -> None:
    """Refuse numbers that no network can be trained with: whole ones must be at least 1."""
    for hyperparameter in fields(model):
        if hyperparameter.type is int:
            check_whole_number(hyperparameter.name, getattr(model, hyperparameter.name), 1, MOST)
    _check_number("dropout", model.dropout, 0.0, 1.0, "from 0 to below 1")
    _check_number("learning_rate", model.learning_rate, math.ulp(0.0), math.inf, "above 0")
    _check_number("weight_decay", model.weight_decay, 0.0, math.inf, "of at least 0")


def _check_number(name: str, value: float, low: float, below: float, words: str) -> None:
    number = isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
    if not number or not low <= value < below:
        raise ValueError(f"Expected {name} to be a number {words}, but got {value!r}.")
