"""Results that `evaluate` computes on request: decompositions, curves, and smooth and classwise errors."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from edgewise.metrics.calibration_errors import class_errors, smooth_errors
from edgewise.metrics.collect import ScoringTask, ViewElements, elements_by_view, pack_edges
from edgewise.metrics.decomposition import curve_bands, decompose_views
from edgewise.metrics.elements import node_elements
from edgewise.metrics.forecasts import Keys, pack_elements
from edgewise.metrics.intervals import resampled_nodes
from edgewise.metrics.score_parts import ScoreDetails
from edgewise.metrics.scores import Norm
from edgewise.metrics.scoring_input import Binning
from edgewise.metrics.sums import VIEWS


@dataclass(frozen=True)
class DetailOptions:
    """Which results to compute."""

    decompose: bool
    smooth: bool
    classwise: bool


def allocate_keys(task: ScoringTask, options: DetailOptions, same_label: bool) -> dict[str, Keys]:
    """Return uninitialized keys of the scored edges, which are filled while scores are summed."""
    if not (options.decompose or options.smooth):
        return {}
    num = int(task.keep.count_nonzero())
    return {view: np.empty(num, dtype=np.uint64) for view in ("edgewise", *(("same_label",) if same_label else ()))}


def score_details(
    task: ScoringTask,
    keys: dict[str, Keys],
    options: DetailOptions,
    binning: Binning,
    norm: Norm,
    views: dict[str, ViewElements],
    n_resamples: int,
    confidence_level: float,
    seed: int,
    class_labels: Sequence[str] | None,
) -> dict[str, ScoreDetails]:
    """Compute the requested results of each view. ``views`` has elements for bands if there are resamples."""
    inputs, details = task.inputs, {view: ScoreDetails() for view in (*VIEWS, *keys)}
    if keys:
        keys = {"nodewise": pack_elements(node_elements(task.records[inputs.mask])), **keys}
        if binning.kind == "mass":
            keys["edgewise"] = pack_edges(task)
    if options.smooth:
        details |= {view: ScoreDetails(smooth_ece=error) for view, error in smooth_errors(keys).items()}
    if options.decompose:
        if inputs.joints is not None and inputs.predictions is None:
            # The confidence of an edge is the largest entry of its joint. The event has probability q(ŷ_i, ŷ_j).
            task = task._replace(inputs=inputs._replace(predictions=inputs.probs.argmax(1)))
            keys["edgewise"] = pack_edges(task)
            views = views | (elements_by_view(task) if n_resamples else {})
        parts = decompose_views(keys)
        if n_resamples:
            nodes = resampled_nodes(inputs.mask, views["edgewise"].nodes)
            curves = {view: part.curve for view, part in parts.items() if part.curve is not None}
            bands = curve_bands(curves, views, nodes, n_resamples, confidence_level, seed)
            parts = {view: replace(part, curve=bands[view]) for view, part in parts.items()}
        details |= {view: replace(part, smooth_ece=details[view].smooth_ece) for view, part in parts.items()}
    if options.classwise:
        errors = class_errors(inputs.probs, inputs.y, inputs.mask, binning, norm)
        labels = None if class_labels is None else tuple(class_labels)
        details["nodewise"] = replace(details["nodewise"], class_ece=errors, class_labels=labels)
    return details
