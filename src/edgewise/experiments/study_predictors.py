"""Who predicts in a study: trained models, and references that know the law of the graph."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

from edgewise.calibration import StructuredCalibrator, TemperatureScaling
from edgewise.data import Split
from edgewise.inference import sum_product
from edgewise.models import EPFGNN, GAT, GCN, GMNN, JointGCN
from edgewise.models.epfgnn import FittedEPFGNN
from edgewise.models.fitted import FittedClassifier
from edgewise.models.gmnn import FittedGMNN
from edgewise.models.joint_gcn import FittedJointGCN
from edgewise.posterior import IndependentPosterior, PairwisePosterior, Posterior
from edgewise.simulation import SyntheticGraph


@dataclass(frozen=True, eq=False)
class Case:
    """A graph, who is labelled in it, its true posterior, and models that are trained when they are first asked for."""

    graph: SyntheticGraph
    split: Split
    truth: Posterior
    seed: int

    @cached_property
    def gcn(self) -> FittedClassifier:
        """A trained GCN."""
        return GCN().fit(self.graph.data, self.split, seed=self.seed)

    @cached_property
    def gat(self) -> FittedClassifier:
        """A trained GAT."""
        return GAT().fit(self.graph.data, self.split, seed=self.seed)

    @cached_property
    def mlp(self) -> FittedClassifier:
        """A trained GCN that sees no edges: a perceptron of single nodes."""
        data = self.graph.data.clone()
        data.edge_index = data.edge_index[:, :0]
        return GCN().fit(data, self.split, seed=self.seed)

    @cached_property
    def gmnn(self) -> FittedGMNN:
        """A trained GMNN."""
        return GMNN().fit(self.graph.data, self.split, seed=self.seed)

    @cached_property
    def epfgnn(self) -> FittedEPFGNN:
        """A trained EPFGNN."""
        return EPFGNN().fit(self.graph.data, self.split, seed=self.seed)

    @cached_property
    def jointgcn(self) -> FittedJointGCN:
        """A trained JointGCN."""
        return JointGCN().fit(self.graph.data, self.split, seed=self.seed)


Predictor = Callable[[Case], Posterior]


def features_alone(case: Case) -> Posterior:
    """Say what a node's features say by Bayes' rule, and nothing of the graph: calibrated, with less to go by."""
    return IndependentPosterior(case.graph.field.unary.softmax(-1))


def base_rate(case: Case) -> Posterior:
    """Say the same of all edges: how often neighbours have each pair of labels. Calibrated, and knows nothing."""
    affinity = case.graph.coupling.exp()
    joint = affinity / affinity.sum()
    node = joint.sum(1).expand(case.graph.field.num_nodes, -1)
    edges = case.graph.edge_index
    return PairwisePosterior.from_joints(node, edges, joint.expand(edges.shape[1], -1, -1))


def true_field_by_sum_product(case: Case) -> Posterior:
    """Know the law of the graph and the training labels, and infer by belief propagation."""
    return sum_product(case.graph.mrf(case.split.train))[0]


# What is learnt from the training labels: add a line for each further model or calibration.
LEARNT: Mapping[str, Predictor] = {
    "gcn": lambda case: case.gcn.posterior(),
    "gat": lambda case: case.gat.posterior(),
    "gmnn": lambda case: case.gmnn.posterior(),
    "gmnn averaged logits": lambda case: case.gmnn.posterior("averaged_logits"),
    "epfgnn": lambda case: case.epfgnn.posterior(),
    "jointgcn": lambda case: case.jointgcn.posterior(),
    "mlp": lambda case: case.mlp.posterior(),
    "gcn, temperature": lambda case: TemperatureScaling().fit(case.gcn.logits, case.graph.data, case.split),
    "gcn, structured": lambda case: StructuredCalibrator().fit(case.gcn.logits, case.graph.data, case.split),
}
REFERENCES: Mapping[str, Predictor] = {
    "truth": lambda case: case.truth,
    "true marginals": lambda case: IndependentPosterior(case.truth.node),
    "sum-product on the true field": true_field_by_sum_product,
    "features alone": features_alone,
    "base rate": base_rate,
}
PREDICTORS: Mapping[str, Predictor] = {**LEARNT, **REFERENCES}
