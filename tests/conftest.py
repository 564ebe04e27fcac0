"""Shapes and types that signatures promise are checked while the tests run."""

from jaxtyping import install_import_hook

# All modules with shapes, but for those at the door, whose own refusals are tested (checks, evaluate, module, binning,
# datasets, splits, arrays, posterior, inference without its messages, task, wrap), those of models that take protocols,
# and the compiled loops, which cannot be wrapped (forest, long_edge_list, compiled_*).
CHECKED = [
    "edgewise.data.edges",
    "edgewise.data.pairs",
    "edgewise.data.statistics",
    "edgewise.inference.messages",
    "edgewise.metrics.collect",
    "edgewise.metrics.elements",
    "edgewise.metrics.evaluation",
    "edgewise.metrics.exact",
    "edgewise.metrics.intervals",
    "edgewise.metrics.node_sets",
    "edgewise.metrics.scores",
    "edgewise.metrics.sums",
    "edgewise.models.attention",
    "edgewise.models.convolution",
    "edgewise.models.dropout",
    "edgewise.models.projection",
    "edgewise.models.sparse",
    "edgewise.models.stars",
]
install_import_hook(CHECKED, "beartype.beartype")
