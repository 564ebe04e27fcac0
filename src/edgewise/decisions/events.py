"""Events of two labels, such as "same"; what a belief says of pairs: likely labels, probabilities of events."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from edgewise.data.edges import EdgeLookup
from edgewise.posterior import IndependentPosterior, MixturePosterior, PairwisePosterior, Posterior
from edgewise.validation import ArrayLike, as_tensor

# An event by name, or a name with the pairs of labels (classes, classes) that belong to it.
EventLike = str | tuple[str, ArrayLike]

PLAIN_EVENTS = ("same", "different", "both_correct")
CLASS_EVENTS = ("both", "any", "only_one")


@dataclass(frozen=True, eq=False)
class Event:
    """A set of pairs of labels; ``pairs`` is None where it depends on what is predicted for the nodes."""

    name: str
    kind: str
    label: int = -1
    pairs: Bool[Tensor, "classes classes"] | None = None

    @property
    def is_symmetric(self) -> bool:
        """Whether it happens to a pair in both directions or in none."""
        return self.pairs is None or bool((self.pairs == self.pairs.T).all())

    def product_probability(
        self, p: Float[Tensor, "pairs classes"], q: Float[Tensor, "pairs classes"]
    ) -> Float[Tensor, " pairs"]:
        """Compute P(event) of independent nodes; no joint is made."""
        if self.kind == "same":
            return (p * q).sum(1)
        if self.kind == "different":
            return (p * (1.0 - q)).sum(1)
        if self.kind == "both_correct":
            return p.amax(1) * q.amax(1)
        if self.kind in CLASS_EVENTS:
            return _class_probability(self.kind, p[:, self.label], q[:, self.label])
        return ((p @ self.table(p)) * q).sum(1)

    def joint_probability(
        self, joint: Float[Tensor, "pairs classes classes"], predicted: Int[Tensor, "2 pairs"]
    ) -> Float[Tensor, " pairs"]:
        """Compute P(event), the sum over its pairs of labels."""
        if self.pairs is None:
            return joint[torch.arange(len(joint), device=joint.device), predicted[0], predicted[1]]
        return joint.flatten(1) @ self.table(joint).flatten()

    def happened(self, labels: Int[Tensor, "2 pairs"], predicted: Int[Tensor, "2 pairs"]) -> Bool[Tensor, " pairs"]:
        """Tell where true labels made the event happen."""
        if self.pairs is None:
            return (labels == predicted).all(0)
        return self.pairs.to(labels.device)[labels[0], labels[1]]

    def table(self, like: Tensor) -> Float[Tensor, "classes classes"]:
        """Return the pairs of labels as 0 and 1, of the dtype and on the device of a tensor."""
        if self.pairs is None:
            raise ValueError(f"Expected an event that is a set of labels, but {self.name} depends on predictions.")
        return self.pairs.to(like)


BOTH_CORRECT = Event("both_correct", "both_correct")


def _class_probability(kind: str, p: Float[Tensor, " pairs"], q: Float[Tensor, " pairs"]) -> Float[Tensor, " pairs"]:
    if kind == "both":
        return p * q
    if kind == "any":
        return p + (1.0 - p) * q
    return p * (1.0 - q) + (1.0 - p) * q


def check_events(events: Iterable[EventLike], num_classes: int, classes: Sequence[str]) -> list[Event]:
    """Read events: "same", "different", "both_correct", "both=A", "any=A", "only_one=A", or (name, pairs of labels).

    >>> [event.name for event in check_events(["same", "any=1"], 2, ["0", "1"])]
    ['same', 'any=1']
    """
    if isinstance(events, str):
        raise ValueError(f"Expected a list of events, but got {events!r} alone. Pass events=({events!r},).")
    read = [_event(event, num_classes, classes) for event in events]
    names = [event.name for event in read]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"Expected each event once, but {twice!r} is there twice. Leave one out, or rename it.")
    return read


def _event(event: EventLike, num_classes: int, classes: Sequence[str]) -> Event:
    if isinstance(event, str):
        return _named_event(event, num_classes, classes)
    if not isinstance(event, tuple) or len(event) != 2 or not isinstance(event[0], str):
        raise ValueError(f"Expected an event's name, or (name, pairs of labels), but got {event!r}.")
    name, pairs = event[0], as_tensor(event[1], f"the pairs of {event[0]}")
    if name.startswith("labels"):
        raise ValueError(f"Expected an event of another name, but {name!r} is what the most likely labels are called.")
    if pairs.dtype != torch.bool or pairs.shape != (num_classes, num_classes):
        raise ValueError(
            f"Expected the event {name!r} to be booleans of shape {(num_classes, num_classes)}, True where labels "
            f"(start, end) belong to it, but got {pairs.dtype} of shape {tuple(pairs.shape)}."
        )
    return Event(name, "pairs", pairs=pairs)


def _named_event(name: str, num_classes: int, classes: Sequence[str]) -> Event:
    equal = torch.eye(num_classes, dtype=torch.bool)
    if name in PLAIN_EVENTS:
        return Event(name, name, pairs={"same": equal, "different": ~equal}.get(name))
    kind, sign, label_name = name.partition("=")
    if kind not in CLASS_EVENTS or not sign:
        known = ", ".join([*PLAIN_EVENTS, *(f"{kind}=CLASS" for kind in CLASS_EVENTS)])
        raise ValueError(f"Expected an event that is one of {known}, or (name, pairs of labels), but got {name!r}.")
    if label_name not in classes:
        few = ", ".join(classes[:6]) + (", …" if len(classes) > 6 else "")
        raise ValueError(f"Expected a class of {few} in the event {name!r}, but there is no class {label_name!r}.")
    label = classes.index(label_name)
    start, end = equal[label][:, None], equal[label][None, :]
    pairs = {"both": start & end, "any": start | end, "only_one": start ^ end}[kind]
    return Event(name, kind, label, pairs)


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
