"""Conversion of graphs, edges, labels and masks, in the forms of many libraries, to checked tensors.

DGL, networkx, pandas, polars, scipy and torch_sparse are recognized by their methods, and are not imported here.

Pairs of nodes follow one rule everywhere. Arrays, tensors and nested lists have shape (2, pairs), like ``edge_index``.
A list of tuples, and a table with two columns, have one pair per row. A sparse N x N adjacency has an edge where an
entry is not zero. The nodes of a networkx graph are numbered in the order of ``list(graph.nodes)``. If they are the
numbers 0, …, N - 1 in another order, a row could belong to either, and the graph is refused.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Int
from numpy.typing import NDArray
from torch import Tensor

from edgewise.suggestions import did_you_mean
from edgewise.validation import (
    ArrayLike,
    as_numpy,
    as_tensor,
    check_edges,
    check_labels,
    check_mask,
    check_node_sets,
)

EdgesLike = Any  # ArrayLike, a list of tuples, a sparse adjacency of scipy, torch or torch_sparse, or a GraphLike
GraphLike = Any  # a graph of PyG, DGL or networkx, or anything with ``edge_index``
NameLike = ArrayLike | Sequence[str] | Sequence[int]

# Graphs


def is_graph(value: object) -> bool:
    """Return whether a value is a graph of PyG, DGL or networkx, or has attributes like PyG's Data.

    Tables are not graphs, although pandas makes a column ``y`` an attribute.
    """
    if isinstance(value, Tensor | np.ndarray | Sequence) or hasattr(value, "to_numpy"):
        return False
    attributes = ("edge_index", "adj_t", "y", "edge_types")
    return _is_dgl(value) or is_networkx(value) or any(hasattr(value, name) for name in attributes)


def labels_of(graph: GraphLike, hint: str = "") -> Any:
    """Return the labels of a graph: ``y`` of PyG, or the node data ``y`` or ``label`` of DGL and networkx.

    ``hint`` is what a caller without labels can do instead, for the message.
    """
    _check_one_type(graph)
    y, place = None, "y"
    if _is_dgl(graph):
        y, place = next((graph.ndata[name] for name in ("y", "label") if name in graph.ndata), None), "ndata['label']"
    elif is_networkx(graph):
        _check_node_order(graph)
        by_name = {name: [value for _, value in graph.nodes(data=name)] for name in ("y", "label")}
        y = next((values for values in by_name.values() if any(value is not None for value in values)), None)
        place = "the node attribute 'y' or 'label'"
    else:
        y = getattr(graph, "y", None)
    if y is None:
        raise ValueError(
            f"Expected labels in {place}, but {type(graph).__name__} has none. Set them, as in "
            f"torch_geometric.data.Data(y=y, edge_index=edge_index){hint}."
        )
    return y


def edges_of(graph: GraphLike) -> EdgesLike | None:
    """Return the edges (2, E) of a graph, unchecked, or None if it has no attribute for them."""
    _check_one_type(graph)
    if _is_dgl(graph):
        return torch.stack(graph.edges())
    if is_networkx(graph):
        _check_node_order(graph)
        number = {node: k for k, node in enumerate(graph.nodes)}
        pairs = [(number[start], number[end]) for start, end in graph.edges()]
        return np.array(pairs, dtype=np.int64).reshape(-1, 2).T
    edge_index = getattr(graph, "edge_index", None)
    if edge_index is None and (adjacency := getattr(graph, "adj_t", None)) is not None:
        return _adjacency_edges(adjacency).flip(0)  # PyG stores the transposed adjacency
    return edge_index


def is_networkx(graph: object) -> bool:
    """Return whether a value is a networkx graph."""
    return hasattr(graph, "is_multigraph") and hasattr(graph, "is_directed")


def _is_dgl(graph: object) -> bool:
    return hasattr(graph, "ndata") and hasattr(graph, "ntypes")


def _check_one_type(graph: GraphLike) -> None:
    if _is_dgl(graph):
        types, way_out = graph.canonical_etypes, "graph.edges(etype=…)"
    else:
        is_hetero = hasattr(graph, "edge_types") and not hasattr(graph, "edge_index")
        types, way_out = graph.edge_types if is_hetero else (), "data[edge_type].edge_index"
    if len(types) > 1 or (types and not _is_dgl(graph)):
        raise ValueError(
            f"Expected one type of nodes and edges, but got a graph with {', '.join(map(str, types))}. Pass the labels "
            f"of one node type and the edges between its nodes: ew.evaluate(probs, y, {way_out})."
        )


def _check_node_order(graph: GraphLike) -> None:
    """Raise ValueError if the nodes of a networkx graph are 0, …, N - 1 in another order."""
    nodes = list(graph.nodes)
    if not all(isinstance(node, int | np.integer) for node in nodes) or sorted(nodes) != list(range(len(nodes))):
        return
    if (k := next((k for k, node in enumerate(nodes) if node != k), None)) is not None:
        raise ValueError(
            f"Expected the nodes 0 to {len(nodes) - 1} of a networkx graph in this order, but node {nodes[k]} is at "
            f"position {k}. If row {k} of probs belongs to node {k}, sort the nodes: ordered = type(graph)(); "
            "ordered.add_nodes_from(sorted(graph.nodes(data=True))); ordered.add_edges_from(graph.edges). If it "
            f"belongs to node {nodes[k]}, as in list(graph.nodes), pass nx.convert_node_labels_to_integers(graph)."
        )


def _check_num_nodes(graph: GraphLike, num_nodes: int) -> None:
    if (_is_dgl(graph) or is_networkx(graph)) and graph.number_of_nodes() != num_nodes:
        raise ValueError(
            f"Expected one row of probs for each of the {graph.number_of_nodes()} nodes of the graph, but got "
            f"{num_nodes} rows. Pass the predictions of all nodes, and select nodes with mask=."
        )


# Edges, pairs and node sets


def as_edges(
    edges: EdgesLike, num_nodes: int, device: torch.device | None = None, name: str = "edge_index"
) -> Int[Tensor, "2 edges"]:
    """Convert edges of any form to a tensor (2, E) of nodes from 0 to num_nodes - 1."""
    with _list_hint(edges, name):
        columns = as_columns(edges, num_nodes, name)
        if isinstance(columns, np.ndarray) and columns.dtype.kind in "USO":
            columns = _as_indices(columns, name)
        return check_edges(as_tensor(columns, name).to(device), num_nodes)


def as_node_sets(
    sets: ArrayLike, num_nodes: int, device: torch.device | None = None, name: str = "nodes"
) -> Int[Tensor, "set sets"]:
    """Convert node sets to a tensor (k, M), one set per column. A list of tuples has one set per entry."""
    with _list_hint(sets, name):
        columns = as_tensor(as_columns(sets, num_nodes, name, size=None), name)
        return check_node_sets(columns.to(device), num_nodes, name)


def as_columns(pairs: EdgesLike, num_nodes: int, name: str, *, size: int | None = 2) -> Tensor | NDArray[Any]:
    """Convert pairs, or sets of ``size`` nodes, of any form to an array with a column for each. Entries may be names.

    The shape of an array or of nested lists is not checked. ``size`` is None if it is not known.
    """
    if is_graph(pairs):
        _check_num_nodes(pairs, num_nodes)
        if (edges := edges_of(pairs)) is None:
            raise ValueError(
                f"Expected a graph with edge_index, but {type(pairs).__name__} has none. Pass the graph of a dataset, "
                "dataset[0], or score nodes only: ew.evaluate(probs, data.y)."
            )
        return as_columns(edges, num_nodes, name)
    if is_adjacency(pairs):
        shape = tuple(pairs.sparse_sizes() if hasattr(pairs, "sparse_sizes") else pairs.shape)
        if shape != (num_nodes, num_nodes):
            hint = "Pass edges (2, edges) as a dense array."
            if len(set(shape)) == 1:
                hint = "Pass the predictions of all nodes, and select nodes with mask=."
            raise ValueError(
                f"Expected {name} as a sparse adjacency of shape ({num_nodes}, {num_nodes}), with a row and a column "
                f"for each row of probs, but got shape {shape}. {hint}"
            )
        return _adjacency_edges(pairs)
    if isinstance(pairs, Tensor | np.ndarray):
        return pairs
    if is_table(pairs):
        return _table_columns(pairs, num_nodes, name, size)
    if isinstance(pairs, str | Mapping) or not isinstance(pairs, Iterable):
        return as_numpy(pairs, name)  # raises ValueError
    entries = pairs if isinstance(pairs, list | tuple) else list(pairs)
    if len(entries) == 0:
        return np.empty((2, 0), dtype=np.int64)
    if not any(isinstance(entry, tuple) for entry in entries):
        return _nested_lists(entries, name)
    size = size or len(next(entry for entry in entries if isinstance(entry, tuple)))
    for k, entry in enumerate(entries):
        if not isinstance(entry, tuple) or len(entry) != size:
            way_out = f"Pass [tuple(entry)[:{size}] for entry in {name}]."
            if len(entries) == 2 and len({len(row) for row in entries}) == 1:
                cut = f"; if they are two pairs, [tuple(entry)[:{size}] for entry in {name}]" if len(entry) > 2 else ""
                way_out = f"If the two entries are all starts and all ends, pass np.array({name}){cut}."
            raise ValueError(
                f"Expected {name} as tuples of {size} nodes, or as lists (2, pairs), but entry {k} is {entry!r}. "
                f"{way_out}"
            )
    return _nested_lists([list(column) for column in zip(*entries, strict=True)], name)


def _nested_lists(rows: Sequence[Any], name: str) -> Tensor | NDArray[Any]:
    """Convert nested lists, or a list of tensors. Names of nodes become objects: fixed-width text would be padded."""
    if isinstance(rows[0], Tensor):
        return as_tensor(rows, name)
    array = as_numpy(rows, name)
    return np.array(rows, dtype=object) if array.dtype.kind in "US" else array


def is_table(value: object) -> bool:
    """Return whether a value is a table of pandas or polars."""
    return hasattr(value, "columns") and hasattr(value, "to_numpy")


def check_row_order(**tables: object) -> None:
    """Raise ValueError if pandas tables or columns have the same rows in different orders, by their indices."""
    indices = {name: value.index for name, value in tables.items() if hasattr(value, "iloc")}  # type: ignore[attr-defined]
    (first, expected), *others = [*indices.items()] or [("", None)]
    for name, index in others:
        if index.is_unique and not index.equals(expected) and index.sort_values().equals(expected.sort_values()):
            raise ValueError(
                f"Expected {name} in the order of {first}, but their indices have the same rows in different orders. "
                f"Pass {name}.loc[{first}.index]."
            )


def _table_columns(table: Any, num_nodes: int, name: str, size: int | None) -> NDArray[Any]:
    columns: NDArray[Any] = table.to_numpy().T
    if size not in (None, len(columns)):
        way_out = f"{name}[{list(table.columns[:2])}]"
        if columns.shape == (num_nodes, num_nodes):
            way_out = f"the adjacency as scipy.sparse.csr_array({name})"
        raise ValueError(
            f"Expected {name} as a table with two columns, the ends of each edge, but got {len(columns)} columns. Pass "
            f"{way_out}."
        )
    return columns


def _as_indices(columns: NDArray[Any], name: str) -> NDArray[Any]:
    """Convert objects that are integers, or raise ValueError that shows how to number nodes with names."""
    named = next((value for value in columns.ravel().tolist() if not isinstance(value, int)), None)
    if named is None:
        return columns.astype(np.int64)
    raise ValueError(
        f"Expected {name} to hold numbers of nodes, but got {named!r}. Number nodes by their rows of probs: row = "
        "{node: k for k, node in enumerate(nodes)}, then [(row[i], row[j]) for i, j in pairs]."
    )


def is_adjacency(value: object) -> bool:
    """Return whether a value is a sparse matrix of torch, scipy or torch_sparse."""
    if isinstance(value, Tensor):
        return value.layout != torch.strided
    return hasattr(value, "tocsr") or hasattr(value, "sparse_sizes")


def _adjacency_edges(adjacency: Any) -> Int[Tensor, "2 edges"]:
    """Return (row, column) of the entries that are not zero. An entry that is stored twice is one edge."""
    if isinstance(adjacency, Tensor):
        entries = adjacency.detach().to_sparse_coo()
        edges: Tensor = entries._indices()
        value = entries._values()  # unlike values(), this does not add up entries that are stored twice
    elif hasattr(adjacency, "tocsr"):
        matrix = adjacency.tocoo()
        edges = torch.from_numpy(np.stack([matrix.row, matrix.col]).astype(np.int64))
        value = torch.from_numpy(matrix.data != 0)
    else:
        row, column, value = adjacency.coo()
        edges = torch.stack([row, column])
    edges = edges if value is None else edges[:, value != 0]
    num_columns = int(edges[1].max()) + 1 if edges.shape[1] else 1
    position = edges[0].long() * num_columns + edges[1]
    if bool((position[1:] > position[:-1]).all()):  # sorted, as in a CSR matrix: no entry is stored twice
        return edges
    position = position.unique()
    return torch.stack([position // num_columns, position % num_columns])


# Masks, names and labels


def as_mask(
    mask: ArrayLike, num_nodes: int, device: torch.device | None = None, name: str = "mask"
) -> Bool[Tensor, " nodes"]:
    """Convert booleans, or numbers 0 and 1, to a mask of nodes."""
    with _list_hint(mask, name):
        return check_mask(as_tensor(mask, name).to(device), num_nodes, name)


def as_labels(
    y: ArrayLike,
    num_nodes: int | None = None,
    rows: str = "nodes",
    device: torch.device | None = None,
    name: str = "y",
) -> Int[Tensor, " nodes"]:
    """Convert labels to integers, one per node. Missing values among integers become -1, which means unknown."""
    if is_table(y) and len(y.columns) > 1:  # type: ignore[union-attr]
        columns = list(y.columns)  # type: ignore[union-attr]
        raise ValueError(
            f"Expected {name} as one column of labels, but got the columns {columns}. Select one: {name}[…]."
        )
    with _list_hint(y, name):
        values = y if isinstance(y, Tensor) else as_numpy(y, name)
        if isinstance(values, np.ndarray) and values.dtype.kind == "O" and all(map(_is_label, values.flat)):
            known = [-1 if _is_missing(label) else int(label) for label in values.flat]
            values = np.array(known, dtype=np.int64).reshape(values.shape)
        return check_labels(as_tensor(values, name).to(device), num_nodes, rows, name)


def _is_label(value: object) -> bool:
    return isinstance(value, int | np.integer) or _is_missing(value)


def _is_missing(value: object) -> bool:
    """Return whether a label is None, NaN, NA of pandas, or empty text."""
    if value is None or isinstance(value, str) or type(value).__name__ in ("NAType", "NaTType"):
        return not value if isinstance(value, str) else True
    return value != value


@dataclass(frozen=True, eq=False)
class Names:
    """Names of the nodes or classes 0, …, count - 1. ``values`` is None if they are named by their numbers."""

    count: int
    values: NDArray[Any] | None = None

    def as_text(self) -> list[str]:
        """Return all names as text."""
        return [str(name) for name in (range(self.count) if self.values is None else self.values.tolist())]


def check_names(names: NameLike | None, count: int, argument: str, thing: str) -> Names:
    """Check that names are unique, one per node or class, and all text or all integers."""
    if names is None:
        return Names(count)
    values = as_name_array(names)
    if values.shape != (count,):
        shape = tuple(values.shape)
        raise ValueError(f"Expected {argument} of shape ({count},), one per {thing}, but got shape {shape}.")
    if values.dtype.kind == "O" and (kinds := {type(name).__name__ for name in values} - {"str"}):
        raise ValueError(f"Expected {argument} to be all text or all integers, but got {' and '.join(sorted(kinds))}.")
    if len(set(values.tolist())) < count:
        duplicate = next(name for name, times in Counter(values.tolist()).items() if times > 1)
        raise ValueError(f"Expected unique {argument}, but got {duplicate!r} twice. Rename one.")
    return Names(count, values)


def as_name_array(names: object) -> NDArray[Any]:
    """Convert names to integers or to Python strings, as fixed-width strings would pad every id to the longest."""
    if isinstance(names, Tensor):
        names = names.detach().cpu().numpy()
    elif hasattr(names, "to_numpy"):
        names = names.to_numpy()
    array = names if isinstance(names, np.ndarray) else np.asarray(names, dtype=object)
    if array.dtype.kind in "fO" and array.size and all(map(_is_whole, array.flat)):
        array = np.array([int(name) for name in array.flat]).reshape(array.shape)
    if array.dtype.kind == "b":
        array = array.astype(np.int64)  # classes of a scikit-learn classifier that was fitted to such labels
    if array.dtype.kind in "iu":
        return array if array.dtype == np.uint64 else array.astype(np.int64)
    return array.astype(object)


def _is_whole(name: object) -> bool:
    is_float = isinstance(name, float | np.floating)
    return isinstance(name, int | np.integer) or (is_float and float(name).is_integer())  # type: ignore[arg-type]


def column_names(probs: object) -> list[Any] | None:
    """Return the names of the columns of a table, if they can be names of classes."""
    names = list(probs.columns) if is_table(probs) else []  # type: ignore[attr-defined]
    is_text = all(isinstance(name, str) for name in names)
    is_number = all(map(_is_whole, names)) and names != list(range(len(names)))
    return names if names and (is_text or is_number) else None


def number_labels(
    y: ArrayLike, names: Names, mask: Bool[Tensor, " nodes"], argument: str, name: str = "y"
) -> ArrayLike:
    """Look up labels among class names. Labels that are numbers are column indices if the names are text.

    A label outside the mask that is missing or no class name becomes -1, which means unknown. ``argument`` holds the
    names, and ``name`` the labels.
    """
    classes: list[Any] = [] if names.values is None else names.values.tolist()
    values = as_numpy(y, name)
    values = values[:, 0] if values.ndim == 2 and values.shape[1] == 1 else values
    has_text = values.dtype.kind in "US" or (values.dtype.kind == "O" and not all(map(_is_label, values.flat)))
    if values.ndim != 1 or not (has_text or all(isinstance(label, int) for label in classes)):
        if any(text.isdecimal() and int(text) != k for k, text in enumerate(classes) if isinstance(text, str)):
            raise ValueError(
                f"Expected {name} as text, like the class name {classes[0]!r}, but got numbers. Convert both to text, "
                f"or both to integers: class_names=[int(name) for name in {argument}]."
            )
        return y
    column = {label: k for k, label in enumerate(classes)}
    numbers = np.array([-1 if _is_missing(label) else column.get(label, -1) for label in values.tolist()], np.int64)
    unknown = (numbers < 0) & mask.cpu().numpy() if len(numbers) == len(mask) else np.zeros(1, dtype=bool)
    if unknown.any():
        node = int(unknown.argmax())
        label = values[node : node + 1].tolist()[0]
        shown = ", ".join(map(str, classes[:10])) + (", …" if len(classes) > 10 else "")
        found = "is missing." if _is_missing(label) else f"is {label!r}.{did_you_mean(label, map(str, classes))}"
        way_out = (
            "Pass the class of each column as class_names=, or leave out such nodes: "
            f"{mask_of_labels(argument, mask, name)}."
        )
        if isinstance(label, bytes):
            found, way_out = f"is {label!r}.", f"Convert bytes to text: {name} = [label.decode() for label in {name}]."
        elif isinstance(label, str) and label and all(isinstance(number, int) for number in classes):
            found = f"is the text {label!r}."
            way_out = f"Convert the class names, which are integers: class_names=[str(name) for name in {argument}]."
        raise ValueError(
            f"Expected the label of each scored node in {name} among the class names {shown}, but that of node {node} "
            f"{found} {way_out}"
        )
    return numbers


def mask_of_labels(known: str, mask: Bool[Tensor, " nodes"], name: str = "y") -> str:
    """Return the code of an argument that scores only nodes with ``known`` labels, and keeps the caller's mask."""
    is_known = f"np.isin({name}, {known})"
    return f"mask={is_known}" if bool(mask.all()) else f"mask=np.asarray(mask, bool) & {is_known}"


@contextmanager
def _list_hint(value: object, name: str) -> Iterator[None]:
    """Add to an error that advises an operation of arrays, such as y.astype(int), how to convert a list to an array."""
    try:
        yield
    except ValueError as error:
        if not isinstance(value, list | tuple) or not re.search(rf"\b{name}(\.|\[| -)", str(error)):
            raise
        is_pairs = any(isinstance(entry, tuple) for entry in value)
        array = f"np.array({name}){'.T' if is_pairs else ''}"
        raise ValueError(f"{error} Before that, convert the list to an array: {name} = {array}.") from None
