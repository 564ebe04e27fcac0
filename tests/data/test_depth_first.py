"""Depth-first search: trees, lowest common ancestors and blocks, against loops over nodes and paths."""

from itertools import combinations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from edgewise.data.depth_first import DepthFirstForest
from helpers.random_fields import generator, random_forest, random_graph

NO_EDGES = torch.empty(2, 0, dtype=torch.long)


def reached(start, edges, forbidden=()):
    """Return all nodes that paths from a node reach. Paths end at forbidden nodes."""
    found, todo = {start}, [start]
    while todo:
        node = todo.pop()
        if node in forbidden and node != start:
            continue
        new = {a + b - node for a, b in edges if node in (a, b)} - found
        found |= new
        todo += new
    return found


def has_path_outside(nodes, edges):
    """Return whether a path whose inner nodes are not in the set connects two of its nodes."""
    outside = [(a, b) for a, b in edges if not (a in nodes and b in nodes)]
    return any(b in reached(a, outside, forbidden=nodes) for a, b in combinations(nodes, 2))


def ancestors(forest, number):
    """Return a number and all its ancestors, from the bottom to the root."""
    parent = int(forest.parent[number])
    return [number] if parent == number else [number, *ancestors(forest, parent)]


@settings(max_examples=100)
@given(num_nodes=st.integers(1, 9), num_edges=st.integers(0, 14), size=st.integers(2, 6), seed=st.integers(0, 2**31))
def test_paths_around_sets_are_found(num_nodes, num_edges, size, seed):
    g = generator(seed)
    edge_index = random_graph(num_nodes, num_edges, g)
    edges, forest = edge_index.T.tolist(), DepthFirstForest(edge_index, num_nodes)
    for node in range(num_nodes):
        inside = reached(node, edges)
        num_inside = sum(a in inside for a, _ in edges)
        assert bool(forest.in_tree[node]) == (num_inside == len(inside) - 1)
    nodes = torch.randperm(num_nodes, generator=g)[:size]
    members = nodes.tolist()
    inner = [(a, b) for a, b in edges if a in members and b in members]
    is_apart = any(b in reached(a, edges) and b not in reached(a, inner) for a, b in combinations(members, 2))
    around = bool(forest.has_path_around(nodes[:, None])[0])
    assert (around or is_apart) == has_path_outside(members, edges)


@settings(max_examples=50)
@given(num_nodes=st.integers(1, 30), seed=st.integers(0, 2**31))
def test_lowest_common_ancestors_equal_those_of_a_loop(num_nodes, seed):
    g = generator(seed)
    forest = DepthFirstForest(random_forest(num_nodes, g, keep=0.9), num_nodes)
    for low, high in combinations(range(num_nodes), 2):
        common = [number for number in ancestors(forest, high) if number in ancestors(forest, low)]
        found = int(forest.lowest_common_ancestor(torch.tensor(low), torch.tensor(high)))
        assert found == common[0] if common else found > low
    assert forest.depth.tolist() == [len(ancestors(forest, number)) - 1 for number in range(num_nodes)]
    assert torch.equal(forest.number[forest.node], torch.arange(num_nodes))


def test_no_nodes_no_edges_and_a_long_path():
    assert DepthFirstForest(NO_EDGES, 0).in_tree.shape == (0,)
    assert DepthFirstForest(NO_EDGES, 3).in_tree.tolist() == [True] * 3
    path = torch.stack([torch.arange(4999), torch.arange(1, 5000)])
    assert DepthFirstForest(path, 5000).depth.tolist() == list(range(5000))
