"""Inference by its definition: a loop over all labelings of a field. Slow, and for tests only."""

import itertools
import math

import numpy as np


def score(labels, unary, edges, couplings):
    """Σ_i U_i(y_i) + Σ_e T_e(y_i, y_j), with one coupling for each edge."""
    terms = [unary[i][label] for i, label in enumerate(labels)]
    terms += [coupling[labels[i]][labels[j]] for (i, j), coupling in zip(edges, couplings, strict=True)]
    return math.fsum(terms) if -math.inf not in terms else -math.inf


class Enumeration:
    """All labelings that agree with the evidence, and their probabilities."""

    def __init__(self, unary, edges, couplings, evidence=None):
        self.num_nodes, self.num_classes = len(unary), len(unary[0])
        known = evidence or {}
        self.scores = {
            labels: score(labels, unary, edges, couplings)
            for labels in itertools.product(range(self.num_classes), repeat=self.num_nodes)
            if all(labels[node] == label for node, label in known.items())
        }
        self.best = max(self.scores.values())
        weights = {labels: math.exp(value - self.best) for labels, value in self.scores.items()}
        total = math.fsum(weights.values())
        self.log_z = self.best + math.log(total)
        self.probability = {labels: weight / total for labels, weight in weights.items()}

    def joint(self, nodes):
        """P of the labels of some nodes, one dimension each."""
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
        """The probability of the best labeling in which some nodes have these labels, normalized over the labels."""
        table = np.zeros((self.num_classes,) * len(nodes))
        for labels, value in self.scores.items():
            place = tuple(labels[node] for node in nodes)
            table[place] = max(table[place], math.exp(value - self.best))
        return table / table.sum()

    def max_nodes(self):
        return np.stack([self.max_joint([node]) for node in range(self.num_nodes)])
