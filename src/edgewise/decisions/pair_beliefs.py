"""The most likely labels of pairs of nodes, and the probabilities of events, under a belief."""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from edgewise.data.edges import EdgeLookup
from edgewise.decisions.events import Event
from edgewise.posterior import IndependentPosterior, MixturePosterior, PairwisePosterior, Posterior

Progress = Callable[[int, int], None]  # pairs done, pairs in all
CHUNK_ELEMENTS = 1 << 21  # 16 MiB of float64: about what fits the outer cache


class PairBeliefs(NamedTuple):
    """The most likely labels of pairs, best first, their probabilities, and those of events."""

    labels: Int[Tensor, "top 2 pairs"]
    label_probability: Float[Tensor, "top pairs"]
    event_probability: Float[Tensor, "events pairs"]
    method: Int[Tensor, " pairs"]  # places in `methods_of`


class Group(NamedTuple):
    """Pairs of a chunk whose joints come about in the same way; all of them where ``places`` is None."""

    method: int
    is_product: bool
    places: Int[Tensor, " some"] | None = None


def methods_of(posterior: Posterior) -> list[str]:
    """Name the ways in which a kind of belief comes to the joint of a pair."""
    if isinstance(posterior, IndependentPosterior):
        return ["product"]
    if isinstance(posterior, MixturePosterior):
        samples = posterior.tensors()["samples"].shape[-3]
        return [f"mixture of {samples} sample{'' if samples == 1 else 's'}"]
    if isinstance(posterior, PairwisePosterior):
        return ["belief of the edge", "product: no edge"]
    return ["joint"]


def pair_beliefs(
    posterior: Posterior,
    pairs: Int[Tensor, "2 pairs"],
    events: Sequence[Event],
    top: int = 1,
    progress: Progress | None = None,
) -> PairBeliefs:
    """Compute the beliefs about pairs of distinct nodes, a chunk at a time; they are kept on the CPU.

    Of labels that are equally likely the lower ones come first, those of the first node before those of the second.
    """
    posterior, num_pairs = posterior.detach(), pairs.shape[1]
    beliefs = PairBeliefs(
        torch.empty(top, 2, num_pairs, dtype=torch.int32),
        torch.empty(top, num_pairs, dtype=torch.float64),
        torch.empty(len(events), num_pairs, dtype=torch.float64),
        torch.empty(num_pairs, dtype=torch.int8),
    )
    lookup = EdgeLookup(posterior.edge_index, posterior.num_nodes) if isinstance(posterior, PairwisePosterior) else None
    predicted = posterior.node.argmax(-1)
    step = max(1, CHUNK_ELEMENTS // _numbers_per_pair(posterior, top))
    for lo in range(0, max(1, num_pairs), step):
        part = slice(lo, min(lo + step, num_pairs))
        chunk = pairs[:, part].to(predicted.device)
        for method, is_product, places in _groups(posterior, lookup, chunk):
            asked, here = (chunk, part) if places is None else (chunk[:, places], part.start + places.cpu())
            if is_product:
                labels, probability, of_events = _by_product(posterior, asked, events, top)
            else:
                labels, probability, of_events = _by_joint(posterior, asked, predicted[asked], events, top)
            beliefs.labels[:, :, here] = labels.cpu().int()
            beliefs.label_probability[:, here] = probability.cpu()
            beliefs.event_probability[:, here] = of_events.clamp(0.0, 1.0).cpu()
            beliefs.method[here] = method
        if progress is not None:
            progress(part.stop, num_pairs)
    return beliefs


def _numbers_per_pair(posterior: Posterior, top: int) -> int:
    """Count the numbers that are in memory at once for a pair."""
    classes = posterior.num_classes
    product = 6 * classes + min(top, classes) ** 2
    return product if isinstance(posterior, IndependentPosterior) else product + 4 * classes**2


def _groups(posterior: Posterior, lookup: EdgeLookup | None, pairs: Int[Tensor, "2 pairs"]) -> Iterator[Group]:
    """Group the pairs by how their joints come about: a field has none where there is no edge."""
    if lookup is None:
        yield Group(0, isinstance(posterior, IndependentPosterior))
        return
    edge = lookup.find(pairs).edge
    yield Group(0, False, (edge >= 0).nonzero().squeeze(1))
    yield Group(1, True, (edge < 0).nonzero().squeeze(1))


def _by_product(
    posterior: Posterior, pairs: Int[Tensor, "2 pairs"], events: Sequence[Event], top: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Use closed forms: no joint is made, and of the labels of a node only the best are multiplied."""
    p, q = (_normalize(posterior.node[nodes].double()) for nodes in pairs)
    kept = [_best_labels(row, min(top, posterior.num_classes)) for row in (p, q)]
    products = p.gather(1, kept[0])[:, :, None] * q.gather(1, kept[1])[:, None, :]
    places, probability = _largest(products.flatten(1), top)
    width = kept[0].shape[1]
    labels = torch.stack([kept[0].gather(1, places // width), kept[1].gather(1, places % width)])
    of_events = [event.product_probability(p, q) for event in events]
    return labels.permute(2, 0, 1), probability.T, _stacked(of_events, p)


def _by_joint(
    posterior: Posterior,
    pairs: Int[Tensor, "2 pairs"],
    predicted: Int[Tensor, "2 pairs"],
    events: Sequence[Event],
    top: int,
) -> tuple[Tensor, Tensor, Tensor]:
    flat = _normalize(posterior.marginal(pairs).flatten(1).double())
    places, probability = _largest(flat, top)
    labels = torch.stack([places // posterior.num_classes, places % posterior.num_classes])
    joint = flat.view(-1, posterior.num_classes, posterior.num_classes)
    of_events = [event.joint_probability(joint, predicted) for event in events]
    return labels.permute(2, 0, 1), probability.T, _stacked(of_events, flat)


def _normalize(p: Float[Tensor, "rows entries"]) -> Float[Tensor, "rows entries"]:
    """Divide rows by their sums, so that an event and its opposite sum to 1 for rounded probabilities too."""
    return p / p.sum(1, keepdim=True)


def _best_labels(p: Float[Tensor, "rows classes"], count: int) -> Int[Tensor, "rows best"]:
    """Find the most likely labels of each row, in the order of the labels."""
    if count == 1:
        return p.argmax(1, keepdim=True)
    return p.sort(dim=1, descending=True, stable=True).indices[:, :count].sort(1).values


def _largest(
    flat: Float[Tensor, "rows entries"], count: int
) -> tuple[Int[Tensor, "rows largest"], Float[Tensor, "rows largest"]]:
    """Find the largest entries of each row; the first of equal ones comes first."""
    if count == 1:
        places = flat.argmax(1, keepdim=True)
    else:
        places = flat.sort(dim=1, descending=True, stable=True).indices[:, :count]
    return places, flat.gather(1, places)


def _stacked(
    of_events: Sequence[Float[Tensor, " rows"]], like: Float[Tensor, "rows _"]
) -> Float[Tensor, "events rows"]:
    return torch.stack([*of_events]) if of_events else like.new_empty(0, len(like))
