"""Layers of graph networks from their formulas, as loops over nodes. Slow, and for tests only."""

import itertools
import math


def neighbors(edges, num_nodes):
    """Of each node, and the node itself; self-loops and repeated edges change nothing."""
    heard = [{node} for node in range(num_nodes)]
    for i, j in edges:
        heard[i].add(j)
        heard[j].add(i)
    return [sorted(nodes) for nodes in heard]


def convolution(x, edges, weight, bias):
    """out_i = b + Σ_j W x_j / √(d_i d_j), over the neighbors j of i and i itself; d is their number."""
    heard = neighbors(edges, len(x))
    out = []
    for i in range(len(x)):
        row = list(bias)
        for j in heard[i]:
            for k in range(len(bias)):
                told = math.fsum(x[j][f] * weight[f][k] for f in range(len(weight)))
                row[k] += told / math.sqrt(len(heard[i]) * len(heard[j]))
        out.append(row)
    return out


def attention(projected, att_src, att_dst, heard, itself, factor=None):
    """out_i = Σ_j α_ij P_j, α_ij = softmax_j(leaky_relu(a_src·P_j + a_dst·P_i)), head by head.

    ``projected[j][head][unit]``; ``heard[i]`` are the speakers that listener i hears, ``itself[i]`` is its own place
    among them; ``factor[i][n][head]`` multiplies the weight of the n-th of those it hears.
    """
    out = []
    for i, speakers in enumerate(heard):
        row = []
        for head, (source, target) in enumerate(zip(att_src, att_dst, strict=True)):
            here = dot(target, projected[itself[i]][head])
            scores = [leaky(dot(source, projected[j][head]) + here) for j in speakers]
            raised = [math.exp(score - max(scores)) for score in scores]
            alpha = [value / math.fsum(raised) for value in raised]
            if factor is not None:
                alpha = [value * factor[i][n][head] for n, value in enumerate(alpha)]
            for unit in range(len(source)):
                told = (value * projected[j][head][unit] for value, j in zip(alpha, speakers, strict=True))
                row.append(math.fsum(told))
        out.append(row)
    return out


def dot(a, b):
    return math.fsum(u * v for u, v in zip(a, b, strict=True))


def leaky(value):
    return value if value > 0 else 0.2 * value


class Stars:
    """The pieces of a pairwise field: each node with its neighbors.

    Unaries are shared out among d_k = deg(k) + 1 stars, couplings r B among two.
    """

    def __init__(self, unary, edges, scales, coupling):
        self.num_classes, self.unary, self.coupling = len(coupling), unary, coupling
        self.around = [[] for _ in unary]  # (neighbor, scale of the edge)
        for (i, j), scale in zip(edges, scales, strict=True):
            self.around[i].append((j, scale))
            self.around[j].append((i, scale))

    def share(self, node, label):
        return self.unary[node][label] / (len(self.around[node]) + 1)

    def energy(self, center, label, others):
        """Of one labeling of a star."""
        terms = [self.share(center, label)]
        for (node, scale), other in zip(self.around[center], others, strict=True):
            terms += [self.share(node, other), scale * self.coupling[label][other] / 2]
        return math.fsum(terms)

    def log_partition(self, center):
        """By enumeration of all labelings of a star."""
        energies = [
            self.energy(center, label, others)
            for label in range(self.num_classes)
            for others in itertools.product(range(self.num_classes), repeat=len(self.around[center]))
        ]
        best = max(energies)
        return best + math.log(math.fsum(math.exp(energy - best) for energy in energies))

    def score(self, center, q):
        """q_i·U_i/d_i + Σ_j [ q_j·U_j/d_j + r_ij q_iᵀ(B/2)q_j ]."""
        labels = range(self.num_classes)
        terms = [q[center][label] * self.share(center, label) for label in labels]
        for node, scale in self.around[center]:
            terms += [q[node][label] * self.share(node, label) for label in labels]
            terms += [
                scale * q[center][label] * self.coupling[label][other] / 2 * q[node][other]
                for label in labels
                for other in labels
            ]
        return math.fsum(terms)
