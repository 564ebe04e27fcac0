"""Events about two labels, such as "same", and the probabilities of events and label pairs under a posterior."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from edgewise.data.edges import EdgeLookup
from edgewise.posterior import IndependentPosterior, MixturePosterior, PairwisePosterior, Posterior
from edgewise.suggestions import did_you_mean
from edgewise.validation import ArrayLike, as_tensor

# A built-in event by its name, or (name, booleans (classes, classes)) that are True for the label pairs in the event.
EventLike = str | tuple[str, ArrayLike]

PLAIN_EVENTS = ("same", "different", "both_correct")
CLASS_EVENTS = ("both", "any", "only_one")


@dataclass(frozen=True, eq=False)
class Event:
    """A set of label pairs. ``pairs`` is None for "both_correct", which depends on the predicted labels."""

    name: str
    kind: str
    label: int = -1
    pairs: Bool[Tensor, "classes classes"] | None = None

    @property
    def is_symmetric(self) -> bool:
        """Whether (k, l) is in the event exactly if (l, k) is."""
        return self.pairs is None or bool((self.pairs == self.pairs.T).all())

    def product_probability(
        self, p: Float[Tensor, "pairs classes"], q: Float[Tensor, "pairs classes"]
    ) -> Float[Tensor, " pairs"]:
        """Compute P(event) for independent nodes in closed form, without the joint."""
        if self.kind == "same":
            return (p * q).sum(1)
        if self.kind == "different":
            return (p * (1.0 - q)).sum(1)
        if self.kind == "both_correct":
            return p.amax(1) * q.amax(1)
        if self.kind in CLASS_EVENTS:
            return _class_probability(self.kind, p[:, self.label], q[:, self.label])
        # Class by class, because a matrix product rounds differently for another number of rows.
        p_event = torch.zeros_like(q)  # for each label of the second node
        for k, row in enumerate(self.table(p)):
            p_event.addcmul_(p[:, k : k + 1], row)
        return (p_event * q).sum(1)

    def joint_probability(
        self, joint: Float[Tensor, "pairs classes classes"], predicted: Int[Tensor, "2 pairs"]
    ) -> Float[Tensor, " pairs"]:
        """Compute P(event), the sum of the joint over the label pairs in the event."""
        if self.pairs is None:
            return joint[torch.arange(len(joint), device=joint.device), predicted[0], predicted[1]]
        return joint.flatten(1) @ self.table(joint).flatten()

    def outcomes(self, labels: Int[Tensor, "2 pairs"], predicted: Int[Tensor, "2 pairs"]) -> Bool[Tensor, " pairs"]:
        """Return whether the event occurred for each pair of true labels."""
        if self.pairs is None:
            return (labels == predicted).all(0)
        return self.pairs.to(labels.device)[labels[0], labels[1]]

    def table(self, like: Tensor) -> Float[Tensor, "classes classes"]:
        """Return ``pairs`` as 0 and 1, with the dtype and device of ``like``."""
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
    """Parse events: "same", "different", "both_correct", "both=A", "any=A", "only_one=A", or (name, label pairs).

    >>> [event.name for event in check_events(["same", "any=1"], 2, ["0", "1"])]
    ['same', 'any=1']
    """
    if isinstance(events, str):
        raise ValueError(f"Expected a list of events, but got {events!r} alone. Pass events=({events!r},).")
    parsed = [_event(event, num_classes, classes) for event in events]
    names = [event.name for event in parsed]
    if len(set(names)) < len(names):
        duplicate = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"Expected each event once, but got {duplicate!r} twice. Remove or rename one.")
    return parsed


def _event(event: EventLike, num_classes: int, classes: Sequence[str]) -> Event:
    if isinstance(event, str):
        return _named_event(event, num_classes, classes)
    if not isinstance(event, tuple) or len(event) != 2 or not isinstance(event[0], str):
        raise ValueError(f"Expected the name of an event, or (name, label pairs), but got {event!r}.")
    name, pairs = event[0], as_tensor(event[1], f"the pairs of {event[0]}")
    if name.startswith("labels"):
        raise ValueError(
            f"Expected an event name that does not start with 'labels', but got {name!r}. Rename it: the column "
            "P(labels) holds the most likely labels."
        )
    if pairs.dtype != torch.bool or pairs.shape != (num_classes, num_classes):
        raise ValueError(
            f"Expected the event {name!r} to be booleans of shape {(num_classes, num_classes)}, but got {pairs.dtype} "
            f"of shape {tuple(pairs.shape)}. Pass True where labels (start, end) belong to the event."
        )
    return Event(name, "pairs", pairs=pairs)


def _named_event(name: str, num_classes: int, classes: Sequence[str]) -> Event:
    equal = torch.eye(num_classes, dtype=torch.bool)
    if name in PLAIN_EVENTS:
        return Event(name, name, pairs={"same": equal, "different": ~equal}.get(name))
    kind, sign, label_name = name.partition("=")
    if kind not in CLASS_EVENTS or not sign:
        names = ", ".join([*PLAIN_EVENTS, *(f"{kind}=CLASS" for kind in CLASS_EVENTS)])
        corrections = [*PLAIN_EVENTS, *(f"{kind}={label_name or 'CLASS'}" for kind in CLASS_EVENTS)]
        raise ValueError(
            f"Expected an event that is one of {names}, or (name, label pairs), but got {name!r}."
            f"{did_you_mean(name, corrections)}"
        )
    if label_name not in classes:
        names = ", ".join(classes[:6]) + (", …" if len(classes) > 6 else "")
        hint = did_you_mean(label_name, classes)
        raise ValueError(f"Expected a class out of {names} in the event {name!r}, but got {label_name!r}.{hint}")
    label = classes.index(label_name)
    start, end = equal[label][:, None], equal[label][None, :]
    pairs = {"both": start & end, "any": start | end, "only_one": start ^ end}[kind]
    return Event(name, kind, label, pairs)


Progress = Callable[[int, int], None]  # (finished pairs, all pairs)
CHUNK_ELEMENTS = 1 << 21  # 16 MiB of float64, to fit the last-level cache


class PairBeliefs(NamedTuple):
    """The most likely labels of pairs, most likely first, their probabilities, and the probabilities of events."""

    labels: Int[Tensor, "top 2 pairs"]
    label_probability: Float[Tensor, "top pairs"]
    event_probability: Float[Tensor, "events pairs"]
    method: Int[Tensor, " pairs"]  # indices into `joint_methods`


class Group(NamedTuple):
    """The pairs of a chunk whose joints are computed by one method. ``places`` None means all of them."""

    method: int
    is_product: bool
    places: Int[Tensor, " some"] | None = None


def joint_methods(posterior: Posterior, clamp: bool) -> list[str]:
    """Return the names of the methods by which a posterior computes the joint of a pair."""
    if isinstance(posterior, IndependentPosterior):
        return ["product"]
    if isinstance(posterior, MixturePosterior):
        samples = posterior.tensors()["samples"].shape[-3]
        return [f"mixture of {samples} sample{'' if samples == 1 else 's'}"]
    if isinstance(posterior, PairwisePosterior):
        return ["belief of the edge", "clamping" if clamp else "product: no edge"]
    return ["joint"]


def pair_beliefs(
    posterior: Posterior,
    pairs: Int[Tensor, "2 pairs"],
    events: Sequence[Event],
    top: int = 1,
    progress: Progress | None = None,
    *,
    clamp: bool = False,
) -> PairBeliefs:
    """Compute label and event probabilities for pairs of distinct nodes in chunks, and collect them on the CPU.

    Ties between label pairs are broken by the lower label of the first node, then by that of the second. With
    ``clamp``, pairs that are not edges of a pairwise posterior come last, because they share clamped nodes.
    """
    posterior, num_pairs = posterior.detach(), pairs.shape[1]
    beliefs = PairBeliefs(
        torch.empty(top, 2, num_pairs, dtype=torch.int32),
        torch.empty(top, num_pairs, dtype=torch.float64),
        torch.empty(len(events), num_pairs, dtype=torch.float64),
        torch.empty(num_pairs, dtype=torch.int8),
    )
    finished = 0
    for rows, method, prediction in _predictions(posterior, pairs, events, top, clamp):
        labels, label_probability, event_probability = prediction
        beliefs.labels[:, :, rows] = labels.cpu().int()
        beliefs.label_probability[:, rows] = label_probability.cpu()
        beliefs.event_probability[:, rows] = event_probability.clamp(0.0, 1.0).cpu()
        beliefs.method[rows] = method
        finished += labels.shape[-1]
        if progress is not None:
            progress(finished, num_pairs)
    return beliefs


Rows = Int[Tensor, " some"] | slice
Prediction = tuple[Tensor, Tensor, Tensor]  # labels (top, 2, pairs), their probability, and that of the events


def _predictions(
    posterior: Posterior, pairs: Int[Tensor, "2 pairs"], events: Sequence[Event], top: int, clamp: bool
) -> Iterator[tuple[Rows, int, Prediction]]:
    """Yield the rows of some pairs, the method of their joints, and their predictions."""
    lookup = EdgeLookup(posterior.edge_index, posterior.num_nodes) if isinstance(posterior, PairwisePosterior) else None
    predicted, num_pairs = posterior.node.argmax(-1), pairs.shape[1]
    no_edge: list[Tensor] = []
    step = max(1, CHUNK_ELEMENTS // _numbers_per_pair(posterior, top))
    for lo in range(0, max(1, num_pairs), step):
        part = slice(lo, min(lo + step, num_pairs))
        chunk = pairs[:, part].to(predicted.device)
        for method, is_product, places in _groups(posterior, lookup, chunk):
            if places is not None and is_product and clamp:
                no_edge.append(lo + places)
                continue
            group, rows = (chunk, part) if places is None else (chunk[:, places], lo + places.cpu())
            if is_product:
                yield rows, method, _predict_by_product(posterior, group, events, top)
            else:
                yield rows, method, _predict_by_joint(posterior.marginal(group), predicted[group], events, top)
    if no_edge and isinstance(posterior, PairwisePosterior):
        rest = torch.cat(no_edge)
        ends = pairs.to(predicted.device)[:, rest]
        for places, joint in posterior.clamped_joints(ends):
            yield rest[places].cpu(), 1, _predict_by_joint(joint, predicted[ends[:, places]], events, top)


def _numbers_per_pair(posterior: Posterior, top: int) -> int:
    """Return how many floats are in memory at once per pair."""
    classes = posterior.num_classes
    product = 6 * classes + min(top, classes) ** 2
    return product if isinstance(posterior, IndependentPosterior) else product + 4 * classes**2


def _groups(posterior: Posterior, lookup: EdgeLookup | None, pairs: Int[Tensor, "2 pairs"]) -> Iterator[Group]:
    """Group pairs by the method of their joints. A pairwise posterior has joints only for its edges."""
    if lookup is None:
        yield Group(0, isinstance(posterior, IndependentPosterior))
        return
    edge = lookup.find(pairs).edge
    yield Group(0, False, (edge >= 0).nonzero().squeeze(1))
    yield Group(1, True, (edge < 0).nonzero().squeeze(1))


def _predict_by_product(
    posterior: Posterior, pairs: Int[Tensor, "2 pairs"], events: Sequence[Event], top: int
) -> Prediction:
    """Use closed forms for independent nodes. Only the ``top`` most likely labels of each node are multiplied."""
    p, q = (_normalize(posterior.node[nodes].double()) for nodes in pairs)
    candidates = [_top_labels(row, min(top, posterior.num_classes)) for row in (p, q)]
    products = p.gather(1, candidates[0])[:, :, None] * q.gather(1, candidates[1])[:, None, :]
    places, probability = _top_entries(products.flatten(1), top)
    width = candidates[0].shape[1]
    labels = torch.stack([candidates[0].gather(1, places // width), candidates[1].gather(1, places % width)])
    of_events = [event.product_probability(p, q) for event in events]
    return labels.permute(2, 0, 1), probability.T, _stack_events(of_events, p)


def _predict_by_joint(
    joint: Float[Tensor, "pairs classes classes"],
    predicted: Int[Tensor, "2 pairs"],
    events: Sequence[Event],
    top: int,
) -> Prediction:
    flat, num_classes = _normalize(joint.flatten(1).double()), joint.shape[-1]
    places, probability = _top_entries(flat, top)
    labels = torch.stack([places // num_classes, places % num_classes])
    of_events = [event.joint_probability(flat.view(joint.shape), predicted) for event in events]
    return labels.permute(2, 0, 1), probability.T, _stack_events(of_events, flat)


def _normalize(p: Float[Tensor, "rows entries"]) -> Float[Tensor, "rows entries"]:
    """Normalize rows, so that an event and its complement sum to 1 for rounded probabilities too."""
    return p / p.sum(1, keepdim=True)


def _top_labels(p: Float[Tensor, "rows classes"], count: int) -> Int[Tensor, "rows top"]:
    """Return the most likely labels of each row, sorted by label."""
    if count == 1:
        return p.argmax(1, keepdim=True)
    return p.sort(dim=1, descending=True, stable=True).indices[:, :count].sort(1).values


def _top_entries(
    flat: Float[Tensor, "rows entries"], count: int
) -> tuple[Int[Tensor, "rows top"], Float[Tensor, "rows top"]]:
    """Return the indices and values of the largest entries of each row; ties are in order of index."""
    if count == 1:
        places = flat.argmax(1, keepdim=True)
    else:
        places = flat.sort(dim=1, descending=True, stable=True).indices[:, :count]
    return places, flat.gather(1, places)


def _stack_events(
    of_events: Sequence[Float[Tensor, " rows"]], like: Float[Tensor, "rows _"]
) -> Float[Tensor, "events rows"]:
    return torch.stack([*of_events]) if of_events else like.new_empty(0, len(like))
