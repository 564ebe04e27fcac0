"""JointGCN: GCNs for the marginals of nodes, and a coupling of neighbors, learned from labels that were held out."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from edgewise.data.edges import connected_components
from edgewise.inference import PairwiseMRF
from edgewise.inference.coupled_marginals import bethe_log_likelihood, sinkhorn_messages, unary_potentials
from edgewise.inference.mrf import MAX_POTENTIAL
from edgewise.kernels.adam import Weights
from edgewise.models.fitted import Fitted
from edgewise.models.gcn import backbone
from edgewise.models.graph_pass import all_logits
from edgewise.models.model import Model
from edgewise.models.seeds import Seeds, generator
from edgewise.models.task import Task
from edgewise.models.training import Log, check_logits
from edgewise.posterior import PairwisePosterior, Posterior

# Of log sharpness, power and strength: standard deviations around 0, for few labels or labels that are all alike.
# Some hundred nodes, as Cora's, hardly tell the power; thousands, as Pubmed's, outweigh its prior.
PRIOR = (2.0, 0.1, 2.0)
BOUNDS = [(-5.0, 5.0), (-3.0, 3.0), (-6.0, 6.0)]


@dataclass(frozen=True, eq=False, repr=False)
class FittedJointGCN(Fitted):
    """Marginals of nodes, and messages that couple neighbors without moving them.

    Attributes
    ----------
    log_node
        The logarithms of the marginals (N, C).
    edge_index
        Edges (2, E), each undirected edge once.
    messages
        What the ends of each edge tell each other (2, E, C): into its start, and into its end.
    """

    log_node: Float[Tensor, "nodes classes"]
    edge_index: Int[Tensor, "2 edges"]
    messages: Float[Tensor, "2 edges classes"]

    parts = ("log_node", "edge_index", "messages")

    def __repr__(self) -> str:
        return f"{super().__repr__()[:-1]}, strength={self.strength:.2f})"

    @property
    def strength(self) -> float:
        """How many nats an edge adds for equal labels; below 0 neighbors tend to differ."""
        return float(self.weights["strength"])

    @property
    def _coupling(self) -> Float[Tensor, "classes classes"]:
        return self.strength * torch.eye(self.log_node.shape[1]).to(self.log_node)

    def mrf(self) -> PairwiseMRF:
        """Return the field at whose fixed point of sum-product the posterior is; on a forest it is the only one."""
        return PairwiseMRF(
            unary_potentials(self.log_node, self.edge_index, self.messages), self.edge_index, self._coupling
        )

    def posterior(self) -> PairwisePosterior:
        """Return the marginals of all nodes and the joints of all edges."""
        return PairwisePosterior(self.log_node, self.edge_index, self.messages, self._coupling.unsqueeze(0))

    def predictions(self) -> dict[str, Callable[[], Posterior]]:
        """Return the joint."""
        return {"joint": self.posterior}


@dataclass(frozen=True, kw_only=True)
class JointGCN(Model[FittedJointGCN]):
    """q_ij(l, m) = a_i(l) b_j(m) exp(w 1[l = m]) for each edge, with marginals p that are those of GCNs.

    p and q are a fixed point of sum-product on a pairwise field, so Bethe's likelihood of labeled nodes and edges is
    Π_i p_i(y_i) Π_ij q_ij(y_i, y_j) / (p_i(y_i) p_j(y_j)). A network knows the labels that it was trained on, and
    leaves nothing for a coupling to explain. So there are several: each is trained on all folds of the training nodes
    but one, and three numbers have the highest likelihood of the nodes and edges of the folds that were held out: the
    strength w, and s and b of p_i = softmax(s d_i^b z_i), z a network's logits and d_i a node's degree, itself counted,
    relative to the geometric mean: hubs are often surer than they should be. Training nodes that are neighbors are in
    one fold, so that their edges are held out with them. In the end p_i is the mean over networks, a little less sure
    than the single ones that these numbers were fitted to. The labels of validation nodes only tell networks when to
    stop.

    Parameters
    ----------
    hidden
        Hidden units of a GCN.
    dropout
        The share of hidden units that is dropped in each training pass.
    learning_rate
        Of Adam.
    weight_decay
        Of Adam, on all parameters of a GCN.
    folds
        How many GCNs there are; each trains on all folds but one.
    max_epochs
        Stop training a GCN after so many epochs.
    patience
        Stop training a GCN when neither accuracy nor NLL on validation has improved for so many epochs.

    Examples
    --------
    >>> import edgewise as ew
    >>> data = ew.load_dataset("cora")
    >>> split = ew.make_splits(data.y)[0]
    >>> fitted = JointGCN(folds=2, max_epochs=5).fit(data, split, seed=0)
    >>> fitted.posterior()
    PairwisePosterior(nodes=2708, classes=7, edges=5278)
    """

    folds: int = 5
    max_epochs: int = 200
    patience: int = 50

    name = "jointgcn"
    fitted = FittedJointGCN

    def _train(self, task: Task, seeds: Seeds, log: Log) -> FittedJointGCN:
        fold = held_out_folds(task, self.folds, generator(seeds.sampling, "folds"))
        networks = [self._network(task, fold, k, seeds, log) for k in range(self.folds)]
        logits, log_degree = torch.stack([network.logits for network in networks]).double(), _log_degree(task)
        learned = _most_likely(_held_out(task, fold, logits, log_degree))
        log_node = learned.log_marginals(logits, log_degree).logsumexp(0).log_softmax(-1)
        messages = sinkhorn_messages(log_node[task.edge_index], learned.strength)
        weights = {f"{k}/{name}": weight for k, net in enumerate(networks) for name, weight in net.weights.items()}
        weights |= {name: number.detach() for name, number in learned._asdict().items()}
        beliefs = log_node.to(task.dtype), task.edge_index, messages.to(task.dtype)
        return FittedJointGCN(self, weights, log.history(), *beliefs)

    def _network(self, task: Task, fold: Int[Tensor, " train"], k: int, seeds: Seeds, log: Log) -> "_Network":
        """Train a GCN without the k-th fold; if nothing is left, with it."""
        rest = task.train[fold != k]
        part = replace(task, train=rest if len(rest) else task.train)
        own = Seeds(*(generator(seed, f"network {k}").initial_seed() for seed in seeds))
        gcn = backbone(self, self.max_epochs, self.patience)
        weights = gcn.train_weights(part, own, f"network {k + 1}", log)
        logits = all_logits(gcn.forward, task, task.x, weights)
        return _Network(weights, check_logits(logits, self.learning_rate, MAX_POTENTIAL))


class _Network(NamedTuple):
    weights: Weights
    logits: Float[Tensor, "nodes classes"]


class Learned(NamedTuple):
    """How sure networks may be, how that depends on the degree, and how far neighbors go together."""

    log_sharpness: Float[Tensor, ""]
    power: Float[Tensor, ""]
    strength: Float[Tensor, ""]

    def log_marginals(
        self, logits: Float[Tensor, "*networks nodes classes"], log_degree: Float[Tensor, " nodes"]
    ) -> Float[Tensor, "*networks nodes classes"]:
        """Return log softmax(s d_i^b z_i)."""
        factor: Tensor = (self.log_sharpness + self.power * log_degree).exp()
        return (factor.unsqueeze(1) * logits).log_softmax(-1)


class HeldOut(NamedTuple):
    """What networks say of labeled nodes that they were not trained on, and the edges between nodes of one fold."""

    logits: Float[Tensor, "nodes classes"]
    log_degree: Float[Tensor, " nodes"]
    labels: Int[Tensor, " nodes"]
    edge_index: Int[Tensor, "2 edges"]


def _log_degree(task: Task) -> Float[Tensor, " nodes"]:
    """Return log d, the node itself counted, less its mean over nodes."""
    degree = torch.bincount(task.edge_index.flatten(), minlength=task.num_nodes).double().log1p()
    return degree - degree.mean()


def _held_out(
    task: Task,
    fold: Int[Tensor, " train"],
    logits: Float[Tensor, "networks nodes classes"],
    log_degree: Float[Tensor, " nodes"],
) -> HeldOut:
    """Choose for each training node the network that was trained without it."""
    place = torch.full((task.num_nodes,), -1, device=task.device)
    place[task.train] = torch.arange(len(task.train), device=task.device)
    edges = place[task.edge_index]
    edges = edges[:, (edges >= 0).all(0)]
    edges = edges[:, fold[edges[0]] == fold[edges[1]]]
    return HeldOut(logits[fold, task.train], log_degree[task.train], task.labels[task.train], edges)


def _most_likely(held_out: HeldOut) -> Learned:
    """Maximize the likelihood of what was held out, under normal priors."""
    from scipy.optimize import minimize

    prior = held_out.logits.new_tensor(PRIOR)

    def loss(place: list[float]) -> tuple[float, list[float]]:
        numbers = held_out.logits.new_tensor(place).requires_grad_()
        value = -_log_likelihood(held_out, Learned(*numbers)) + (numbers / prior).square().sum() / 2
        (gradient,) = torch.autograd.grad(value, numbers)
        return float(value.detach()), gradient.tolist()

    found = minimize(loss, [0.0, 0.0, 0.0], jac=True, method="L-BFGS-B", bounds=BOUNDS)
    return Learned(*held_out.logits.new_tensor(found.x))


def _log_likelihood(held_out: HeldOut, learned: Learned) -> Float[Tensor, ""]:
    log_p = learned.log_marginals(held_out.logits, held_out.log_degree)
    return bethe_log_likelihood(log_p, held_out.labels, held_out.edge_index, learned.strength)


def held_out_folds(task: Task, num_folds: int, draws: torch.Generator) -> Int[Tensor, " train"]:
    """Deal training nodes to folds, those that edges connect to the same, and each class as evenly as that allows.

    A part larger than a fold is dealt node by node: with so many edges, those that stay within a fold are enough.
    """
    labels = task.labels[task.train].cpu()
    parts = _parts(task, largest=-(-len(labels) // num_folds))
    counts = torch.zeros(int(parts.max()) + 1, task.num_classes, dtype=torch.long)
    counts.index_put_((parts, labels), torch.ones_like(labels), accumulate=True)
    order = torch.randperm(len(counts), generator=draws)
    order = order[counts.sum(1)[order].argsort(descending=True, stable=True)]
    dealt, fold = torch.zeros(num_folds, task.num_classes, dtype=torch.long), torch.empty(len(counts), dtype=torch.long)
    for part in order.tolist():
        # Where there are least of its classes; of equals, where there are least at all.
        crowd = (dealt @ counts[part]) * (len(labels) + 1) + dealt.sum(1)
        fold[part] = crowd.argmin()
        dealt[fold[part]] += counts[part]
    return fold[parts].to(task.device)


def _parts(task: Task, largest: int) -> Int[Tensor, " train"]:
    """Tell which training nodes are connected through each other; of parts that are too large each node is one."""
    trains = torch.zeros(task.num_nodes, dtype=torch.bool, device=task.device)
    trains[task.train] = True
    among = task.edge_index[:, trains[task.edge_index].all(0)]
    parts = connected_components(among, task.num_nodes)[task.train].cpu()
    alone = task.num_nodes + torch.arange(len(parts))
    parts = torch.where(torch.bincount(parts)[parts] > largest, alone, parts)
    numbers: Tensor = parts.unique(return_inverse=True)[1]
    return numbers
