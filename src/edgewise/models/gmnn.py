"""GMNN: one network predicts labels from features, another from the neighbors' labels (Qu, Bengio, Tang 2019)."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import cross_entropy, one_hot

from edgewise.kernels.dropout import Dropout
from edgewise.models.fitted import Fitted
from edgewise.models.gcn import GCN, backbone
from edgewise.models.graph_pass import TrainingPass, TrainingRows, all_logits
from edgewise.models.model import Model
from edgewise.models.seeds import Initializer, Seeds, Weights, dropout_key, generator
from edgewise.models.task import Task
from edgewise.models.training import Log, Phase, TrainingLoop, check_logits, trainable_copies
from edgewise.posterior import IndependentPosterior, MixturePosterior, Posterior
from edgewise.suggestions import suggest_keywords
from edgewise.validation import check_option

PREDICTIONS = ("mixture", "averaged_logits")

Prediction = Literal["mixture", "averaged_logits"]


@dataclass(frozen=True, eq=False, repr=False)
class FittedGMNN(Fitted):
    """A fitted GMNN: predictions of the network p for label samples from the network q.

    Attributes
    ----------
    sample_logits
        Logits of p (S, N, C) for S samples of all labels.
    """

    model: "GMNN"
    sample_logits: Float[Tensor, "samples nodes classes"]

    parts = ("sample_logits",)

    def posterior(self, prediction: Prediction | None = None) -> MixturePosterior | IndependentPosterior:
        """Return the posterior of nodes and edges.

        Parameters
        ----------
        prediction
            "mixture" of the samples; or "averaged_logits", independent nodes with the softmax of the mean logits, as
            published. The default is the option of the model.
        """
        chosen = self.model.prediction if prediction is None else prediction
        check_option("prediction", chosen, PREDICTIONS)
        if chosen == "mixture":
            return MixturePosterior(self.sample_logits.softmax(-1))
        return IndependentPosterior(self.sample_logits.mean(0).softmax(-1))

    def predictions(self) -> dict[str, Callable[[], Posterior]]:
        """Return predictions by averaged logits, by the mixture, and by products of the mixture's node marginals."""
        return {
            "averaged_logits": lambda: self.posterior("averaged_logits"),
            "mixture_product": lambda: IndependentPosterior(self.posterior("mixture").node),
            "mixture": lambda: self.posterior("mixture"),
        }


@suggest_keywords
@dataclass(frozen=True, kw_only=True)
class GMNN(Model[FittedGMNN]):
    """Graph Markov neural network: a GCN q from features to labels and a GCN p from labels to labels, trained by EM.

    Parameters
    ----------
    hidden
        Number of hidden units of each GCN.
    dropout
        Dropout probability of the hidden units.
    learning_rate
        Learning rate of Adam.
    weight_decay
        Weight decay of Adam, on all parameters.
    pretrain_epochs
        Maximum number of epochs of pretraining q on the training nodes.
    pretrain_patience
        Stop pretraining after this many epochs without an improvement of validation accuracy or NLL.
    rounds
        Number of EM rounds: an M step trains p on all nodes, then an E step trains q on all nodes.
    round_epochs
        Number of epochs of each M step and each E step.
    samples
        Number of label samples from q that are passed to p for prediction.
    prediction
        The default posterior: "mixture", with edge joints Σ_s p_s(y_i) p_s(y_j) / S over the S samples; or
        "averaged_logits", with products.

    Examples
    --------
    >>> import edgewise as ew
    >>> data = ew.load_dataset("cora")
    >>> split = ew.make_splits(data.y)[0]
    >>> fitted = GMNN(pretrain_epochs=2, round_epochs=2, samples=4).fit(data, split, seed=0)
    >>> fitted.posterior(), fitted.posterior("averaged_logits")
    (MixturePosterior(nodes=2708, classes=7), IndependentPosterior(nodes=2708, classes=7))
    """

    hidden: int = 64
    dropout: float = 0.5
    learning_rate: float = 0.01
    weight_decay: float = 5e-4
    pretrain_epochs: int = 200
    pretrain_patience: int = 50
    rounds: int = 1
    round_epochs: int = 100
    samples: int = 32
    prediction: Prediction = "mixture"

    name = "gmnn"
    fitted = FittedGMNN

    def __post_init__(self) -> None:
        super().__post_init__()
        check_option("prediction", self.prediction, PREDICTIONS)

    @property
    def _gcn(self) -> GCN:
        """The architecture and training options of q and p."""
        return backbone(self, self.pretrain_epochs, self.pretrain_patience)

    def _train(self, task: Task, seeds: Seeds, log: Log) -> FittedGMNN:
        gcn, draws = self._gcn, generator(seeds.sampling, "gmnn")
        q = gcn.train_weights(task, seeds, "pretraining", log)
        p_draw = Initializer(generator(seeds.initialization, "gmnn p"), task.dtype, task.device)
        p = gcn.initial_weights(task.num_classes, task.num_classes, p_draw)
        features = TrainingRows(task, task.x, task.all_nodes, gcn.hops)

        def train_step(weights: Weights, rows: TrainingRows, target: Tensor, step: str, k: int) -> Weights:
            dropout = Dropout(self.dropout, dropout_key(seeds.dropout, f"gmnn {step} {k}"))
            loss, phase = partial(cross_entropy, target=target), Phase(step, self.round_epochs, None)
            network = TrainingPass(gcn.forward, rows, dropout)
            loop = TrainingLoop(trainable_copies(weights), network, loss, task.labels[task.val], gcn.adam)
            return loop.run(phase, log)

        for k in range(self.rounds):
            labels = draw_labels(task, all_logits(gcn.forward, task, task.x, q), draws)
            p = train_step(p, TrainingRows(task, labels, task.all_nodes, gcn.hops), labels, "M step", k)
            target = task.clamp(all_logits(gcn.forward, task, labels, p).softmax(-1))
            q = train_step(q, features, target, "E step", k)
        samples = self._sample_logits(task, q, p, draws)
        weights = {f"{net}/{name}": part for net, parts in (("q", q), ("p", p)) for name, part in parts.items()}
        return FittedGMNN(self, weights, log.history(), samples)

    def _sample_logits(
        self, task: Task, q: Weights, p: Weights, draws: torch.Generator
    ) -> Float[Tensor, "samples nodes classes"]:
        """Compute the logits of p for samples of labels from q."""
        samples = torch.empty(self.samples, task.num_nodes, task.num_classes, dtype=task.dtype, device=task.device)
        forward = self._gcn.forward
        logits = all_logits(forward, task, task.x, q)
        for sample in samples:
            labels = draw_labels(task, logits, draws)
            sample.copy_(check_logits(all_logits(forward, task, labels, p), self.learning_rate))
        return samples


def draw_labels(task: Task, logits: Float[Tensor, "nodes classes"], draws: torch.Generator) -> Tensor:
    """Draw one-hot labels from softmax(logits); training nodes have their true labels."""
    chosen = draw_classes(logits.cpu().double().softmax(-1), draws).to(task.device)
    return task.clamp(one_hot(chosen, task.num_classes).to(task.dtype))


def draw_classes(probs: Float[Tensor, "nodes classes"], draws: torch.Generator) -> Int[Tensor, " nodes"]:
    """Draw one class per node by inverse transform sampling, with one uniform number per node."""
    uniform = torch.rand(len(probs), 1, dtype=probs.dtype, generator=draws)
    return (probs.cumsum(1)[:, :-1] <= uniform).sum(1)
