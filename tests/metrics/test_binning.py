"""Confidence bins of equal width and equal mass."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from edgewise.metrics.scoring_input import Binning
from edgewise.metrics.sums import bin_boundaries, bin_index
from helpers.reference import loops


@given(
    st.lists(st.floats(0, 1, width=32), max_size=20),
    st.integers(1, 100),
    st.sampled_from(["right", "left"]),
)
def test_float32_confidences_are_binned_exactly(confidences, n_bins, closed):
    binning = Binning(n_bins, closed=closed)
    tensor = torch.tensor(confidences, dtype=torch.float32)
    expected = [loops.bin_of(c, n_bins, closed) for c in confidences]
    assert bin_index(tensor, binning, bin_boundaries(binning, tensor)).tolist() == expected


def test_boundaries_are_in_the_closed_side_of_bins():
    confidence = torch.tensor([0.0, 0.25, 0.5, 0.75, 1.0, 1.0000001])
    right, left = Binning(4), Binning(4, closed="left")
    assert bin_index(confidence, right, bin_boundaries(right, confidence)).tolist() == [0, 0, 1, 2, 3, 3]
    assert bin_index(confidence, left, bin_boundaries(left, confidence)).tolist() == [0, 1, 2, 3, 3, 3]


@given(st.integers(1, 20), st.integers(1, 200), st.integers(0, 99), st.sampled_from(["right", "left"]))
def test_mass_bins_without_ties_have_equal_counts(n_bins, n, seed, closed):
    confidence = torch.from_numpy(np.random.default_rng(seed).permutation(n) / n)
    binning = Binning(n_bins, "mass", closed)
    bins = bin_index(confidence, binning, bin_boundaries(binning, confidence))
    counts = torch.bincount(bins, minlength=n_bins)
    assert len(counts) == n_bins
    assert counts.max() - counts.min() <= 1
    assert (bins[confidence.argsort()].diff() >= 0).all()


@pytest.mark.parametrize("closed", ["right", "left"])
def test_ties_are_in_the_same_bin_in_any_order(closed):
    confidence = torch.tensor([0.5, 0.9, 0.5, 0.5, 0.2, 0.5, 0.9, 0.9])
    binning = Binning(4, "mass", closed)
    bins = bin_index(confidence, binning, bin_boundaries(binning, confidence))
    for value in confidence.unique():
        assert bins[confidence == value].unique().numel() == 1
    order = torch.randperm(len(confidence), generator=torch.Generator().manual_seed(0))
    shuffled = confidence[order]
    assert torch.equal(bin_index(shuffled, binning, bin_boundaries(binning, shuffled)), bins[order])


def test_mass_bins_of_six_confidences():
    confidence = torch.tensor([0.1, 0.2, 0.3, 0.4, 0.5, 0.6], dtype=torch.float64)
    binning = Binning(3, "mass")
    assert bin_boundaries(binning, confidence).tolist() == [0.0, 0.2, 0.4, 1.0]
    assert bin_index(confidence, binning, bin_boundaries(binning, confidence)).tolist() == [0, 0, 1, 1, 2, 2]
