"""Exact inference by variable elimination: the passes over the buckets of an order of elimination."""

import itertools
import math
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray
from torch import Tensor

from edgewise.data.edges import EdgeLookup
from edgewise.inference.elimination_order import (
    EliminationOrder,
    NoExactInference,
    check_cost,
    feasible_order,
    follow_order,
    neighbors_in_mrf,
    num_possible_labels,
    plan_storage,
)
from edgewise.inference.fixed_point import ELIMINATION
from edgewise.inference.mrf import PairwiseMRF
from edgewise.posterior import Convergence, Posterior, Sample, Sampling
from edgewise.validation import ArrayLike, check_distributions, dense_tensor

if TYPE_CHECKING:
    from edgewise.kernels.clique_tables import Buckets

Array = NDArray[Any]

CHUNK_ELEMENTS = 1 << 21  # labels that are drawn at once


def _shift_to_zero(tables: Array, axis: int | tuple[int, ...]) -> tuple[Array, Array]:
    """Subtract the largest entry of each table, and return it too."""
    highest = tables.max(axis=axis, keepdims=True)
    return tables - highest, highest.ravel()


class _Input(NamedTuple):
    """A table that enters a bucket."""

    offset: int
    child: int  # the bucket whose message it is, or -1
    strides: Mapping[int, int]  # by node, without the node of the bucket, whose stride is 1


class JunctionTree:
    """The buckets of a single MRF, with only the labels that are possible at each node.

    Parameters
    ----------
    mrf
        A single MRF without gradients.
    order
        An order of elimination of its graph.
    """

    def __init__(self, mrf: PairwiseMRF, order: EliminationOrder):
        self.mrf, self.order = mrf, order
        # Potentials are shifted to a largest entry of 0, so that huge ones do not hide the others in sums.
        unary, highest = _shift_to_zero(mrf.unary.double().cpu().numpy(), axis=1)
        self._couplings, highest_coupling = _shift_to_zero(
            mrf.coupling(slice(None)).double().cpu().numpy(), axis=(1, 2)
        )
        self._constants = [*highest, *np.broadcast_to(highest_coupling, mrf.num_edges)]
        self.labels = [np.flatnonzero(row > -np.inf) for row in unary]
        self._first_label = [0, *itertools.accumulate(map(len, self.labels))]  # potentials of each node in the pool
        self._position = {node: k for k, node in enumerate(order.nodes)}
        self._storage = plan_storage(order)
        self.buckets, self._tables = self._plan_buckets(unary)

    def _sort_ends(self, i: int, j: int) -> tuple[int, int]:
        """Return the ends of an edge, first the one whose bucket the edge's potentials enter.

        It is the end that is eliminated first. If the other end has a single label, the edge restricts no order.
        """
        if len(self.labels[i]) == 1 or len(self.labels[j]) == 1:
            return (j, i) if len(self.labels[i]) == 1 else (i, j)
        return (i, j) if self._position[i] < self._position[j] else (j, i)

    def _plan_buckets(self, unary: Array) -> tuple["Buckets", Array]:
        """Return the buckets, and the potentials of all nodes, then of all edges, in one array."""
        from edgewise.kernels.clique_tables import MAX_FAST_SIZE, Buckets

        mrf, order, labels, position = self.mrf, self.order, self.labels, self._position
        num_labels = [len(row) for row in labels]
        inputs = [[_Input(self._first_label[node], -1, {})] for node in order.nodes]
        tables, place = [unary[i, row] for i, row in enumerate(labels)], self._first_label[-1]
        for e, (i, j) in enumerate(mrf.edge_index.T.tolist()):
            table = self._couplings[e if len(self._couplings) > 1 else 0][labels[i][:, None], labels[j]]
            first, second = self._sort_ends(i, j)
            tables.append((table.T if first == i else table).ravel())
            inputs[position[first]].append(_Input(place, -1, {second: num_labels[first]}))
            place += table.size
        parts: dict[str, list[int]] = {name: [] for name in Buckets._fields}
        for k, node in enumerate(order.nodes):
            # The node that is eliminated next is last: the message enters its bucket.
            separator = sorted(order.separators[k], key=position.__getitem__, reverse=True)
            dims = [num_labels[other] for other in separator]
            num_slow, fast_size = len(dims), 1
            while num_slow and fast_size * dims[num_slow - 1] <= MAX_FAST_SIZE:
                num_slow -= 1
                fast_size *= dims[num_slow]
            slow_nodes = set(separator[:num_slow])
            is_slow = [input_.strides.keys() <= slow_nodes for input_ in inputs[k]]
            is_fast = [bool(input_.strides) and input_.strides.keys().isdisjoint(slow_nodes) for input_ in inputs[k]]
            ordered = sorted(zip(is_slow, is_fast, inputs[k], strict=True), key=lambda item: (not item[0], not item[1]))
            parts["num_labels"].append(num_labels[node])
            parts["first_axis"].append(len(parts["dims"]))
            parts["dims"] += dims
            parts["axis_bucket"] += [position[other] for other in separator]
            parts["num_slow"].append(num_slow)
            parts["first_input"].append(len(parts["offset"]))
            parts["first_fast"].append(len(parts["offset"]) + sum(is_slow))
            parts["first_mixed"].append(parts["first_fast"][-1] + sum(is_fast))
            for _, _, input_ in ordered:
                parts["offset"].append(input_.offset)
                parts["child"].append(input_.child)
                parts["first_stride"].append(len(parts["strides"]))
                parts["strides"] += [input_.strides.get(other, 0) for other in separator]
            strides, size = dict[int, int](), 1
            for other, dim in zip(reversed(separator), reversed(dims), strict=True):
                strides[other] = size
                size *= dim
            message = place + self._storage.offsets[k]
            parts["message"].append(message)
            parts["size"].append(size)
            if separator:
                parent = separator[-1]
                del strides[parent]
                inputs[position[parent]].append(_Input(message, k, strides))
        for name, end in (("first_axis", "dims"), ("first_input", "offset"), ("first_stride", "strides")):
            parts[name].append(len(parts[end]))
        buckets = Buckets(*(np.asarray(parts[name], np.int64) for name in Buckets._fields))
        return buckets, np.concatenate(tables) if tables else np.empty(0)

    def messages(self, maximum: bool = False, evidence: Mapping[int, int] | None = None) -> tuple[Array, Array]:
        """Return the pool of potentials and messages after the pass up, and the shift of each message.

        The pool holds the messages that are kept and those of the last segment. The sum of the shifts is log Z
        of the shifted potentials, or with ``maximum`` their largest score of a labeling. With ``evidence``, only
        labelings with these possible labels of some nodes count.
        """
        from edgewise.kernels.clique_tables import pass_up

        pool, shifts = np.empty(len(self._tables) + self._storage.size), np.empty(len(self.order.nodes))
        pool[: len(self._tables)] = self._tables
        for node, label in (evidence or {}).items():
            place = self._first_label[node]
            pool[place : place + len(self.labels[node])][self.labels[node] != label] = -np.inf
        for start, stop in itertools.pairwise(self._storage.segments):
            pass_up(pool, self.buckets, np.arange(start, stop), maximum, shifts)
        return pool, shifts

    def log_partition(self, evidence: Mapping[int, int]) -> float:
        """Return log Z of all labelings with the given labels of some nodes, -inf if one of these is impossible."""
        if any(label not in self.labels[node] for node, label in evidence.items()):
            return -math.inf
        return math.fsum([*self.messages(evidence=evidence)[1], *self._constants])

    def _segments_backward(self, pool: Array, maximum: bool) -> Iterator[tuple[int, int]]:
        """Return the range of buckets of each segment, from the last to the first, with its messages in the pool."""
        from edgewise.kernels.clique_tables import pass_up

        segments, is_kept = self._storage.segments, np.array(self._storage.is_kept, dtype=np.bool_)
        for start, stop in reversed(list(itertools.pairwise(segments))):
            if len(segments) > 2:  # later segments, or an earlier call, have used the memory of this one
                discarded = start + np.flatnonzero(~is_kept[start:stop])
                pass_up(pool, self.buckets, discarded, maximum, np.empty(len(self.order.nodes)))
            yield start, stop

    def marginals(self) -> tuple[Array, Array, float]:
        """Return the marginals of nodes (N, C) and of edges (E, C, C), and log Z."""
        from edgewise.kernels.clique_tables import pass_down

        pool, shifts = self.messages()
        sums = np.zeros(len(self._tables))
        for start, stop in self._segments_backward(pool, maximum=False):
            pass_down(pool, self.buckets, start, stop, shifts, sums)
        num_nodes, num_classes = self.mrf.num_nodes, self.mrf.num_classes
        node, joint = np.zeros((num_nodes, num_classes)), np.zeros((self.mrf.num_edges, num_classes, num_classes))
        place = 0
        for i, labels in enumerate(self.labels):
            node[i, labels] = sums[place : place + len(labels)]
            place += len(labels)
        for e, (i, j) in enumerate(self.mrf.edge_index.T.tolist()):
            first, second = self._sort_ends(i, j)
            shape = len(self.labels[second]), len(self.labels[first])
            table = sums[place : place + math.prod(shape)].reshape(shape)
            place += math.prod(shape)
            joint[e, self.labels[i][:, None], self.labels[j]] = table.T if first == i else table
        # Rounding of huge potentials can leave sums that differ from 1.
        node /= node.sum(1, keepdims=True)
        joint /= joint.sum((1, 2), keepdims=True)
        return node, joint, math.fsum([*shifts, *self._constants])

    def joint_of_last(self, pool: Array, number: int) -> Array:
        """Return the joint (C, …, C) of the nodes that are eliminated last, in the order of elimination."""
        buckets, last = self.buckets, range(len(self.order.nodes) - number, len(self.order.nodes))
        labels = [self.labels[self.order.nodes[b]] for b in last]
        log_joint = np.zeros([len(row) for row in labels])
        for axis, b in enumerate(last):
            scope = buckets.axis_bucket[buckets.first_axis[b] : buckets.first_axis[b + 1]] - last.start
            for k in range(buckets.first_input[b], buckets.first_input[b + 1]):
                if buckets.child[k] >= last.start:
                    continue
                strides = [0] * number
                strides[axis] = 1
                for other, stride in zip(scope, buckets.strides[buckets.first_stride[k] :], strict=False):
                    strides[other] = int(stride)
                table = pool[buckets.offset[k] :]
                log_joint += as_strided(table, log_joint.shape, [8 * stride for stride in strides])
        joint = np.zeros([self.mrf.num_classes] * number)
        joint[np.ix_(*labels)] = np.exp(log_joint - log_joint.max())
        normalized: Array = joint / joint.sum()
        return normalized

    def draw(self, pool: Array, uniform: Array | None = None) -> Array:
        """Draw labels (samples, N) with uniform numbers (samples, N), or without these decode the best labeling.

        The pool must be that of `messages`, without uniform numbers that of ``messages(maximum=True)``.
        """
        from edgewise.kernels.clique_tables import draw_labels

        drawn = np.zeros((1 if uniform is None else len(uniform), len(self.order.nodes)), np.int64)
        numbers = np.empty((0, 0)) if uniform is None else uniform
        for start, stop in self._segments_backward(pool, maximum=uniform is None):
            draw_labels(pool, self.buckets, start, stop, numbers, drawn)
        labels = np.empty_like(drawn)
        labels[:, self.order.nodes] = self._label_of_bucket[np.arange(drawn.shape[1]), drawn]
        return labels

    @cached_property
    def _label_of_bucket(self) -> Array:
        """The possible labels of the node of each bucket, (buckets, C), padded by 0."""
        padded = np.zeros((len(self.order.nodes), self.mrf.num_classes), np.int64)
        for k, node in enumerate(self.order.nodes):
            padded[k, : len(self.labels[node])] = self.labels[node]
        return padded


class ExactPosterior(Posterior):
    """Exact posterior of an MRF with loops, by variable elimination. Returned by `exact_marginals`.

    Marginals of nodes and joints of edges are stored. The joint of another set takes an elimination of its own, in
    which the nodes of the set come last.

    Parameters
    ----------
    unary
        Unary potentials of the MRF, as in `PairwiseMRF`.
    edge_index
        Edges (2, E), each undirected edge once.
    pairwise
        Pairwise potentials.
    node
        Marginals (N, C). With a batch, (B, N, C).
    joints
        Joints of edges (E, C, C). With a batch, (B, E, C, C).
    edge_scale
        Factors of the pairwise potentials, 1 by default.
    convergence
        As `exact_marginals` returns it.
    """

    def __init__(
        self,
        unary: ArrayLike,
        edge_index: ArrayLike,
        pairwise: ArrayLike,
        node: ArrayLike,
        joints: ArrayLike,
        edge_scale: ArrayLike | None = None,
        *,
        convergence: Convergence | None = ELIMINATION,
    ):
        super().__init__(convergence)
        self._mrf = PairwiseMRF(unary, edge_index, pairwise, edge_scale=edge_scale)
        self._node, self._edge_joints = dense_tensor(node, "node"), dense_tensor(joints, "joints")
        check_distributions(self._node.flatten(0, -2), "node", "row")
        check_distributions(self._edge_joints.flatten(0, -3), "joints", "edge")

    @property
    def node(self) -> Float[Tensor, "*batch nodes classes"]:
        """The marginal of each node."""
        return self._node

    def tensors(self) -> dict[str, Tensor]:
        """Return the MRF, the marginals and the joints."""
        mrf = self._mrf
        tensors = {"unary": mrf.unary, "edge_index": mrf.edge_index, "pairwise": mrf.pairwise.contiguous()}
        scale = {} if mrf.edge_scale is None else {"edge_scale": mrf.edge_scale.contiguous()}
        return {**tensors, **scale, "node": self._node, "joints": self._edge_joints}

    def _select(self, index: int) -> Posterior:
        selected = {name: tensor[index] for name, tensor in self.tensors().items() if name != "edge_index"}
        return self._rebuild(edge_index=self._mrf.edge_index, **selected)

    @cached_property
    def _lookup(self) -> EdgeLookup:
        return EdgeLookup(self._mrf.edge_index, self.num_nodes)

    @cached_property
    def _order(self) -> EliminationOrder:
        return feasible_order(self._mrf)

    def _joints(self, nodes: Int[Tensor, "set sets"]) -> Float[Tensor, "*batch sets entries"]:
        if len(nodes) == 1:
            return self._node[..., nodes[0], :]
        joints = self._node.new_empty(*self.batch_shape, nodes.shape[1], self.num_classes ** len(nodes))
        rest = torch.ones(nodes.shape[1], dtype=torch.bool, device=nodes.device)
        if len(nodes) == 2:
            edge, backward = self._lookup.find(nodes)
            rest = edge < 0
            known = self._edge_joints[..., edge[~rest], :, :]
            known = torch.where(backward[~rest, None, None], known.mT, known)
            joints[..., ~rest, :] = known.flatten(-2)
        for s in rest.nonzero().squeeze(1).tolist():
            joints[..., s, :] = self._joint_of(nodes[:, s].tolist())
        return joints

    @cached_property
    def _trees(self) -> list[JunctionTree]:
        return [JunctionTree(item, self._order) for item in batch_items(self._mrf.detach())]

    def _log_probs(self, nodes: Int[Tensor, "set sets"], labels: Int[Tensor, "set sets"]) -> Float[Tensor, "*b sets"]:
        """Return log Z of the labelings with the labels of each set, minus log Z of all labelings."""
        if len(nodes) == 1:
            return self._node[..., nodes[0], labels[0]].double().log()
        columns = zip(nodes.T.tolist(), labels.T.tolist(), strict=True)
        evidence = [{}, *(dict(zip(*column, strict=True)) for column in columns)]
        log_z = torch.tensor([list(map(tree.log_partition, evidence)) for tree in self._trees], dtype=torch.float64)
        log_probs = (log_z[:, 1:] - log_z[:, :1]).clamp(max=0.0)
        return log_probs.reshape(*self.batch_shape, nodes.shape[1]).to(nodes.device)

    def _sample(self, number: int, rng: np.random.Generator) -> Sample:
        return sample_by_elimination(self._mrf.detach(), self._order, number, rng)

    def _joint_of(self, nodes: list[int]) -> Float[Tensor, "*batch entries"]:
        """Compute the joint of one set, eliminating its nodes last."""
        first = [node for node in self._order.nodes if node not in nodes]
        order = follow_order(neighbors_in_mrf(self._mrf), num_possible_labels(self._mrf), [*first, *nodes])
        check_cost(order)
        tables = []
        for item in batch_items(self._mrf):
            tree = JunctionTree(item, order)
            tables.append(tree.joint_of_last(tree.messages()[0], len(nodes)))
        return torch.from_numpy(np.stack(tables)).to(self._node).reshape(*self.batch_shape, -1)


def sample_by_elimination(mrf: PairwiseMRF, order: EliminationOrder, number: int, rng: np.random.Generator) -> Sample:
    """Draw labelings from the last node of the order to the first, each given those that are eliminated after it."""
    tree = JunctionTree(mrf, order)
    pool, labels = tree.messages()[0], torch.empty(number, mrf.num_nodes, dtype=torch.long)
    step = max(1, CHUNK_ELEMENTS // max(1, mrf.num_nodes))
    for lo in range(0, number, step):
        chunk = labels[lo : lo + step]
        chunk.copy_(torch.from_numpy(tree.draw(pool, rng.random(chunk.shape))))
    return Sample(labels, Sampling("elimination", is_exact=True))


def eliminate(mrf: PairwiseMRF) -> ExactPosterior:
    """Compute exact marginals by variable elimination, for each MRF of a batch."""
    constant = mrf.detach()
    order = feasible_order(constant)
    if mrf.requires_grad:
        raise NoExactInference(
            "Variable elimination has no gradient.",
            "potentials without gradients",
            "Pass detached potentials, or use sum_product.",
        )
    results = [JunctionTree(item, order).marginals() for item in batch_items(constant)]
    nodes, joints, log_partitions = zip(*results, strict=True)
    node, joint = (
        torch.from_numpy(np.stack(parts)).to(constant.unary).reshape((*mrf.batch_shape, *parts[0].shape))
        for parts in (nodes, joints)
    )
    field = constant.unary, constant.edge_index, constant.pairwise
    posterior = ExactPosterior(*field, node, joint, edge_scale=constant.edge_scale)
    posterior.log_partition = torch.tensor(log_partitions, dtype=torch.float64).reshape(mrf.batch_shape)
    return posterior


def batch_items(mrf: PairwiseMRF) -> list[PairwiseMRF]:
    """Return the MRFs of a batch."""
    if not mrf.batch_shape:
        return [mrf]
    scales = [None] * len(mrf.unary) if mrf.edge_scale is None else mrf.edge_scale
    parts = zip(mrf.unary, mrf.pairwise, scales, strict=True)
    return [PairwiseMRF(u, mrf.edge_index, t, edge_scale=s) for u, t, s in parts]
