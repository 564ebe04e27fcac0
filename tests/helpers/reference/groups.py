"""Reference implementation of groups of nodes and edges with plain Python loops."""

import math

from helpers.reference import loops


def neighbors(edges, num_nodes):
    """Return the neighbors of each node: each as often as its edges count, all edges, no self-loops."""
    found = [[] for _ in range(num_nodes)]
    for i, j in loops.scored_edges(edges, [True] * num_nodes, "all"):
        found[i].append(j)
        found[j].append(i)
    return found


def trait(name, probs, y, edges, train=None, given=None):
    """Return the name of the group of each node, or None."""
    num_nodes = len(probs)
    near = neighbors(edges, num_nodes)
    if name == "predicted_class":
        return [str(p.index(max(p))) for p in probs] if given is None else [str(label) for label in given]
    if name == "true_class":
        return [str(label) if label >= 0 else None for label in y]
    if name == "confidence":
        tenths = [loops.bin_of(max(p) if given is None else p[given[i]], 10) for i, p in enumerate(probs)]
        return [f"{k / 10:g} to {(k + 1) / 10:g}" for k in tenths]
    if name == "degree":
        return [degree_name(len(nodes)) for nodes in near]
    if name == "train_distance":
        return [distance_name(distance(i, near, train)) for i in range(num_nodes)]
    groups = []
    for i in range(num_nodes):
        known = [j for j in near[i] if y[j] >= 0]
        if y[i] < 0 or not known:
            groups.append(None)
        else:
            fifth = min(4, 5 * sum(y[j] == y[i] for j in known) // len(known))
            groups.append(f"{fifth / 5:g} to {(fifth + 1) / 5:g}")
    return groups


def degree_name(degree):
    low = 2
    while low <= degree:
        if degree < 2 * low:
            return f"{low} to {2 * low - 1}"
        low *= 2
    return str(degree)


def distance(node, near, train):
    """Return the number of edges to the nearest training node by breadth-first search, or infinity."""
    level, seen, steps = [node], {node}, 0
    while level:
        if any(train[i] for i in level):
            return steps
        level = sorted({j for i in level for j in near[i]} - seen)
        seen |= set(level)
        steps += 1
    return math.inf


def distance_name(steps):
    return "unreachable" if steps == math.inf else "3 or more" if steps >= 3 else str(steps)


def evaluate(groups, order, probs, y, edges, mask, choice="both", given=None, **options):
    """Return the scores of nodes by group, and of edges by group or by pair of groups.

    ``groups`` has the name of the group of each node, or None. ``order`` lists the groups. Groups of edges are named by
    the first of the two in ``order`` if ``is_ordered``, else by both.
    """
    num_classes, is_ordered = len(probs[0]), options.pop("is_ordered")
    predicted = [p.index(max(p)) for p in probs] if given is None else given

    def score(sets):
        flat, truths, corrects, entries = [], [], [], []
        for nodes in sets:
            joint = [1.0]
            for i in nodes:
                joint = [a * b for a in joint for b in probs[i]]
            flat.append(joint)
            truths.append(sum(y[i] * num_classes**k for k, i in enumerate(reversed(nodes))))
            entries.append(sum(predicted[i] * num_classes**k for k, i in enumerate(reversed(nodes))))
            corrects.append(all(predicted[i] == y[i] for i in nodes))
        return loops.score_distributions(
            flat, truths, corrects, predicted=None if given is None else entries, **options
        )

    nodewise = {name: score([(i,) for i in range(len(y)) if mask[i] and groups[i] == name]) for name in order}
    sets = {}
    for i, j in loops.scored_edges(edges, mask, choice):
        if y[i] < 0 or y[j] < 0 or groups[i] is None or groups[j] is None:
            continue
        first, second = sorted((groups[i], groups[j]), key=order.index)
        sets.setdefault(first if is_ordered else f"{first} & {second}", []).append((i, j))
    return {"nodewise": nodewise, "edgewise": {name: score(edges) for name, edges in sets.items()}}
