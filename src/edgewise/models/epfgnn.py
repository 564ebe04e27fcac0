"""EPFGNN: a pairwise field whose unaries are a GCN's logits (Wang, Shen, Cremers 2021)."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from edgewise.inference import Convergence, PairwiseMRF, max_product, mean_field, sum_product
from edgewise.inference.mrf import LARGEST
from edgewise.kernels.adam import Adam, Steps, Weights
from edgewise.kernels.dropout import NO_DROPOUT, Dropout
from edgewise.kernels.stars import Field, piecewise_loss
from edgewise.models.fitted import Fitted
from edgewise.models.gcn import Convolution, backbone_trained
from edgewise.models.model import Model
from edgewise.models.seeds import Seeds, dropout_key, generator
from edgewise.models.task import Task
from edgewise.models.training import Epoch, Log, Phase, checked_logits, copied, scores
from edgewise.posterior import Posterior
from edgewise.validation import check_option

SCHEDULES = ("backbone", "published")
INFERENCES = {"sum_product": sum_product, "max_product": max_product, "mean_field": mean_field}

Schedule = Literal["backbone", "published"]
Inference = Literal["sum_product", "max_product", "mean_field"]


@dataclass(frozen=True, eq=False, repr=False)
class FittedEPFGNN(Fitted):
    """A pairwise field, and the labels of the training nodes.

    Attributes
    ----------
    unary
        U (N, C), a GCN's logits.
    edge_index
        Edges (2, E), each undirected edge once.
    edge_scale
        r (E,), a factor of the coupling of each edge.
    coupling
        B (C, C), symmetric.
    known
        The training nodes.
    known_labels
        Their labels.
    """

    model: "EPFGNN"
    unary: Float[Tensor, "nodes classes"]
    edge_index: Int[Tensor, "2 edges"]
    edge_scale: Float[Tensor, " edges"]
    coupling: Float[Tensor, "classes classes"]
    known: Int[Tensor, " train"]
    known_labels: Int[Tensor, " train"]

    parts = ("unary", "edge_index", "edge_scale", "coupling", "known", "known_labels")

    def __repr__(self) -> str:
        return f"{super().__repr__()[:-1]}, is_coupled={self.is_coupled})"

    @property
    def is_coupled(self) -> bool:
        """Whether EM beat its backbone and learnt a coupling; if not, the joint of an edge is a product."""
        return bool(self.edge_scale.any())

    def mrf(self, evidence: bool = True) -> PairwiseMRF:
        """Give the field, with training nodes clamped to their labels or without."""
        labels = dict(zip(self.known.tolist(), self.known_labels.tolist(), strict=True)) if evidence else {}
        return PairwiseMRF(self.unary, self.edge_index, self.coupling, edge_scale=self.edge_scale, evidence=labels)

    def infer(self, inference: Inference | None = None, evidence: bool | None = None) -> tuple[Posterior, Convergence]:
        """Give the posterior, and whether inference converged; arguments as in `posterior`, which warns instead."""
        chosen = self.model.inference if inference is None else inference
        check_option("inference", chosen, tuple(INFERENCES))
        clamped = self.model.evidence if evidence is None else evidence
        _check_evidence(clamped)
        return INFERENCES[chosen](self.mrf(clamped))

    def posterior(self, inference: Inference | None = None, evidence: bool | None = None) -> Posterior:
        """Give what the field says of nodes and edges: by sum-product with exact evidence, unless told otherwise.

        Messages run until they rest, for 1000 sweeps at most; to say otherwise call
        ``ew.sum_product(fitted.mrf(), max_sweeps=…, damping=…)``.

        Parameters
        ----------
        inference
            By "sum_product", "max_product" or "mean_field"; by default as the model says.
        evidence
            Whether training nodes have their labels for sure; without, these are left out, as an ablation. By default
            as the model says.
        """
        posterior, convergence = self.infer(inference, evidence)
        if not convergence:
            warnings.warn(f"Inference of {self.model.name}: {convergence.advice}", stacklevel=2)
        return posterior

    def predictions(self) -> dict[str, Callable[[], Posterior]]:
        """Return mean field and sum-product; their names tell a published schedule from ours."""
        prefix = "published_" if self.model.schedule == "published" else ""
        return {
            f"{prefix}mean_field": lambda: self.posterior("mean_field"),
            f"{prefix}sum_product": lambda: self.posterior("sum_product"),
        }


@dataclass(frozen=True, kw_only=True)
class EPFGNN(Model[FittedEPFGNN]):
    """P(y) ∝ exp(Σ_i U_i(y_i) + Σ_ij r_ij B(y_i, y_j)): U a GCN's logits, B one matrix, r one scale for each edge.

    Trained by expectation maximisation: M steps raise the piecewise likelihood of the expected labels, E steps are one
    sweep of mean field.

    Parameters
    ----------
    hidden
        Hidden units of the GCN.
    dropout
        The share of hidden units that is dropped in each training pass.
    learning_rate
        Of Adam.
    weight_decay
        Of Adam, on all parameters.
    pretrain_epochs
        Stop training the GCN alone after so many epochs.
    pretrain_patience
        Stop it when neither accuracy nor NLL on validation has improved for so many epochs.
    rounds
        Stop EM after so many rounds.
    round_patience
        Stop it when the accuracy on validation has not risen for so many rounds.
    steps
        Stop an M step after so many gradient steps.
    step_patience
        Stop it when the accuracy on validation has not risen for so many steps.
    schedule
        What EM has to beat: "backbone", the validation accuracy of the pretrained GCN, which stays, without a coupling,
        if EM does not; or "published", nothing, so that EM may end below its backbone.
    inference
        How a fitted value's posterior is inferred by default: by "sum_product", "max_product" or "mean_field".
    evidence
        Whether that posterior is sure of the labels of training nodes by default.

    Examples
    --------
    >>> import edgewise as ew
    >>> data = ew.load_dataset("cora")
    >>> split = ew.make_splits(data.y)[0]
    >>> fitted = EPFGNN(pretrain_epochs=2, rounds=1, steps=2).fit(data, split, seed=0)
    >>> fitted.posterior()
    PairwisePosterior(nodes=2708, classes=7, edges=5278)
    """

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
        _check_evidence(self.evidence)

    def _trained(self, task: Task, seeds: Seeds, log: Log) -> FittedEPFGNN:
        pretraining = Phase("pretraining", self.pretrain_epochs, self.pretrain_patience)
        adam = Adam(self.learning_rate, self.weight_decay)
        backbone = backbone_trained(task, self.hidden, self.dropout, seeds, pretraining, adam, log)
        draws = generator(seeds.initialisation, "epfgnn")
        classes = task.num_classes
        noise = torch.randn(classes, classes, generator=draws, dtype=torch.float64)
        start = backbone | {
            "coupling": ((noise + torch.eye(classes)) / classes).to(task.device, task.dtype),
            "edge_scale": torch.zeros(task.edge_index.shape[1], dtype=task.dtype, device=task.device),
        }
        em = _Maximisation(self, task, Dropout(self.dropout, dropout_key(seeds.dropout, "epfgnn")), log)
        pretrained = log.kept
        found = self._fitted(task, em, em.run(start), log)
        if self.schedule == "backbone" and found.is_coupled:
            # E steps chose by mean field; what is asked for may be another inference, so it has the last word.
            fallback = self._fitted(task, em, start, log)
            if _accuracy(found, task) < _accuracy(fallback, task):
                return replace(fallback, history=replace(fallback.history, kept=pretrained))
        return found

    def _fitted(self, task: Task, em: "_Maximisation", weights: Weights, log: Log) -> FittedEPFGNN:
        return FittedEPFGNN(
            self,
            weights,
            log.history(),
            checked_logits(em.unary(weights), self.learning_rate, LARGEST),
            task.edge_index,
            weights["edge_scale"],
            _symmetric(weights["coupling"]),
            task.train,
            task.labels[task.train],
        )


def _check_evidence(evidence: object) -> None:
    if not isinstance(evidence, bool):
        raise ValueError(f"Expected evidence to be True or False, but got {evidence!r}.")


def _accuracy(fitted: FittedEPFGNN, task: Task) -> float:
    belief = fitted.infer()[0].node[task.val]
    return float((belief.argmax(1) == task.labels[task.val]).double().mean())


def _symmetric(matrix: Float[Tensor, "classes classes"]) -> Float[Tensor, "classes classes"]:
    return (matrix + matrix.T) / 2


def _incident(nodes: Int[Tensor, " some"], field: Field, num_nodes: int) -> tuple[Tensor, Tensor, Tensor]:
    """Give the edges at some nodes: the place of the node among them, its neighbour, and the number of the edge."""
    place = torch.full((num_nodes,), -1, device=nodes.device)
    place[nodes] = torch.arange(len(nodes), device=nodes.device)
    here, there = torch.cat([field.start, field.end]), torch.cat([field.end, field.start])
    chosen = place[here] >= 0
    return place[here[chosen]], there[chosen], chosen.nonzero().squeeze(1) % len(field.start)


class _Maximisation:
    """Expectation maximisation on one task."""

    def __init__(self, model: EPFGNN, task: Task, dropout: Dropout, log: Log):
        self._model, self._task, self._dropout, self._log = model, task, dropout, log
        self._convolution = Convolution(task, task.x, task.all_nodes, task.val.cpu().numpy())
        self._field = Field(task.edge_index, task.num_nodes)
        self._labels = task.labels[task.val]
        self._around_validation = _incident(task.val, self._field, task.num_nodes)
        self._draw = 0

    def unary(self, weights: Weights) -> Float[Tensor, "nodes classes"]:
        """Compute the logits of all nodes without dropout."""
        with torch.no_grad():
            hidden = self._convolution.hidden(weights)
            return self._convolution.learnt_logits(weights, hidden, NO_DROPOUT, 0)

    def run(self, weights: Weights) -> Weights:
        """Alternate until the validation accuracy stays where it is; give the weights with the best."""
        model = self._model
        weights = {name: weight.detach().clone().requires_grad_() for name, weight in weights.items()}
        steps = Adam(model.learning_rate, model.weight_decay).over(weights)
        q = self._task.clamp(self.unary(weights).softmax(1))
        backbone = scores(self.unary(weights)[self._task.val], self._labels)[1]
        best = 0.0 if model.schedule == "published" else backbone
        kept, waited = copied(weights), 0
        for _ in range(model.rounds):
            best_step = self._maximise(weights, steps, q)
            q, accuracy = self._expect(weights, q)
            waited = 0 if accuracy > best else waited + 1
            if accuracy > best:
                best, kept, self._log.kept = accuracy, copied(weights), best_step
            if waited >= model.round_patience:
                break
        return kept

    def _maximise(self, weights: Weights, steps: Steps, q: Tensor) -> int:
        """M step: climb the piecewise likelihood, and go back to the step whose E step would be most accurate."""
        # The published code carries the best step over from round to round; on Cora that makes no difference.
        best, best_step, waited, moment = -1.0, 0, 0, steps.moment()
        hidden = self._convolution.hidden(weights)
        for step in range(self._model.steps):
            unary = self._convolution.learnt_logits(weights, hidden, self._dropout, self._draw)
            coupling = _symmetric(weights["coupling"])
            loss = piecewise_loss(unary, weights["edge_scale"], coupling, q, self._field)
            steps.take(loss)
            self._draw += 1
            hidden = self._convolution.hidden(weights)
            with torch.no_grad():
                logits = self._convolution.validated_logits(weights, hidden) + self._pull_on_validation(weights, q)
                nll, accuracy = scores(logits, self._labels)
            epoch = Epoch("EM", step + 1, self._model.steps, float(loss.detach()), nll, accuracy)
            self._log.write(epoch, self._model.learning_rate)
            waited = 0 if accuracy > best else waited + 1
            if accuracy > best:
                best, best_step, moment = accuracy, self._log.epochs, steps.moment()
            if waited >= self._model.step_patience:
                break
        steps.return_to(moment)
        return best_step

    def _expect(self, weights: Weights, q: Tensor) -> tuple[Tensor, float]:
        """E step: one parallel sweep of mean field, q_i ← softmax(U_i + Σ_j r_ij B q_j)."""
        with torch.no_grad():
            logits = self.unary(weights) + self._pull(weights, q)
            return self._task.clamp(logits.softmax(1)), scores(logits[self._task.val], self._labels)[1]

    def _pull(self, weights: Weights, q: Tensor) -> Float[Tensor, "nodes classes"]:
        """Σ_j r_ij B q_j."""
        scale, (start, end) = weights["edge_scale"].detach().unsqueeze(1), (self._field.start, self._field.end)
        around = torch.zeros_like(q).index_add(0, start, scale * q[end]).index_add(0, end, scale * q[start])
        return around @ _symmetric(weights["coupling"].detach())

    def _pull_on_validation(self, weights: Weights, q: Tensor) -> Float[Tensor, "val classes"]:
        """Do the same for validation nodes only."""
        at, neighbour, edge = self._around_validation
        told = weights["edge_scale"].detach()[edge].unsqueeze(1) * q[neighbour]
        around = q.new_zeros(len(self._labels), q.shape[1]).index_add(0, at, told)
        return around @ _symmetric(weights["coupling"].detach())
