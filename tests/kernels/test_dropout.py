"""Counter-based dropout: compiled loops and tensors against splitmix64, and statistics of the masks."""

import math

import pytest
import torch

from edgewise.kernels.dropout import LEVELS, NO_DROPOUT, Dropout, apply_dropout, keep_compiled, keep_tensors
from helpers.small_graphs import generator

CPU = torch.device("cpu")
RATES = [0.1, 0.3, 0.5, 0.8, 0.99]
# Published outputs of splitmix64 for the seed 1234567 (rosettacode.org/wiki/Pseudo-random_numbers).
SEED = 1234567
WORDS = [
    6457827717110365317,
    3203168211198807973,
    9817491932198370423,
    4593380528125082431,
    16408922859458223821,
]


def splitmix64(seed, num):
    """Run the published algorithm, with integers modulo 2^64."""
    words, state = [], seed
    for _ in range(num):
        state = (state + 0x9E3779B97F4A7C15) % 2**64
        z = state
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
        words.append(z ^ (z >> 31))
    return words


def test_masks_use_the_words_of_splitmix64():
    """The threshold at which an entry is dropped reveals its 16 bits."""
    assert splitmix64(SEED, 5) == WORDS
    levels = [word >> 16 * lane & 0xFFFF for word in WORDS for lane in range(4)]
    for index, level in enumerate(levels):
        for keep in (keep_compiled, keep_tensors):
            assert keep(20, SEED, level, CPU)[index] == 1 and keep(20, SEED, level + 1, CPU)[index] == 0


def test_initial_states_are_words_of_the_key():
    assert [Dropout(0.5, SEED).initial_state(draw) for draw in range(5)] == WORDS


@pytest.mark.parametrize("rate", RATES)
def test_compiled_masks_equal_tensors_and_reference(rate):
    for key in (0, 1, 2**63 - 1, 2**64 - 1):
        for num in (0, 1, 2, 3, 4, 5, 63, 64, 1001):
            dropout = Dropout(rate, key)
            got = dropout.keep(num, 3, CPU)
            assert got.dtype == torch.uint8
            assert torch.equal(got, keep_tensors(num, dropout.initial_state(3), dropout.dropped_levels, CPU))
            words = splitmix64(splitmix64(key, 4)[-1], num)
            reference = [(words[k // 4] >> 16 * (k % 4) & 0xFFFF) >= round(rate * 65536) for k in range(num)]
            assert got.tolist() == reference


def test_shorter_mask_is_a_prefix_of_a_longer_mask():
    long = Dropout(0.4, 7).keep(1000, 0, CPU)
    assert torch.equal(Dropout(0.4, 7).keep(501, 0, CPU), long[:501])


@pytest.mark.parametrize("rate", RATES)
def test_fraction_of_kept_entries(rate):
    num = 1_000_000
    std = math.sqrt(num * rate * (1 - rate))
    for key in range(3):
        count = int(Dropout(rate, key).keep(num, key, CPU).sum())
        assert abs(count - num * (1 - rate)) < 4 * std + num / LEVELS  # the rate is rounded to 16 bits


def test_masks_of_draws_keys_and_shifts_are_uncorrelated():
    num = 200_000
    masks = [Dropout(0.5, key).keep(num, draw, CPU) for key in (1, 2, 2**40) for draw in (0, 1, 2, 100)]
    masks += [masks[0].roll(shift) for shift in (1, 2, 3, 4, 8, 64)]  # shifted copies of a mask
    correlations = torch.corrcoef(torch.stack(masks).double()).triu(1)
    assert float(correlations.abs().max()) < 5 / math.sqrt(num)


@pytest.mark.parametrize("rate", [*RATES, 1 / 3, 1e-6, 0.9999, 1 - 1e-9])
def test_scale_is_the_inverse_of_the_probability_to_keep(rate):
    """The probability is 1 - dropped_levels / 2^16, with the rate rounded to 16 bits."""
    dropout = Dropout(rate, 0)
    assert dropout.dropped_levels < LEVELS  # the probability to keep is positive
    assert abs(dropout.dropped_levels / LEVELS - rate) <= 1 / LEVELS
    assert (1 - dropout.dropped_levels / LEVELS) * dropout.scale == pytest.approx(1, rel=1e-12)


def test_scale_of_one_half_is_two():
    assert Dropout(0.5, 0).scale == 2.0
    x = torch.full((1000,), 3.0)
    assert set(apply_dropout(x, Dropout(0.5, 0), 0).tolist()) == {0.0, 6.0}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("rate", [0.3, 0.5])
@pytest.mark.parametrize("shape", [(), (7,), (5, 7), (3, 2, 9), (0, 4)])
def test_apply_dropout_multiplies_by_mask_and_scale(dtype, rate, shape):
    x, dropout = torch.randn(shape, generator=generator(1), dtype=dtype), Dropout(rate, 5)
    keep = dropout.keep(x.numel(), 4, CPU).view(shape).bool()
    expected = torch.where(keep, x * dropout.scale, 0.0)
    atol = {torch.float32: 1e-6, torch.float64: 1e-14}[dtype]
    torch.testing.assert_close(apply_dropout(x, dropout, 4), expected, rtol=atol, atol=atol)


def test_gradients_equal_finite_differences():
    x = torch.randn(6, 5, generator=generator(2), dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: apply_dropout(x, Dropout(0.5, 1), 0), x)


def test_rate_zero_returns_the_input():
    x = torch.randn(6, 5, generator=generator(4))
    for dropout in (Dropout(0.0, 1), NO_DROPOUT):
        assert apply_dropout(x, dropout, 0) is x
        assert dropout.keep(100, 0, CPU).all() and dropout.scale == 1.0


@pytest.mark.parametrize("rate", [0.2, 0.5, 0.9])
def test_mean_over_draws_is_the_input(rate):
    draws, dropout = 4000, Dropout(rate, 9)
    x = torch.linspace(-2, 2, 50, dtype=torch.float64)
    mean = sum(apply_dropout(x, dropout, draw) for draw in range(draws)) / draws
    error = x.abs() * math.sqrt(rate / (1 - rate) / draws)
    assert ((mean - x).abs() <= 4 * error + 1e-12).all()
