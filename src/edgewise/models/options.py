"""Hyper-parameters at the door."""

import math

import numpy as np

from edgewise.data.arrays import check_whole_number

MANY = 1 << 20


def check_training(*, hidden: int, dropout: float, learning_rate: float, weight_decay: float) -> None:
    """Refuse what no network can be trained with."""
    check_whole_number("hidden", hidden, 1, MANY)
    check_number("dropout", dropout, 0.0, 1.0, "from 0 to below 1")
    check_number("learning_rate", learning_rate, math.ulp(0.0), math.inf, "above 0")
    check_number("weight_decay", weight_decay, 0.0, math.inf, "of at least 0")


def check_counts(**counts: int) -> None:
    """Refuse numbers of epochs, rounds, heads or samples that are not whole or below 1."""
    for name, count in counts.items():
        check_whole_number(name, count, 1, MANY)


def check_number(name: str, value: float, low: float, below: float, words: str) -> None:
    """Refuse what is no number within limits."""
    number = isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
    if not number or not low <= value < below:
        raise ValueError(f"Expected {name} to be a number {words}, but got {value!r}.")
