"""Reference inference that sums over all labelings of a Markov random field."""

import itertools
import math

import numpy as np


def score(labels, unary, edges, couplings):
    """Compute Σ_i U_i(y_i) + Σ_e T_e(y_i, y_j), with one coupling per edge."""
    terms = [unary[i][label] for i, label in enumerate(labels)]
    terms += [coupling[labels[i]][labels[j]] for (i, j), coupling in zip(edges, couplings, strict=True)]
    return math.fsum(terms) if -math.inf not in terms else -math.inf


class Enumeration:
    """All labelings that are consistent with the evidence, and their probabilities."""

    def __init__(self, unary, edges, couplings, evidence=None):
        self.num_nodes, self.num_classes = len(unary), len(unary[0])
        observed = evidence or {}
        self.scores = {
            labels: score(labels, unary, edges, couplings)
            for labels in itertools.product(range(self.num_classes), repeat=self.num_nodes)
            if all(labels[node] == label for node, label in observed.items())
        }
        self.best = max(self.scores.values())
        weights = {labels: math.exp(value - self.best) for labels, value in self.scores.items()}
        total = math.fsum(weights.values())
        self.log_z = self.best + math.log(total)
        self.probability = {labels: weight / total for labels, weight in weights.items()}

    def joint(self, nodes):
        """Return the joint distribution of some nodes, one dimension per node."""
        table = np.zeros((self.num_classes,) * len(nodes))
        for labels, probability in self.probability.items():
            table[tuple(labels[node] for node in nodes)] += probability
        return table

    def nodes(self):
        return np.stack([self.joint([node]) for node in range(self.num_nodes)])

    def edges(self, edges):
        return np.stack([self.joint(edge) for edge in edges])

    def most_likely(self):
        return list(max(self.scores, key=self.scores.get))

    def max_joint(self, nodes):
        """Return max P(y) over labelings with given labels of some nodes, normalized over these labels."""
        table = np.zeros((self.num_classes,) * len(nodes))
        for labels, value in self.scores.items():
            index = tuple(labels[node] for node in nodes)
            table[index] = max(table[index], math.exp(value - self.best))
        return table / table.sum()

    def max_nodes(self):
        return np.stack([self.max_joint([node]) for node in range(self.num_nodes)])
