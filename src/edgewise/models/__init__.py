"""Models of node labels: frozen hyper-parameters, whose fit() returns a fitted value, which gives a Posterior."""

from edgewise.models.epfgnn import EPFGNN
from edgewise.models.fitted import Fitted
from edgewise.models.gat import GAT
from edgewise.models.gcn import GCN
from edgewise.models.gmnn import GMNN
from edgewise.models.joint_gcn import JointGCN
from edgewise.models.model import known_models
from edgewise.models.seeds import Seeds
from edgewise.models.training import Epoch, History
from edgewise.models.wrap import wrap

__all__ = ["EPFGNN", "GAT", "GCN", "GMNN", "Epoch", "Fitted", "History", "JointGCN", "Seeds", "known_models", "wrap"]
