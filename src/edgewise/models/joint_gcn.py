"""JointGCN: GCNs for the marginals of nodes, and a coupling of neighbours, learnt from labels that were held out."""

from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from edgewise.inference import PairwiseMRF
from edgewise.inference.mrf import LARGEST
from edgewise.models.adam import Adam, Weights
from edgewise.models.convolution import backbone_trained, convolved
from edgewise.models.coupled_marginals import kept_messages, labelled_likelihood, unaries
from edgewise.models.fitted import Fitted
from edgewise.models.held_out import held_out_folds
from edgewise.models.model import Model
from edgewise.models.seeds import Seeds, generator
from edgewise.models.task import Task
from edgewise.models.training import Log, Phase, checked_logits
from edgewise.posterior import PairwisePosterior

PRIOR = 2.0  # standard deviation, in nats, of the strength and of log sharpness: for few labels, or for all alike
BOUNDS = [(-5.0, 5.0), (-10.0, 10.0)]  # of log sharpness and of the strength


@dataclass(frozen=True, eq=False, repr=False)
class FittedJointGCN(Fitted):
    """Marginals of nodes, and messages that couple neighbours without moving them."""

    log_node: Float[Tensor, "nodes classes"]
    edge_index: Int[Tensor, "2 edges"]
    messages: Float[Tensor, "2 edges classes"]

    parts = ("log_node", "edge_index", "messages")

    def __repr__(self) -> str:
        return f"{super().__repr__()[:-1]}, strength={self.strength:.2f})"

    @property
    def strength(self) -> float:
        """How many nats an edge adds for equal labels; below 0 neighbours tend to differ."""
        return float(self.weights["strength"])

    @property
    def _coupling(self) -> Float[Tensor, "classes classes"]:
        return self.strength * torch.eye(self.log_node.shape[1]).to(self.log_node)

    def mrf(self) -> PairwiseMRF:
        """Give the field at whose fixed point of sum-product the posterior is; on a forest it is the only one."""
        return PairwiseMRF(unaries(self.log_node, self.edge_index, self.messages), self.edge_index, self._coupling)

    def posterior(self) -> PairwisePosterior:
        """Give the marginals of all nodes and the joints of all edges."""
        return PairwisePosterior(self.log_node, self.edge_index, self.messages, self._coupling.unsqueeze(0))


@dataclass(frozen=True, kw_only=True)
class JointGCN(Model[FittedJointGCN]):
    """q_ij(l, m) = a_i(l) b_j(m) exp(w 1[l = m]) for each edge, with marginals p that are those of GCNs.

    p and q are a fixed point of sum-product on a pairwise field, so Bethe's likelihood of labelled nodes and edges is
    Π_i p_i(y_i) Π_ij q_ij(y_i, y_j) / (p_i(y_i) p_j(y_j)). A network knows the labels that it was trained on, and
    leaves nothing for a coupling to explain. So there are several: each is trained on all folds of the training nodes
    but one, and the sharpness of p and the strength w have the highest likelihood of the nodes and edges of the folds
    that were held out. Training nodes that are neighbours are in one fold, so that their edges are held out with them.
    Then p_i is the mean of what the networks say. The labels of validation nodes only tell networks when to stop.

    Parameters
    ----------
    hidden
        Hidden units of a GCN.
    dropout
        The share of hidden units that is dropped in each training pass.
    learning_rate, weight_decay
        Of Adam, on all parameters of a GCN.
    folds
        How many GCNs there are; each trains on all folds but one.
    max_epochs, patience
        Stop training a GCN after so many epochs, or when neither accuracy nor NLL on validation has improved for so
        many.

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

    def _trained(self, task: Task, seeds: Seeds, log: Log) -> FittedJointGCN:
        fold = held_out_folds(task, self.folds, generator(seeds.sampling, "folds"))
        networks = [self._network(task, fold, k, seeds, log) for k in range(self.folds)]
        logits = torch.stack([network.logits for network in networks]).double()
        learnt = _most_likely(_held_out(task, fold, logits))
        log_node = (learnt.sharpness * logits).log_softmax(-1).logsumexp(0).log_softmax(-1)
        strength = torch.tensor(learnt.strength, dtype=torch.float64)
        messages = kept_messages(log_node[task.edge_index], strength.to(log_node))
        weights = {f"{k}/{name}": weight for k, net in enumerate(networks) for name, weight in net.weights.items()}
        weights |= {"sharpness": torch.tensor(learnt.sharpness, dtype=torch.float64), "strength": strength}
        beliefs = log_node.to(task.dtype), task.edge_index, messages.to(task.dtype)
        return FittedJointGCN(self, weights, log.history(), *beliefs)

    def _network(self, task: Task, fold: Int[Tensor, " train"], k: int, seeds: Seeds, log: Log) -> "_Network":
        """Train a GCN without the k-th fold; if nothing is left, with it."""
        rest = task.train[fold != k]
        part = replace(task, train=rest if len(rest) else task.train)
        own = Seeds(*(generator(seed, f"network {k}").initial_seed() for seed in seeds))
        phase = Phase(f"network {k + 1}", self.max_epochs, self.patience)
        adam = Adam(self.learning_rate, self.weight_decay)
        weights = backbone_trained(part, self.hidden, self.dropout, own, phase, adam, log)
        return _Network(weights, checked_logits(convolved(task, task.x, weights), self.learning_rate, LARGEST))


class _Network(NamedTuple):
    weights: Weights
    logits: Float[Tensor, "nodes classes"]


class HeldOut(NamedTuple):
    """What networks say of labelled nodes and of the ends of labelled edges that they were not trained on."""

    logits: Float[Tensor, "nodes classes"]
    labels: Int[Tensor, " nodes"]
    end_logits: Float[Tensor, "2 edges classes"]
    end_labels: Int[Tensor, "2 edges"]


class Learnt(NamedTuple):
    """The factor of logits, and the strength of the coupling."""

    sharpness: float
    strength: float


def _held_out(task: Task, fold: Int[Tensor, " train"], logits: Float[Tensor, "folds nodes classes"]) -> HeldOut:
    """Choose the network of each training node, and of each edge whose ends are in one fold."""
    of_node = torch.full((task.num_nodes,), -1, device=task.device)
    of_node[task.train] = fold
    first, second = of_node[task.edge_index]
    edges = task.edge_index[:, (first >= 0) & (first == second)]
    return HeldOut(logits[fold, task.train], task.labels[task.train], logits[of_node[edges], edges], task.labels[edges])


def _most_likely(held_out: HeldOut) -> Learnt:
    """Maximise the likelihood of what was held out, under priors N(0, PRIOR²) of log sharpness and strength."""
    from scipy.optimize import minimize

    def loss(place: list[float]) -> tuple[float, list[float]]:
        numbers = held_out.logits.new_tensor(place).requires_grad_()
        value = -_log_likelihood(held_out, numbers[0].exp(), numbers[1]) + (numbers / PRIOR).square().sum() / 2
        (gradient,) = torch.autograd.grad(value, numbers)
        return float(value.detach()), gradient.tolist()

    found = minimize(loss, [0.0, 0.0], jac=True, method="L-BFGS-B", bounds=BOUNDS)
    return Learnt(float(torch.tensor(found.x[0]).exp()), float(found.x[1]))


def _log_likelihood(held_out: HeldOut, sharpness: Float[Tensor, ""], strength: Float[Tensor, ""]) -> Float[Tensor, ""]:
    log_p, log_ends = ((sharpness * logits).log_softmax(-1) for logits in (held_out.logits, held_out.end_logits))
    return labelled_likelihood(log_p, held_out.labels, log_ends, held_out.end_labels, strength)
