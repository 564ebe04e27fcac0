"""Models of node labels: frozen hyper-parameters, whose fit() returns a fitted value, which gives a Posterior.

Each model has a file of its own, and no list of them is kept: `known_models` finds them.
"""

from edgewise.kernels.adam import Weights
from edgewise.models.fitted import Fitted
from edgewise.models.graph_pass import GraphPass
from edgewise.models.model import Classifier, Model, known_models
from edgewise.models.seeds import Initializer

__all__ = ["Classifier", "Fitted", "GraphPass", "Initializer", "Model", "Weights", "known_models"]
