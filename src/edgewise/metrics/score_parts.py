"""What explains a score: its decomposition, a reliability curve without bins, and other calibration errors."""

from collections.abc import Mapping
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

PARTS = ("miscalibration", "discrimination", "uncertainty")
MAX_PRINTED_CLASSES = 10


@dataclass(frozen=True)
class Decomposition:
    """Parts of a mean score of a binary event: miscalibration - discrimination + uncertainty.

    Attributes
    ----------
    miscalibration
        How much the score falls if the forecasts are recalibrated by isotonic regression. 0 is best.
    discrimination
        How much better the recalibrated forecasts are than a constant. Higher is better, at most the uncertainty.
    uncertainty
        Score of the constant forecast of the observed frequency. It depends on the outcomes only.
    """

    miscalibration: float
    discrimination: float
    uncertainty: float

    @property
    def score(self) -> float:
        """The score, miscalibration - discrimination + uncertainty."""
        return self.miscalibration - self.discrimination + self.uncertainty

    def to_dict(self) -> dict[str, float]:
        """Return the parts and their combination."""
        return {"score": self.score, **{name: float(getattr(self, name)) for name in PARTS}}


@dataclass(frozen=True, eq=False)
class ReliabilityCurve:
    """Isotonic regression of the outcome on the forecast: a reliability diagram without bins.

    There are two points per block of constant frequency, at its lowest and at its highest forecast. Between blocks the
    curve is linear.

    Attributes
    ----------
    forecast
        Forecasts, in ascending order.
    frequency
        Fitted frequency of the event at each forecast, non-decreasing.
    low
        Lower end of a pointwise band from resampled nodes, or None without ``n_resamples``.
    high
        Upper end of the band.
    """

    forecast: Float[Tensor, " points"]
    frequency: Float[Tensor, " points"]
    low: Float[Tensor, " points"] | None = None
    high: Float[Tensor, " points"] | None = None

    def to_dict(self) -> dict[str, list[float] | None]:
        """Return the points as lists."""
        columns = {name: getattr(self, name) for name in ("forecast", "frequency", "low", "high")}
        return {name: None if column is None else column.tolist() for name, column in columns.items()}


@dataclass(frozen=True, eq=False)
class ScoreDetails:
    """Results that `evaluate` computes on request. All are None without it."""

    decomposition: Decomposition | None = None
    log_decomposition: Decomposition | None = None
    log_decomposition_reason: str | None = None
    curve: ReliabilityCurve | None = None
    smooth_ece: float | None = None
    class_ece: Float[Tensor, " classes"] | None = None
    class_labels: tuple[str, ...] | None = None  # names of the classes, if there are any

    @property
    def classwise_ece(self) -> float | None:
        """Mean of the calibration errors of the classes."""
        return None if self.class_ece is None else float(self.class_ece.mean())

    def class_errors(self) -> dict[str, float]:
        """Return the calibration error of each class by its name, or by its number."""
        errors = [] if self.class_ece is None else self.class_ece.tolist()
        return dict(zip(self.class_labels or map(str, range(len(errors))), errors, strict=True))

    def numbers(self) -> dict[str, float]:
        """Return the requested numbers by flat names. Without a log decomposition its parts are left out."""
        flat: dict[str, float] = {}
        for prefix, parts in (("", self.decomposition), ("log_", self.log_decomposition)):
            if parts is not None:
                flat |= {f"{prefix}{name}": float(getattr(parts, name)) for name in PARTS}
        if self.smooth_ece is not None:
            flat["smooth_ece"] = self.smooth_ece
        if self.class_ece is not None:
            flat["classwise_ece"] = float(self.class_ece.mean())
            flat |= {f"class_ece_{label}": error for label, error in self.class_errors().items()}
        return flat

    def to_dict(self) -> dict[str, object]:
        """Return the requested results as plain numbers, lists and dicts."""
        out: dict[str, object] = {}
        if self.decomposition is not None:
            log = self.log_decomposition
            out |= {
                "decomposition": self.decomposition.to_dict(),
                "log_decomposition": None if log is None else log.to_dict(),
                "log_decomposition_reason": self.log_decomposition_reason,
                "curve": None if self.curve is None else self.curve.to_dict(),
            }
        if self.smooth_ece is not None:
            out["smooth_ece"] = self.smooth_ece
        if self.class_ece is not None:
            out |= {"classwise_ece": self.classwise_ece, "class_ece": self.class_ece.tolist()}
            out |= {} if self.class_labels is None else {"class_labels": list(self.class_labels)}
        return out


def format_details(views: Mapping[str, ScoreDetails]) -> list[str]:
    """Return lines with the parts of the Brier score of each view, and with the errors computed on request."""
    lines = []
    decompositions = {name: details.decomposition for name, details in views.items() if details.decomposition}
    if decompositions:
        lines += ["", f"{'parts':10}" + "".join(f"{name:>16}" for name in (*PARTS, "score"))]
        for name, parts in decompositions.items():
            lines.append(f"{name:10}" + "".join(f"{getattr(parts, part):16.4f}" for part in (*PARTS, "score")))
    smooth = [f"{name} {details.smooth_ece:.4f}" for name, details in views.items() if details.smooth_ece is not None]
    if smooth:
        lines += ["", f"smooth ece: {', '.join(smooth)}"]
    for details in views.values():
        if details.class_ece is not None:
            errors = list(details.class_errors().items())[:MAX_PRINTED_CLASSES]
            of_class = ", ".join(f"{label} {error:.4f}" for label, error in errors)
            more = ", …" if len(details.class_ece) > MAX_PRINTED_CLASSES else ""
            lines += ["", f"classwise ece: {details.classwise_ece:.4f}; by class: {of_class}{more}"]
    return lines
