"""Hyper-parameters at the door."""

from dataclasses import fields
from typing import TYPE_CHECKING, Any

from edgewise.data.options import check_number, check_whole_number

if TYPE_CHECKING:
    from edgewise.models.model import Model

MOST = 1 << 20  # units, epochs, rounds, heads or samples


def check_numbers(model: "Model[Any]") -> None:
    """Refuse numbers that no network can be trained with: whole ones must be at least 1."""
    for hyperparameter in fields(model):
        if hyperparameter.type is int:
            check_whole_number(hyperparameter.name, getattr(model, hyperparameter.name), 1, MOST)
    check_number("dropout", model.dropout, least=0, below=1)
    check_number("learning_rate", model.learning_rate, above=0)
    check_number("weight_decay", model.weight_decay, least=0)
