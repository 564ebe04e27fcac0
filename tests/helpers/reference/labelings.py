"""Reference posterior of a synthetic graph that sums over all labelings."""

import itertools

import numpy as np
from scipy.stats import norm


def log_probability(graph, labels):
    """Compute log p(labels, x, graph) pair by pair from the parameters, up to a constant independent of labels."""
    labels = list(labels)
    x, means = graph.data.x.double().numpy(), graph.feature_means.numpy()
    total = sum(norm.logpdf(x[i], means[label], graph.feature_noise).sum() for i, label in enumerate(labels))
    edges = set(map(tuple, graph.edge_index.T.tolist()))
    coupling = graph.coupling.numpy()
    if graph.kind == "mrf":
        return total + sum(coupling[labels[i], labels[j]] for i, j in edges)
    weight = graph.field.weight.numpy()
    rate = np.exp(coupling) / np.exp(coupling).mean() * graph.average_degree / len(labels)
    for i, j in itertools.combinations(range(len(labels)), 2):
        expected = weight[i] * weight[j] * rate[labels[i], labels[j]]
        total += np.log(1.0 - np.exp(-expected)) if (i, j) in edges else -expected
    return total


class LabelPosterior:
    """p(y | x, graph, evidence) of all labelings."""

    def __init__(self, graph, observed=()):
        self.num_classes, y = len(graph.coupling), graph.data.y.tolist()
        all_labelings = itertools.product(range(self.num_classes), repeat=len(y))
        self.labelings = np.array([labels for labels in all_labelings if all(labels[i] == y[i] for i in observed)])
        log_p = np.array([log_probability(graph, labels) for labels in self.labelings])
        p = np.exp(log_p - log_p.max())
        self.probability = p / p.sum()

    def joint(self, i, j):
        table = np.zeros((self.num_classes, self.num_classes))
        np.add.at(table, (self.labelings[:, i], self.labelings[:, j]), self.probability)
        return table

    def joints(self, edge_index):
        return np.stack([self.joint(i, j) for i, j in edge_index.T.tolist()])

    def nodes(self):
        return np.stack([np.diagonal(self.joint(i, i)) for i in range(self.labelings.shape[1])])
