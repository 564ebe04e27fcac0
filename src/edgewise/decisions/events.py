"""Events of the labels of two nodes, and their probabilities by a closed form or by a joint."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

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


def checked_events(events: Iterable[EventLike], num_classes: int, classes: Sequence[str]) -> list[Event]:
    """Read events: "same", "different", "both_correct", "both=A", "any=A", "only_one=A", or (name, pairs of labels).

    >>> [event.name for event in checked_events(["same", "any=1"], 2, ["0", "1"])]
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
