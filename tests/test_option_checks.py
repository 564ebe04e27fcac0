"""Validation of numeric options and choices."""

import math
import re
from fractions import Fraction

import numpy as np
import pytest
import torch

from edgewise.validation import check_number, check_option, check_whole_number


@pytest.mark.parametrize("value", [1, 0.5, np.float64(0.5), np.float32(0.5), np.int8(1), np.uint64(1), 5e-324])
def test_python_and_numpy_numbers_pass(value):
    check_number("fraction", value, above=0, most=1)


@pytest.mark.parametrize(
    "value",
    [
        *(math.nan, math.inf, -math.inf, np.float32("nan"), True, np.True_, None, "0.5", 1j, Fraction(1, 2), [0.5]),
        *(np.array(0.5), torch.tensor(0.5)),
    ],
)
def test_other_values_raise(value):
    with pytest.raises(ValueError, match=re.escape(f"Expected fraction to be a number below 2, but got {value!r}.")):
        check_number("fraction", value, below=2)


@pytest.mark.parametrize(
    ("limits", "inside", "outside", "text"),
    [
        ({"above": 0}, (1e-9, 1e300), (0, -1, math.inf), "above 0"),
        ({"least": 0}, (0, -0.0, 1e300), (-1e-9, math.inf), "of at least 0"),
        ({"least": 0, "below": 1}, (0, 0.999), (-1e-9, 1), "of at least 0 and below 1"),
        ({"above": 0, "below": 1}, (1e-9, 0.999), (0, 1), "above 0 and below 1"),
        ({"above": 0, "most": 1}, (1e-9, 1), (0, 1.001), "above 0 and at most 1"),
        ({"least": -2.5, "most": 50}, (-2.5, 50), (-2.6, 50.1), "of at least -2.5 and at most 50"),
    ],
)
def test_open_and_closed_limits(limits, inside, outside, text):
    for value in inside:
        check_number("noise", value, **limits)
    for value in outside:
        with pytest.raises(ValueError, match=re.escape(f"Expected noise to be a number {text}, but got {value!r}.")):
            check_number("noise", value, **limits)


def test_hint_follows_the_message():
    with pytest.raises(ValueError, match=r"^Expected fdr to be a number at most 1, but got 5. Divide by 100.$"):
        check_number("fdr", 5, most=1, hint="Divide by 100.")


@pytest.mark.parametrize("value", [0, 4, 1.0, True, np.float64(2), "2", None])
def test_value_out_of_range_or_not_an_integer_raises(value):
    message = f"Expected folds to be a whole number from 1 to 3, but got {value!r}."
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        check_whole_number("folds", value, 1, 3)


@pytest.mark.parametrize("value", [1, 3, np.int64(2), np.uint8(3)])
def test_integers_within_limits_pass(value):
    check_whole_number("folds", value, 1, 3)


def test_unknown_choice_raises_with_the_valid_choices_and_the_closest():
    check_option("kind", "width", ("width", "mass"))
    with pytest.raises(ValueError, match=r"^Expected kind to be one of width, mass, but got 'depth'\.$"):
        check_option("kind", "depth", ("width", "mass"))
    with pytest.raises(ValueError, match=r"but got 'Widht'\. Did you mean 'width'\?$"):
        check_option("kind", "Widht", ("width", "mass"))
