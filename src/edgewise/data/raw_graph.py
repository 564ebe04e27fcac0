"""What the files of a dataset hold, before anything is normalised."""

from typing import NamedTuple

from jaxtyping import Float, Int
from torch import Tensor


class RawGraph(NamedTuple):
    """Features, edges in one direction or both, and labels."""

    x: Float[Tensor, "nodes features"]
    edge_index: Int[Tensor, "2 edges"]
    y: Int[Tensor, " nodes"]
    is_bag_of_words: bool = True  # a feature tells whether, or how often, a word occurs
