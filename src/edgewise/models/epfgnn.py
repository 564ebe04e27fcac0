"""EPFGNN: a pairwise MRF with a GCN's logits as unary potentials (Wang, Shen, Cremers 2021)."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from edgewise.inference import PairwiseMRF
from edgewise.inference.mrf import MAX_POTENTIAL
from edgewise.kernels.dropout import Dropout
from edgewise.kernels.stars import Stars, piecewise_loss
from edgewise.models.fitted_mrf import INFERENCES, FittedMRF, Inference
from edgewise.models.gcn import backbone
from edgewise.models.graph_pass import TrainingPass, TrainingRows
from edgewise.models.model import Model
from edgewise.models.seeds import Seeds, Weights, dropout_key, generator
from edgewise.models.task import Task
from edgewise.models.training import (
    Epoch,
    Log,
    adam,
    check_logits,
    copy_weights,
    nll_and_accuracy,
    trainable_copies,
    update_weights,
)
from edgewise.posterior import Posterior
from edgewise.suggestions import suggest_keywords
from edgewise.validation import check_flag, check_option

SCHEDULES = ("backbone", "published")

Schedule = Literal["backbone", "published"]


@dataclass(frozen=True, eq=False, repr=False)
class FittedEPFGNN(FittedMRF):
    """A fitted EPFGNN: a pairwise MRF, and the labels of the training nodes.

    Attributes
    ----------
    unary
        Unary potentials U (N, C): the logits of the GCN.
    edge_index
        Edges (2, E), each undirected edge once.
    edge_scale
        Scale r (E,) of the coupling of each edge.
    coupling
        Coupling matrix B (C, C), symmetric.
    known
        The training nodes.
    known_labels
        Labels of the training nodes.
    """

    model: "EPFGNN"
    edge_scale: Float[Tensor, " edges"]
    coupling: Float[Tensor, "classes classes"]

    parts = ("unary", "edge_index", "edge_scale", "coupling", "known", "known_labels")

    def __repr__(self) -> str:
        return f"{super().__repr__()[:-1]}, is_coupled={self.is_coupled})"

    @property
    def is_coupled(self) -> bool:
        """Whether the couplings are non-zero. If EM did not improve on its backbone, all edge joints are products."""
        return bool(self.edge_scale.any())

    def mrf(self, evidence: bool = True) -> PairwiseMRF:
        """Return the MRF, with or without the training nodes clamped to their labels."""
        known = self._evidence(evidence)
        return PairwiseMRF(self.unary, self.edge_index, self.coupling, edge_scale=self.edge_scale, evidence=known)

    def predictions(self) -> dict[str, Callable[[], Posterior]]:
        """Return mean field and sum-product predictions; with the published schedule, names begin with "published_"."""
        prefix = "published_" if self.model.schedule == "published" else ""
        return {
            f"{prefix}mean_field": lambda: self.posterior("mean_field"),
            f"{prefix}sum_product": lambda: self.posterior("sum_product"),
        }


@suggest_keywords
@dataclass(frozen=True, kw_only=True)
class EPFGNN(Model[FittedEPFGNN]):
    """Pairwise MRF P(y) ∝ exp(Σ_i U_i(y_i) + Σ_ij r_ij B(y_i, y_j)) with the logits U of a GCN.

    B is one symmetric matrix, and r_ij one scale per edge. The model is trained by expectation maximization: M steps
    maximize the expected piecewise log-likelihood, and each E step is one parallel mean-field sweep.

    Parameters
    ----------
    hidden
        Number of hidden units of the GCN.
    dropout
        Dropout probability of the hidden units.
    learning_rate
        Learning rate of Adam.
    weight_decay
        Weight decay of Adam, on all parameters.
    pretrain_epochs
        Maximum number of epochs of pretraining the GCN.
    pretrain_patience
        Stop pretraining after this many epochs without an improvement of validation accuracy or NLL.
    rounds
        Maximum number of EM rounds.
    round_patience
        Stop EM after this many rounds without a higher validation accuracy.
    steps
        Maximum number of gradient steps of an M step.
    step_patience
        Stop an M step after this many gradient steps without a higher validation accuracy.
    schedule
        "backbone": EM is kept only if its validation accuracy exceeds that of the pretrained GCN; otherwise the result
        is the GCN without couplings. "published": EM is always kept, and can end below the pretrained GCN.
    inference
        Default inference of the posterior: "sum_product", "max_product" or "mean_field".
    evidence
        Whether the posterior clamps training nodes to their labels by default.

    Examples
    --------
    >>> import edgewise as ew
    >>> data = ew.load_dataset("cora")
    >>> split = ew.make_splits(data.y)[0]
    >>> fitted = EPFGNN(pretrain_epochs=2, rounds=1, steps=2).fit(data, split, seed=0)
    >>> fitted.posterior()
    PairwisePosterior(nodes=2708, classes=7, edges=5278)
    """

    hidden: int = 64
    dropout: float = 0.5
    learning_rate: float = 0.01
    weight_decay: float = 5e-4
    pretrain_epochs: int = 200
    pretrain_patience: int = 50
    rounds: int = 100
    round_patience: int = 5
    steps: int = 50
    step_patience: int = 10
    schedule: Schedule = "backbone"
    inference: Inference = "sum_product"
    evidence: bool = True

    name = "epfgnn"
    fitted = FittedEPFGNN

    def __post_init__(self) -> None:
        super().__post_init__()
        check_option("schedule", self.schedule, SCHEDULES)
        check_option("inference", self.inference, tuple(INFERENCES))
        check_flag("evidence", self.evidence)

    def _train(self, task: Task, seeds: Seeds, log: Log) -> FittedEPFGNN:
        gcn = backbone(self, self.pretrain_epochs, self.pretrain_patience)
        pretrained = gcn.train_weights(task, seeds, "pretraining", log)
        draws = generator(seeds.initialization, "epfgnn")
        classes = task.num_classes
        noise = torch.randn(classes, classes, generator=draws, dtype=torch.float64)
        start = pretrained | {
            "coupling": ((noise + torch.eye(classes)) / classes).to(task.device, task.dtype),
            "edge_scale": torch.zeros(task.edge_index.shape[1], dtype=task.dtype, device=task.device),
        }
        dropout = Dropout(self.dropout, dropout_key(seeds.dropout, "epfgnn"))
        rows = TrainingRows(task, task.x, task.all_nodes, gcn.hops)
        em = _ExpectationMaximization(self, task, TrainingPass(gcn.forward, rows, dropout), log)
        kept_before = log.kept
        fitted = self._fitted(task, em, em.run(start), log)
        if self.schedule == "backbone" and fitted.is_coupled:
            # EM selects weights by mean-field accuracy. Check the accuracy of the chosen inference too.
            fallback = self._fitted(task, em, start, log)
            if _val_accuracy(fitted, task) < _val_accuracy(fallback, task):
                return replace(fallback, history=replace(fallback.history, kept=kept_before))
        return fitted

    def _fitted(self, task: Task, em: "_ExpectationMaximization", weights: Weights, log: Log) -> FittedEPFGNN:
        return FittedEPFGNN(
            self,
            weights,
            log.history(),
            unary=check_logits(em.unary(weights), self.learning_rate, MAX_POTENTIAL),
            edge_index=task.edge_index,
            edge_scale=weights["edge_scale"],
            coupling=_symmetric(weights["coupling"]),
            known=task.train,
            known_labels=task.labels[task.train],
        )


def _val_accuracy(fitted: FittedEPFGNN, task: Task) -> float:
    marginals = fitted.infer()[0].node[task.val]
    return float((marginals.argmax(1) == task.labels[task.val]).double().mean())


class _ExpectationMaximization:
    """Expectation maximization for one task."""

    def __init__(self, model: EPFGNN, task: Task, network: TrainingPass, log: Log):
        self._model, self._task, self._network, self._log = model, task, network, log
        self._stars = Stars(task.edge_index, task.num_nodes)
        self._labels = task.labels[task.val]
        self._val_neighbors = _incident_edges(task.val, task.edge_index, task.num_nodes)

    def unary(self, weights: Weights) -> Float[Tensor, "nodes classes"]:
        """Compute the unary potentials of all nodes, without dropout."""
        with torch.no_grad():
            return self._network.at(weights).without_dropout()

    def run(self, weights: Weights) -> Weights:
        """Alternate M and E steps until the validation accuracy stops rising, and return the best weights."""
        model = self._model
        weights = trainable_copies(weights)
        optimizer = adam(weights, model.learning_rate, model.weight_decay)
        unary = self.unary(weights)
        backbone, q = nll_and_accuracy(unary[self._task.val], self._labels)[1], self._task.clamp(unary.softmax(1))
        best = 0.0 if model.schedule == "published" else backbone
        kept, waited = copy_weights(weights), 0
        for _ in range(model.rounds):
            best_step = self._maximize(weights, optimizer, q)
            q, accuracy = self._expect(weights, q)
            waited = 0 if accuracy > best else waited + 1
            if accuracy > best:
                best, kept, self._log.kept = accuracy, copy_weights(weights), best_step
            if waited >= model.round_patience:
                break
        return kept

    def _maximize(self, weights: Weights, optimizer: torch.optim.Adam, q: Tensor) -> int:
        """M step: raise the piecewise likelihood, then restore the step with the highest E-step validation accuracy."""
        # Deviation: the published code carries the best step over between rounds. On Cora this makes no difference.
        best, best_step, waited, snapshot = -1.0, 0, 0, _copy_state(weights, optimizer)
        logits = self._network.at(weights)
        for step in range(self._model.steps):
            unary, coupling = logits.with_dropout(), _symmetric(weights["coupling"])
            loss = piecewise_loss(unary, weights["edge_scale"], coupling, q, self._stars)
            update_weights(optimizer, loss)
            logits = self._network.at(weights)
            with torch.no_grad():
                val_logits = logits.validation() + self._val_neighbor_terms(weights, q)
                nll, accuracy = nll_and_accuracy(val_logits, self._labels)
            epoch = Epoch("EM", step + 1, self._model.steps, float(loss.detach()), nll, accuracy)
            self._log.add(epoch, self._model.learning_rate)
            waited = 0 if accuracy > best else waited + 1
            if accuracy > best:
                best, best_step, snapshot = accuracy, self._log.epochs, _copy_state(weights, optimizer)
            if waited >= self._model.step_patience:
                break
        _restore_state(weights, optimizer, snapshot)
        return best_step

    def _expect(self, weights: Weights, q: Tensor) -> tuple[Tensor, float]:
        """E step: one parallel mean-field sweep q_i ← softmax(U_i + Σ_j r_ij B q_j). Return q and its val accuracy."""
        with torch.no_grad():
            logits = self.unary(weights) + self._neighbor_terms(weights, q)
            return self._task.clamp(logits.softmax(1)), nll_and_accuracy(logits[self._task.val], self._labels)[1]

    def _neighbor_terms(self, weights: Weights, q: Tensor) -> Float[Tensor, "nodes classes"]:
        """Compute Σ_j r_ij B q_j."""
        scale, (start, end) = weights["edge_scale"].detach().unsqueeze(1), self._task.edge_index
        sums = torch.zeros_like(q).index_add(0, start, scale * q[end]).index_add(0, end, scale * q[start])
        return sums @ _symmetric(weights["coupling"].detach())

    def _val_neighbor_terms(self, weights: Weights, q: Tensor) -> Float[Tensor, "val classes"]:
        """Compute Σ_j r_ij B q_j for the validation nodes."""
        target, source, edge = self._val_neighbors
        messages = weights["edge_scale"].detach()[edge].unsqueeze(1) * q[source]
        sums = q.new_zeros(len(self._labels), q.shape[1]).index_add(0, target, messages)
        return sums @ _symmetric(weights["coupling"].detach())


def _copy_state(weights: Weights, optimizer: torch.optim.Adam) -> tuple[Weights, dict[str, Any]]:
    """Copy the weights, and the running means of Adam."""
    return copy_weights(weights), deepcopy(optimizer.state_dict())


def _restore_state(weights: Weights, optimizer: torch.optim.Adam, state: tuple[Weights, dict[str, Any]]) -> None:
    with torch.no_grad():
        for name, copied in state[0].items():
            weights[name].copy_(copied)
    optimizer.load_state_dict(deepcopy(state[1]))  # the optimizer would change the tensors of the state


def _incident_edges(
    nodes: Int[Tensor, " some"], edge_index: Int[Tensor, "2 edges"], num_nodes: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return, for each edge incident to one of the nodes: the node's position, its neighbor, and the edge's index."""
    position = torch.full((num_nodes,), -1, device=nodes.device)
    position[nodes] = torch.arange(len(nodes), device=nodes.device)
    target, source = torch.cat([edge_index, edge_index.flip(0)], dim=1)
    incident = position[target] >= 0
    return position[target[incident]], source[incident], incident.nonzero().squeeze(1) % edge_index.shape[1]


def _symmetric(matrix: Float[Tensor, "classes classes"]) -> Float[Tensor, "classes classes"]:
    return (matrix + matrix.T) / 2
