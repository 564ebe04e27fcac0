"""Which pairs edgewise predict selects: a threshold that is chosen on validation pairs, and checked on test pairs."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from edgewise.cli.complaints import complaints_name

if TYPE_CHECKING:
    import numpy as np

    from edgewise.decisions import EdgePredictions, Threshold


@dataclass(frozen=True)
class Selection:
    """The options of a selection, as they were given."""

    event: str | None
    precision: float | None
    confidence: float | None
    cost: str | None
    fdr: float | None
    labels: Path | None
    val: Path | None
    test: Path | None

    def check(self) -> None:
        """Refuse options that do not go together."""
        goals = {"--precision": self.precision, "--cost": self.cost, "--fdr": self.fdr}
        given = [name for name, goal in goals.items() if goal is not None]
        if self.event is None:
            others = {"--confidence": self.confidence, "--labels": self.labels, "--val": self.val, "--test": self.test}
            if extra := [*given, *(name for name, value in others.items() if value is not None)]:
                raise ValueError(
                    f"Expected --select with {extra[0]}, but got none. Name an event, such as --select same."
                )
            return
        if len(given) != 1:
            got = " and ".join(given) or "none"
            raise ValueError(f"Expected one of {', '.join(goals)} with --select, but got {got}.")
        if self.confidence is not None and self.precision is None:
            raise ValueError(f"Expected --confidence with --precision only, but got it with {given[0]}. Leave it out.")
        if self.labels is None or self.val is None:
            missing = "--labels" if self.labels is None else "--val"
            raise ValueError(f"Expected {missing} with --select, as thresholds are chosen on validation pairs.")
        if self.fdr is not None and self.test is None:
            raise ValueError(
                "Expected --test with --fdr, but got none: the rate is that of the pairs to decide, and pairs whose "
                "labels the model has seen must not be among them."
            )

    def apply(self, found: "EdgePredictions") -> "tuple[EdgePredictions, list[str]]":
        """Give the table with what is selected, and what there is to say about it."""
        if self.event is None or self.labels is None or self.val is None:
            return found, []
        self._check_masks()
        chosen_by = self._outcomes(found, self.val)
        if len(chosen_by[0]) == 0:
            raise ValueError(f"Expected pairs with both ends in {self.val} to choose a threshold by, but got none.")
        checked_on = self._outcomes(found, self.test) if self.test else None
        threshold = self._threshold(*chosen_by, checked_on[0] if checked_on else None)
        found = found.select(self.event, threshold)
        lines = [f"on validation: {threshold.validation}"]
        lines += [f"on test: {threshold.check(*checked_on)}"] if checked_on else []
        return found, [*lines, f"of all: {int(found['selected'].sum()):,} of {len(found):,} pairs selected"]

    def _check_masks(self) -> None:
        from edgewise.data import files

        if self.val is None or self.test is None:
            return
        val, test = files.read_mask(self.val), files.read_mask(self.test)
        if len(val) == len(test) and (shared := int((val & test).sum())):
            raise ValueError(
                f"Expected no node in both {self.val} and {self.test}, but they share {shared:,}. A threshold is "
                "checked on nodes that it was not chosen by."
            )

    def _outcomes(self, found: "EdgePredictions", mask: Path) -> "tuple[np.ndarray, np.ndarray]":
        from edgewise.data import files

        y = files.read_labels(self.labels or Path())
        with complaints_name(y=self.labels, mask=mask):
            return found.outcomes(self.event or "", y, files.read_mask(mask))

    def _threshold(self, probability: "np.ndarray", happened: "np.ndarray", among: "np.ndarray | None") -> "Threshold":
        from edgewise.decisions import threshold_for_cost, threshold_for_fdr, threshold_for_precision

        if self.precision is not None:
            return threshold_for_precision(probability, happened, self.precision, confidence=self.confidence)
        if self.fdr is not None:
            return threshold_for_fdr(probability, happened, self.fdr, among=among)
        try:
            false_positive, false_negative = map(float, str(self.cost).split(":"))
        except ValueError as error:
            raise ValueError(f"Expected --cost as two numbers, such as 1:5, but got {self.cost}.") from error
        return threshold_for_cost(probability, happened, false_positive=false_positive, false_negative=false_negative)
