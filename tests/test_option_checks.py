"""Checks of options: which numbers pass, and what is said of those that do not."""

import math
import re
from fractions import Fraction

import numpy as np
import pytest
import torch

from edgewise.validation import check_number, check_option, check_whole_number


@pytest.mark.parametrize("value", [1, 0.5, np.float64(0.5), np.float32(0.5), np.int8(1), np.uint64(1), 5e-324])
def test_numbers_of_python_and_numpy_pass(value):
    check_number("share", value, above=0, most=1)


@pytest.mark.parametrize(
    "value",
    [
        *(math.nan, math.inf, -math.inf, np.float32("nan"), True, np.True_, None, "0.5", 1j, Fraction(1, 2), [0.5]),
        *(np.array(0.5), torch.tensor(0.5)),
    ],
)
def test_nothing_else_does(value):
    with pytest.raises(ValueError, match=re.escape(f"Expected share to be a number below 2, but got {value!r}.")):
        check_number("share", value, below=2)


@pytest.mark.parametrize(
    ("limits", "inside", "outside", "words"),
    [
        ({"above": 0}, (1e-9, 1e300), (0, -1, math.inf), "above 0"),
        ({"least": 0}, (0, -0.0, 1e300), (-1e-9, math.inf), "of at least 0"),
        ({"least": 0, "below": 1}, (0, 0.999), (-1e-9, 1), "of at least 0 and below 1"),
        ({"above": 0, "below": 1}, (1e-9, 0.999), (0, 1), "above 0 and below 1"),
        ({"above": 0, "most": 1}, (1e-9, 1), (0, 1.001), "above 0 and at most 1"),
        ({"least": -2.5, "most": 50}, (-2.5, 50), (-2.6, 50.1), "of at least -2.5 and at most 50"),
    ],
)
def test_limits_belong_to_the_range_or_not(limits, inside, outside, words):
    for value in inside:
        check_number("noise", value, **limits)
    for value in outside:
        with pytest.raises(ValueError, match=re.escape(f"Expected noise to be a number {words}, but got {value!r}.")):
            check_number("noise", value, **limits)


def test_a_way_out_is_said_last():
    with pytest.raises(ValueError, match=r"^Expected fdr to be a number at most 1, but got 5. Divide by 100.$"):
        check_number("fdr", 5, most=1, hint="Divide by 100.")


@pytest.mark.parametrize("value", [0, 4, 1.0, True, np.float64(2), "2", None])
def test_what_is_no_whole_number_within_limits_is_refused(value):
    words = f"Expected folds to be a whole number from 1 to 3, but got {value!r}."
    with pytest.raises(ValueError, match=f"^{re.escape(words)}$"):
        check_whole_number("folds", value, 1, 3)


@pytest.mark.parametrize("value", [1, 3, np.int64(2), np.uint8(3)])
def test_whole_numbers_pass(value):
    check_whole_number("folds", value, 1, 3)


def test_an_unknown_option_is_answered_by_the_known_ones():
    check_option("kind", "width", ("width", "mass"))
    with pytest.raises(ValueError, match=r"^Expected kind to be one of width, mass, but got 'depth'\.$"):
        check_option("kind", "depth", ("width", "mass"))
