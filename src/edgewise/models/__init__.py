"""Node classifiers: a model is a frozen dataclass of hyperparameters, and its ``fit`` returns a `Fitted`.

Each model has its own file. There is no registry: `known_models` imports the files and collects the classes.
"""

from edgewise.models.fitted import Fitted
from edgewise.models.graph_pass import GraphPass
from edgewise.models.model import Classifier, Model, known_models
from edgewise.models.seeds import Initializer, Weights

__all__ = ["Classifier", "Fitted", "GraphPass", "Initializer", "Model", "Weights", "known_models"]
