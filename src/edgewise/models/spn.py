"""SPN: a pairwise MRF whose potentials are pseudomarginals of two networks (Qu, Cai, Tang 2022)."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import cross_entropy

from edgewise.inference import PairwiseMRF, sum_product
from edgewise.inference.mrf import MAX_POTENTIAL
from edgewise.kernels.dropout import Dropout
from edgewise.models.fitted_mrf import INFERENCES, FittedMRF, Inference
from edgewise.models.gcn import GCN, backbone
from edgewise.models.graph_pass import TrainingLogits, TrainingPass, TrainingRows, all_logits
from edgewise.models.model import Model
from edgewise.models.seeds import Initializer, Seeds, Weights, dropout_key, generator
from edgewise.models.task import Task
from edgewise.models.training import Log, Phase, TrainingLoop, adam, check_logits, trainable_copies
from edgewise.posterior import Posterior
from edgewise.suggestions import suggest_keywords
from edgewise.validation import check_flag, check_option

SHARPNESS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)  # candidates; 0 means no coupling
VALIDATION_SWEEPS = 100  # of sum-product for each candidate
CHUNK_EDGES = 1 << 15  # whose hidden units are computed at once


@dataclass(frozen=True, eq=False, repr=False)
class FittedSPN(FittedMRF):
    """A fitted SPN: a pairwise MRF, and the labels of the training nodes.

    Attributes
    ----------
    unary
        Potentials θ_i = log τ_i (N, C) of the nodes.
    edge_index
        Edges (2, E), each undirected edge once.
    pairwise
        Potentials θ_ij (E, C, C), oriented as ``edge_index``.
    sharpness
        The factor γ of the logits of the edge network. If it is 0, there is no coupling.
    known
        The training nodes.
    known_labels
        Labels of the training nodes.
    """

    model: "SPN"
    pairwise: Float[Tensor, "edges classes classes"]
    sharpness: Float[Tensor, ""]

    parts = ("unary", "edge_index", "pairwise", "sharpness", "known", "known_labels")

    def __repr__(self) -> str:
        return f"{super().__repr__()[:-1]}, sharpness={float(self.sharpness):g})"

    def mrf(self, evidence: bool = True) -> PairwiseMRF:
        """Return the MRF, with or without the training nodes clamped to their labels."""
        return PairwiseMRF(self.unary, self.edge_index, self.pairwise, evidence=self._evidence(evidence))

    def predictions(self) -> dict[str, Callable[[], Posterior]]:
        """Return the sum-product prediction."""
        return {"spn_sum_product": lambda: self.posterior("sum_product")}


@suggest_keywords
@dataclass(frozen=True, kw_only=True)
class SPN(Model[FittedSPN]):
    """Structured proxy network: the MRF P(y) ∝ exp(Σ_i θ_i(y_i) + Σ_ij θ_ij(y_i, y_j)) of two networks.

    The node network is a GCN, and its softmax is the pseudomarginal τ_i of each node. The edge network has a GCN of its
    own as encoder, whose outputs are u, and a perceptron f with one hidden layer. Its logits z_ij = (f(u_i, u_j) +
    f(u_j, u_i)ᵀ) / 2 (C, C) do not depend on the direction of the edge, and τ_ij = softmax(γ z_ij). The potentials are

    θ_i(l) = log τ_i(l),  θ_ij(l, m) = log τ_ij(l, m) - log Σ_m' τ_ij(l, m') - log Σ_l' τ_ij(l', m).

    **Training.** The proxy objective is Σ_i log τ_i(y_i) over training nodes plus Σ_ij log τ_ij(y_i, y_j) over edges
    between them, with γ = 1. The networks share no parameters, so each maximizes its part on its own. The node network
    is trained as `GCN`. The edge network stops by the labeled edges that are not in the objective: those with a
    validation node, and the other end in training or validation. In the phase "edges", the curves of the history are of
    these edges.

    **Sharpness.** γ is 0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5 or 1. It is increased as long as sum-product, with training
    labels clamped, converges within 100 sweeps and its NLL on the validation nodes decreases. With γ = 0, and always if
    there are no labeled edges for training or for stopping, the nodes are independent.

    **Deviations from the paper.** Its θ_ij is divided by τ_i and τ_j of the node network, which are the sums of τ_ij if
    the pseudomarginals agree. Those of two networks do not agree, and the errors add up over the edges of a node. So
    the sums of τ_ij are used, as in the published code. The refinement of the potentials by gradients of the
    likelihood, which follows in the paper, is left out: it needs inference in each step, and the paper calls it
    optional. A fitted SPN cannot be applied to another graph: its edges and training labels belong to this one.

    **Deviations from the published code** (github.com/DeepGraphLearning/SPN). There,

    - no labels are clamped;
    - the sums of τ_ij are weighted by 0.1;
    - γ is the best in accuracy of 100, 10, 2, 1, 0.5, 0.2 and 0.1, which are all tried;
    - f is by default linear in the concatenation of u_i and u_j, without a hidden layer, and not symmetrized;
    - only the edge network has dropout by default, of 0.5 on the hidden units of its encoder;
    - the loss of the edge network is multiplied by 1/5, which Adam almost cancels;
    - weights are kept by validation accuracy alone, after a fixed number of epochs;
    - the prediction is that of tree-reweighted max-product.

    The memory grows with the number of edges times the square of the number of classes.

    Parameters
    ----------
    hidden
        Number of hidden units of each GCN and of the perceptron, and number of outputs of the encoder.
    dropout
        Dropout probability of the hidden units of each GCN.
    learning_rate
        Learning rate of Adam.
    weight_decay
        Weight decay of Adam, on all parameters.
    max_epochs
        Maximum number of epochs of each network.
    patience
        Stop training a network after this many epochs without an improvement of validation accuracy or NLL.
    inference
        Default inference of the posterior: "sum_product", "max_product" or "mean_field".
    evidence
        Whether the posterior clamps training nodes to their labels by default.

    Examples
    --------
    >>> import edgewise as ew
    >>> data = ew.load_dataset("cora")
    >>> split = ew.make_splits(data.y)[0]
    >>> fitted = SPN(max_epochs=3).fit(data, split, seed=0)
    >>> fitted.posterior(), fitted.history.phases
    (PairwisePosterior(nodes=2708, classes=7, edges=5278), [('nodes', 3), ('edges', 3)])
    """

    hidden: int = 64
    dropout: float = 0.5
    learning_rate: float = 0.01
    weight_decay: float = 5e-4
    max_epochs: int = 2000
    patience: int = 100
    inference: Inference = "sum_product"
    evidence: bool = True

    name = "spn"
    fitted = FittedSPN

    def __post_init__(self) -> None:
        super().__post_init__()
        check_option("inference", self.inference, tuple(INFERENCES))
        check_flag("evidence", self.evidence)

    @property
    def _gcn(self) -> GCN:
        """The architecture and training options of the node network and of the encoder."""
        return backbone(self, self.max_epochs, self.patience)

    def _train(self, task: Task, seeds: Seeds, log: Log) -> FittedSPN:
        gcn = self._gcn
        node = gcn.train_weights(task, seeds, "nodes", log)
        logits = check_logits(all_logits(gcn.forward, task, task.x, node), self.learning_rate, MAX_POTENTIAL)
        log_node, edges = logits.log_softmax(1), labeled_edges(task)
        weights = {f"node/{name}": weight for name, weight in node.items()}
        sharpness, pairwise = 0.0, log_node.new_zeros(task.edge_index.shape[1], task.num_classes, task.num_classes)
        if edges.train.numel() and edges.val.numel():
            edge = self._train_edges(task, edges, seeds, log)
            sharpness, pairwise = choose_sharpness(task, log_node, self._edge_logits(task, edge))
            weights |= {f"edge/{name}": weight for name, weight in edge.items()}
        return FittedSPN(
            self,
            weights,
            log.history(),
            unary=log_node,
            edge_index=task.edge_index,
            known=task.train,
            known_labels=task.labels[task.train],
            pairwise=pairwise,
            sharpness=log_node.new_tensor(sharpness),
        )

    def _train_edges(self, task: Task, edges: "LabeledEdges", seeds: Seeds, log: Log) -> Weights:
        """Train the edge network by cross-entropy of pairs of labels, and return the weights of the best epoch."""
        draw = Initializer(generator(seeds.initialization, "spn edges"), task.dtype, task.device)
        weights = self._gcn.initial_weights(task.num_features, self.hidden, draw) | {
            "weight_3": draw.glorot(2 * self.hidden, self.hidden),
            "bias_3": draw.zeros(self.hidden),
            "weight_4": draw.glorot(self.hidden, task.num_classes**2),
            "bias_4": draw.zeros(task.num_classes**2),
        }
        dropout = Dropout(self.dropout, dropout_key(seeds.dropout, "spn edges"))
        network = _EdgeNetwork(self._gcn, task, edges, dropout)
        train, val = (pairs_of_labels(task, pairs) for pairs in edges)
        loop = TrainingLoop(
            trainable_copies(weights),
            network,
            lambda logits: cross_entropy(logits, train),
            val,
            lambda trained: adam(trained, self.learning_rate, self.weight_decay),
        )
        return loop.run(Phase("edges", self.max_epochs, self.patience), log)

    def _edge_logits(self, task: Task, weights: Weights) -> Float[Tensor, "edges classes classes"]:
        """Compute the logits of all edges, without dropout."""
        with torch.no_grad():
            encoded = all_logits(self._gcn.forward, task, task.x, weights)
            chunks = [pair_logits(weights, encoded, edges) for edges in task.edge_index.split(CHUNK_EDGES, dim=1)]
        pairs = check_logits(torch.cat(chunks).flatten(1), self.learning_rate, MAX_POTENTIAL, "edge")
        return pairs.view(-1, task.num_classes, task.num_classes)


class LabeledEdges(NamedTuple):
    """Edges between training nodes, and edges between labeled nodes of which at least one is a validation node."""

    train: Int[Tensor, "2 train"]
    val: Int[Tensor, "2 val"]


def labeled_edges(task: Task) -> LabeledEdges:
    """Return the edges whose ends both are training or validation nodes."""
    is_train, is_val = torch.zeros(2, task.num_nodes, dtype=torch.bool, device=task.device)
    is_train[task.train], is_val[task.val] = True, True
    both_train, any_val = is_train[task.edge_index].all(0), is_val[task.edge_index].any(0)
    both_labeled = (is_train | is_val)[task.edge_index].all(0)
    return LabeledEdges(task.edge_index[:, both_train], task.edge_index[:, both_labeled & any_val])


def pairs_of_labels(task: Task, edges: Int[Tensor, "2 edges"]) -> Int[Tensor, " edges"]:
    """Return C y_i + y_j of each edge, its entry in a flattened matrix (C, C)."""
    labels = task.labels[edges]
    return task.num_classes * labels[0] + labels[1]


def pair_logits(
    weights: Weights, encoded: Float[Tensor, "nodes hidden"], edges: Int[Tensor, "2 edges"]
) -> Float[Tensor, "edges classes classes"]:
    """Compute (f(u_i, u_j) + f(u_j, u_i)ᵀ) / 2 with f(u, v) = ReLU(u W₃ + v W₃' + b₃) W₄ + b₄."""
    first, second = (encoded @ half for half in weights["weight_3"].chunk(2))
    classes = math.isqrt(len(weights["bias_4"]))

    def perceptron(start: Tensor, end: Tensor) -> Tensor:
        hidden = (first[start] + second[end] + weights["bias_3"]).relu()
        return (hidden @ weights["weight_4"] + weights["bias_4"]).view(-1, classes, classes)

    there, back = perceptron(edges[0], edges[1]), perceptron(edges[1], edges[0])
    return (there + back.transpose(1, 2)) / 2


def pair_potentials(
    logits: Float[Tensor, "edges classes classes"], sharpness: float
) -> Float[Tensor, "edges classes classes"]:
    """Compute θ_ij = log τ_ij - log Σ_m τ_ij(·, m) - log Σ_l τ_ij(l, ·) with τ_ij = softmax(γ z_ij)."""
    log_pairs = (sharpness * logits).flatten(1).log_softmax(1).view_as(logits)
    log_start, log_end = log_pairs.logsumexp(2, keepdim=True), log_pairs.logsumexp(1, keepdim=True)
    return log_pairs - log_start - log_end


def choose_sharpness(
    task: Task, log_node: Float[Tensor, "nodes classes"], logits: Float[Tensor, "edges classes classes"]
) -> tuple[float, Float[Tensor, "edges classes classes"]]:
    """Return the sharpness γ, raised as long as the validation NLL of sum-product decreases, and the potentials."""
    evidence = dict(zip(task.train.tolist(), task.labels[task.train].tolist(), strict=True))
    labels = task.labels[task.val]
    best, chosen, pairwise = float(cross_entropy(log_node[task.val], labels)), 0.0, torch.zeros_like(logits)
    for sharpness in SHARPNESS:
        potentials = pair_potentials(logits, sharpness)
        mrf = PairwiseMRF(log_node, task.edge_index, potentials, evidence=evidence)
        posterior, convergence = sum_product(mrf, max_sweeps=VALIDATION_SWEEPS, damping=0.0)
        nll = -float(posterior.node[task.val].log()[torch.arange(len(labels)), labels].mean())
        if not convergence or nll >= best:
            break
        best, chosen, pairwise = nll, sharpness, potentials
    return chosen, pairwise


class _EdgeNetwork:
    """The edge network on the labeled edges."""

    def __init__(self, encoder: GCN, task: Task, edges: LabeledEdges, dropout: Dropout):
        train, self.train_positions = edges.train.unique(return_inverse=True)
        val, self.val_positions = edges.val.unique(return_inverse=True)
        rows = TrainingRows(task, task.x, train.cpu().numpy(), encoder.hops, val.cpu().numpy())
        self._encoder = TrainingPass(encoder.forward, rows, dropout)

    def at(self, weights: Weights) -> "_EdgeLogits":
        """Return the logits for these weights."""
        return _EdgeLogits(self, weights, self._encoder.at(weights))


class _EdgeLogits(NamedTuple):
    """Logits of pairs of labels for fixed weights."""

    network: _EdgeNetwork
    weights: Weights
    encoded: TrainingLogits

    def with_dropout(self) -> Float[Tensor, "train pairs"]:
        """Compute the logits of the edges in the objective, with new dropout masks."""
        return pair_logits(self.weights, self.encoded.with_dropout(), self.network.train_positions).flatten(1)

    def validation(self) -> Float[Tensor, "val pairs"]:
        """Compute the logits of the validation edges, without dropout."""
        return pair_logits(self.weights, self.encoded.validation(), self.network.val_positions).flatten(1)
