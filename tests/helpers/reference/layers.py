"""Reference implementations of graph layers and EPFGNN stars as loops over nodes."""

import itertools
import math


def neighbors(edges, num_nodes):
    """Return each node's neighbors and the node itself, sorted. Self-loops and repeated edges do not matter."""
    neighborhoods = [{node} for node in range(num_nodes)]
    for i, j in edges:
        neighborhoods[i].add(j)
        neighborhoods[j].add(i)
    return [sorted(nodes) for nodes in neighborhoods]


def convolution(x, edges, weight, bias):
    """Compute b + Σ_j W x_j / √(d_i d_j) over i and its d_i - 1 neighbors j."""
    neighborhoods = neighbors(edges, len(x))
    out = []
    for i in range(len(x)):
        row = list(bias)
        for j in neighborhoods[i]:
            for k in range(len(bias)):
                value = math.fsum(x[j][f] * weight[f][k] for f in range(len(weight)))
                row[k] += value / math.sqrt(len(neighborhoods[i]) * len(neighborhoods[j]))
        out.append(row)
    return out


def attention(projected, att_src, att_dst, sources, own, factor=None):
    """Compute Σ_j α_ij P_j with α_ij = softmax_j(leaky_relu(a_src·P_j + a_dst·P_i)) for each head.

    P_j is ``projected[j][head][unit]``. ``sources[i]`` are the nodes j of target i, and ``own[i]`` is the row of i in
    ``projected``. ``factor[i][n][head]`` multiplies the attention weight of the n-th source of i.
    """
    out = []
    for i, nodes in enumerate(sources):
        row = []
        for head, (source, target) in enumerate(zip(att_src, att_dst, strict=True)):
            own_score = dot(target, projected[own[i]][head])
            scores = [leaky(dot(source, projected[j][head]) + own_score) for j in nodes]
            exponentials = [math.exp(score - max(scores)) for score in scores]
            alpha = [value / math.fsum(exponentials) for value in exponentials]
            if factor is not None:
                alpha = [value * factor[i][n][head] for n, value in enumerate(alpha)]
            for unit in range(len(source)):
                terms = (value * projected[j][head][unit] for value, j in zip(alpha, nodes, strict=True))
                row.append(math.fsum(terms))
        out.append(row)
    return out


def dot(a, b):
    return math.fsum(u * v for u, v in zip(a, b, strict=True))


def leaky(value):
    return value if value > 0 else 0.2 * value


class Stars:
    """The pieces of a pairwise MRF: the star of each node and its neighbors.

    Unary potentials U_k are divided by the number d_k = deg(k) + 1 of stars with node k, couplings r B by 2.
    """

    def __init__(self, unary, edges, scales, coupling):
        self.num_classes, self.unary, self.coupling = len(coupling), unary, coupling
        self.neighbors = [[] for _ in unary]  # (neighbor, scale of the edge)
        for (i, j), scale in zip(edges, scales, strict=True):
            self.neighbors[i].append((j, scale))
            self.neighbors[j].append((i, scale))

    def divided_unary(self, node, label):
        return self.unary[node][label] / (len(self.neighbors[node]) + 1)

    def energy(self, center, label, others):
        """Return the energy of one labeling of a star."""
        terms = [self.divided_unary(center, label)]
        for (node, scale), other in zip(self.neighbors[center], others, strict=True):
            terms += [self.divided_unary(node, other), scale * self.coupling[label][other] / 2]
        return math.fsum(terms)

    def log_partition(self, center):
        """Return log Z of a star by enumeration of all labelings."""
        energies = [
            self.energy(center, label, others)
            for label in range(self.num_classes)
            for others in itertools.product(range(self.num_classes), repeat=len(self.neighbors[center]))
        ]
        best = max(energies)
        return best + math.log(math.fsum(math.exp(energy - best) for energy in energies))

    def score(self, center, q):
        """Return q_i·U_i/d_i + Σ_j [ q_j·U_j/d_j + r_ij q_iᵀ(B/2)q_j ]."""
        labels = range(self.num_classes)
        terms = [q[center][label] * self.divided_unary(center, label) for label in labels]
        for node, scale in self.neighbors[center]:
            terms += [q[node][label] * self.divided_unary(node, label) for label in labels]
            terms += [
                scale * q[center][label] * self.coupling[label][other] / 2 * q[node][other]
                for label in labels
                for other in labels
            ]
        return math.fsum(terms)
