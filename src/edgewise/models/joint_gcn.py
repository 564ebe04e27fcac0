"""JointGCN: node marginals from GCNs, and a coupling of neighbors learned on held-out training nodes."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from edgewise.data.edges import connected_components
from edgewise.inference import PairwiseMRF
from edgewise.inference.coupled_marginals import bethe_log_likelihood, coupled_messages, unary_potentials
from edgewise.inference.mrf import MAX_POTENTIAL
from edgewise.models.fitted import Fitted
from edgewise.models.gcn import backbone
from edgewise.models.graph_pass import all_logits
from edgewise.models.model import Model
from edgewise.models.seeds import Seeds, Weights, derive_seeds, generator
from edgewise.models.task import Task
from edgewise.models.training import Log, check_logits, minimize_lbfgs
from edgewise.posterior import PairwisePosterior, Posterior
from edgewise.suggestions import suggest_keywords

# Standard deviations of the normal priors of (log_sharpness, power, coupling), with mean 0. They keep the estimates
# finite when labels are few or all equal. The few hundred nodes of Cora hardly determine the power; the thousands of
# Pubmed outweigh its prior.
PRIOR_STANDARD_DEVIATIONS = (2.0, 0.1, 2.0)
BOUNDS = [(-5.0, 5.0), (-3.0, 3.0), (-6.0, 6.0)]


@dataclass(frozen=True, eq=False, repr=False)
class FittedJointGCN(Fitted):
    """A fitted JointGCN: node marginals, and the messages that couple neighbors without changing them.

    Attributes
    ----------
    log_node
        Log marginals of the nodes (N, C).
    edge_index
        Edges (2, E), each undirected edge once.
    messages
        Sum-product messages in log space (2, E, C): ``messages[0]`` into the start of each edge, ``messages[1]`` into
        its end.
    """

    log_node: Float[Tensor, "nodes classes"]
    edge_index: Int[Tensor, "2 edges"]
    messages: Float[Tensor, "2 edges classes"]

    parts = ("log_node", "edge_index", "messages")

    def __repr__(self) -> str:
        return f"{super().__repr__()[:-1]}, coupling={self.coupling:.2f})"

    @property
    def coupling(self) -> float:
        """The coupling w in nats: the log-potential of an edge whose ends have the same label.

        Below 0, neighbors tend to have different labels.
        """
        return float(self.weights["strength"])

    @property
    def _pairwise(self) -> Float[Tensor, "classes classes"]:
        return self.coupling * torch.eye(self.log_node.shape[1]).to(self.log_node)

    def mrf(self) -> PairwiseMRF:
        """Return an MRF with the posterior as a fixed point of sum-product. On a forest the fixed point is unique.

        On a graph with loops there can be others, and the most likely labeling can be far from the posterior.
        """
        return PairwiseMRF(
            unary_potentials(self.log_node, self.edge_index, self.messages), self.edge_index, self._pairwise
        )

    def posterior(self) -> PairwisePosterior:
        """Return the marginals of all nodes and the joints of all edges."""
        return PairwisePosterior(self.log_node, self.edge_index, self.messages, self._pairwise.unsqueeze(0))

    def predictions(self) -> dict[str, Callable[[], Posterior]]:
        """Return the posterior as "joint"."""
        return {"joint": self.posterior}


@suggest_keywords
@dataclass(frozen=True, kw_only=True)
class JointGCN(Model[FittedJointGCN]):
    """GCN marginals p_i, and edge joints q_ij(l, m) = a_i(l) b_j(m) exp(w 1[l = m]) with marginals p_i and p_j.

    p and q are a fixed point of sum-product on a pairwise MRF, so the Bethe likelihood of labeled nodes and edges is
    Π_i p_i(y_i) Π_ij q_ij(y_i, y_j) / (p_i(y_i) p_j(y_j)).

    A network fits the labels it is trained on, which leaves nothing for a coupling to explain. Therefore the training
    nodes are split into folds, and each of several GCNs is trained on all folds but one. Training nodes that are
    neighbors are in the same fold, so that the edge between them is held out too. Three parameters maximize the
    likelihood of the held-out nodes and edges, under normal priors: the coupling w, and s and b in
    p_i = softmax(s d_i^b z_i). Here z_i are the logits of the network that has not seen node i, and d_i is the degree
    of node i plus 1, relative to the geometric mean over all nodes. The factor d_i^b is there because networks are
    often overconfident on hubs.

    The final p_i is the mean over all networks. It is a little less confident than the single networks to which s, b
    and w were fitted. The labels of validation nodes are only used for early stopping of the networks.

    Parameters
    ----------
    hidden
        Number of hidden units of each GCN.
    dropout
        Dropout probability of the hidden units.
    learning_rate
        Learning rate of Adam.
    weight_decay
        Weight decay of Adam, on all parameters of a GCN.
    folds
        Number of folds, and of GCNs. With 1, nothing is held out.
    max_epochs
        Maximum number of epochs of each GCN.
    patience
        Stop training a GCN after this many epochs without an improvement of validation accuracy or NLL.

    Examples
    --------
    >>> import edgewise as ew
    >>> data = ew.load_dataset("cora")
    >>> split = ew.make_splits(data.y)[0]
    >>> fitted = JointGCN(folds=2, max_epochs=5).fit(data, split, seed=0)
    >>> fitted.posterior()
    PairwisePosterior(nodes=2708, classes=7, edges=5278)
    """

    hidden: int = 64
    dropout: float = 0.5
    learning_rate: float = 0.01
    weight_decay: float = 5e-4
    folds: int = 5
    max_epochs: int = 200
    patience: int = 50

    name = "jointgcn"
    fitted = FittedJointGCN

    def _train(self, task: Task, seeds: Seeds, log: Log) -> FittedJointGCN:
        fold = held_out_folds(task, self.folds, generator(seeds.sampling, "folds"))
        networks = [self._train_network(task, fold, k, seeds, log) for k in range(self.folds)]
        logits, log_degree = torch.stack([network.logits for network in networks]).double(), _log_degree(task)
        learned = _fit_joint_parameters(_held_out(task, fold, logits, log_degree))
        log_node = learned.log_marginals(logits, log_degree).logsumexp(0).log_softmax(-1)
        messages = coupled_messages(log_node[task.edge_index], learned.coupling)
        weights = {f"{k}/{name}": weight for k, net in enumerate(networks) for name, weight in net.weights.items()}
        weights |= {
            "log_sharpness": learned.log_sharpness,
            "power": learned.power,
            "strength": learned.coupling,  # the key in saved files
        }
        beliefs = log_node.to(task.dtype), task.edge_index, messages.to(task.dtype)
        return FittedJointGCN(self, weights, log.history(), *beliefs)

    def _train_network(
        self, task: Task, fold: Int[Tensor, " train"], k: int, seeds: Seeds, log: Log
    ) -> "_TrainedNetwork":
        """Train a GCN without fold k, or on all training nodes if no node is in another fold."""
        rest = task.train[fold != k]
        part = replace(task, train=rest if len(rest) else task.train)
        own = derive_seeds(seeds, f"network {k}")
        gcn = backbone(self, self.max_epochs, self.patience)
        weights = gcn.train_weights(part, own, f"network {k + 1}", log)
        logits = all_logits(gcn.forward, task, task.x, weights)
        return _TrainedNetwork(weights, check_logits(logits, self.learning_rate, MAX_POTENTIAL))


class _TrainedNetwork(NamedTuple):
    weights: Weights
    logits: Float[Tensor, "nodes classes"]


class JointParameters(NamedTuple):
    """The parameters log s, b and w of a JointGCN."""

    log_sharpness: Float[Tensor, ""]
    power: Float[Tensor, ""]
    coupling: Float[Tensor, ""]

    def log_marginals(
        self, logits: Float[Tensor, "*networks nodes classes"], log_degree: Float[Tensor, " nodes"]
    ) -> Float[Tensor, "*networks nodes classes"]:
        """Compute log softmax(s d_i^b z_i)."""
        factor: Tensor = (self.log_sharpness + self.power * log_degree).exp()
        return (factor.unsqueeze(1) * logits).log_softmax(-1)


class HeldOut(NamedTuple):
    """Held-out logits and labels of the training nodes, and the edges between training nodes of the same fold.

    Nodes are numbered by their position in ``task.train``.
    """

    logits: Float[Tensor, "nodes classes"]
    log_degree: Float[Tensor, " nodes"]
    labels: Int[Tensor, " nodes"]
    edge_index: Int[Tensor, "2 edges"]


def _log_degree(task: Task) -> Float[Tensor, " nodes"]:
    """Compute log(degree + 1) minus its mean over all nodes."""
    degree = torch.bincount(task.edge_index.flatten(), minlength=task.num_nodes).double().log1p()
    return degree - degree.mean()


def _held_out(
    task: Task,
    fold: Int[Tensor, " train"],
    logits: Float[Tensor, "networks nodes classes"],
    log_degree: Float[Tensor, " nodes"],
) -> HeldOut:
    """Select for each training node the logits of the network that was trained without it."""
    position = torch.full((task.num_nodes,), -1, device=task.device)
    position[task.train] = torch.arange(len(task.train), device=task.device)
    edges = position[task.edge_index]
    edges = edges[:, (edges >= 0).all(0)]
    edges = edges[:, fold[edges[0]] == fold[edges[1]]]
    return HeldOut(logits[fold, task.train], log_degree[task.train], task.labels[task.train], edges)


def _fit_joint_parameters(held_out: HeldOut) -> JointParameters:
    """Maximize the likelihood of the held-out labels under normal priors."""
    logits = held_out.logits
    deviations = logits.new_tensor(PRIOR_STANDARD_DEVIATIONS)

    def loss(parameters: Float[Tensor, " 3"]) -> Tensor:
        values = parameters.to(logits.device)
        penalty = (values / deviations).square().sum() / 2
        return -_log_likelihood(held_out, JointParameters(*values)) + penalty

    return JointParameters(*minimize_lbfgs(loss, [0.0, 0.0, 0.0], bounds=BOUNDS).to(logits.device))


def _log_likelihood(held_out: HeldOut, parameters: JointParameters) -> Float[Tensor, ""]:
    log_p = parameters.log_marginals(held_out.logits, held_out.log_degree)
    return bethe_log_likelihood(log_p, held_out.labels, held_out.edge_index, parameters.coupling)


def held_out_folds(task: Task, num_folds: int, draws: torch.Generator) -> Int[Tensor, " train"]:
    """Assign training nodes to folds: connected ones to the same fold, and each class as evenly as that allows.

    Training nodes are connected if a path of training nodes joins them. A component larger than a fold is split into
    single nodes: it has so many edges that enough of them stay within a fold.
    """
    labels = task.labels[task.train].cpu()
    component = _components(task, max_size=-(-len(labels) // num_folds))
    counts = torch.zeros(int(component.max()) + 1, task.num_classes, dtype=torch.long)
    counts.index_put_((component, labels), torch.ones_like(labels), accumulate=True)
    order = torch.randperm(len(counts), generator=draws)
    order = order[counts.sum(1)[order].argsort(descending=True, stable=True)]
    assigned = torch.zeros(num_folds, task.num_classes, dtype=torch.long)
    fold = torch.empty(len(counts), dtype=torch.long)
    for k in order.tolist():
        # The fold with the fewest nodes of its classes; among equals, the smallest fold.
        cost = (assigned @ counts[k]) * (len(labels) + 1) + assigned.sum(1)
        fold[k] = cost.argmin()
        assigned[fold[k]] += counts[k]
    return fold[component].to(task.device)


def _components(task: Task, max_size: int) -> Int[Tensor, " train"]:
    """Return the connected component of each training node; components above the maximum size become single nodes."""
    is_training = torch.zeros(task.num_nodes, dtype=torch.bool, device=task.device)
    is_training[task.train] = True
    edges = task.edge_index[:, is_training[task.edge_index].all(0)]
    component = connected_components(edges, task.num_nodes)[task.train].cpu()
    alone = task.num_nodes + torch.arange(len(component))
    component = torch.where(torch.bincount(component)[component] > max_size, alone, component)
    numbers: Tensor = component.unique(return_inverse=True)[1]
    return numbers
