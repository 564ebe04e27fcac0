"""Reading and writing of pairwise MRFs in the UAI format of the inference competitions.

A model file holds the word MARKOV or BAYES, the number of variables, their numbers of labels, the number of factors,
the scope of each factor, and the table of each factor in row-major order. Tables hold potentials, not their logarithms.
An evidence file holds the number of observed variables and pairs of variable and label. In files of older competitions
the number of evidence sets comes first.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from edgewise.files.arrays import FileError
from edgewise.files.output import replace_file
from edgewise.inference.mrf import PairwiseMRF, check_mrf

Array = NDArray[Any]

FORBIDDEN = -1e4  # log-potential of a pair of labels with potential 0: beside possible pairs, e^-10000 underflows to 0
MAX_LOG_CONSTANT = 600.0  # e^709 overflows; a larger constant is written as several factors


def read_uai(path: Path | str, evidence: Path | str | Mapping[int, int] | None = None) -> PairwiseMRF:
    """Read a pairwise MRF in float64 from a model file in the UAI format.

    A variable with fewer labels than others has the log-potential -inf for the labels that it lacks, so they have
    probability 0. A factor of empty scope is a constant. It is added to the potentials of node 0, and so to log Z.
    Factors on the same pair of nodes are multiplied. A pair of labels with potential 0 has the log-potential -1e4. So
    if no labeling is possible, log Z is about -1e4 instead of -inf.

    Parameters
    ----------
    path
        A model file with factors of at most two variables.
    evidence
        An evidence file, or observed labels as {node: label}.

    Raises
    ------
    ValueError
        If the file is not in this format, or if a factor has more than two variables.
    """
    numbers = _Numbers(Path(path))
    kind = numbers.word("MARKOV or BAYES")
    if kind.upper() not in ("MARKOV", "BAYES"):
        raise FileError(f"Expected {path} to start with MARKOV or BAYES, but got {kind[:40]!r}.")
    num_nodes = numbers.integer("the number of variables", 1)
    num_labels = [numbers.integer(f"the number of labels of variable {i}", 1) for i in range(num_nodes)]
    scopes = [_read_scope(numbers, f, num_nodes) for f in range(numbers.integer("the number of factors", 0))]
    unary = np.full((num_nodes, max(num_labels)), -np.inf)
    for i, number in enumerate(num_labels):
        unary[i, :number] = 0.0
    pairwise: dict[tuple[int, int], Array] = {}
    for f, scope in enumerate(scopes):
        table = _read_table(numbers, f, [num_labels[i] for i in scope])
        if len(scope) < 2:
            node = scope[0] if scope else 0
            unary[node, : num_labels[node]] += table
            continue
        i, j = scope
        first, second = min(i, j), max(i, j)
        total = pairwise.setdefault((first, second), np.zeros((unary.shape[1],) * 2))
        total[: num_labels[first], : num_labels[second]] += np.maximum(table if i < j else table.T, FORBIDDEN)
    numbers.end()
    edges = sorted(pairwise)
    edge_index = torch.tensor(edges, dtype=torch.long).reshape(-1, 2).T
    couplings = np.stack([pairwise[edge] for edge in edges]) if edges else np.zeros((1, *(unary.shape[1],) * 2))
    observed = evidence if isinstance(evidence, Mapping) or evidence is None else _read_evidence(Path(evidence))
    return PairwiseMRF(torch.from_numpy(unary), edge_index, torch.from_numpy(couplings), evidence=observed)


def write_uai(mrf: PairwiseMRF, path: Path | str) -> None:
    """Write a single MRF as a model file in the UAI format: a factor for each node, then a factor for each edge.

    Labels with the unary potential -inf keep the potential 0. The largest potential of each factor is 1: constants are
    collected in factors of empty scope, so that log Z is kept.
    """
    check_mrf(mrf)
    if mrf.batch_shape:
        raise ValueError(f"Expected a single MRF, but got a batch of {mrf.batch_shape[0]}. Write them one by one.")
    replace_file(Path(path), lambda file: _write(mrf.detach(), file))


def _write(mrf: PairwiseMRF, path: Path) -> None:
    unary = mrf.unary.double().cpu().numpy()
    couplings = mrf.coupling(slice(None)).double().cpu().numpy()
    classes, edges = mrf.num_classes, mrf.edge_index.T.tolist()
    couplings = np.broadcast_to(couplings, (len(edges), classes, classes))
    tables = [*unary, *couplings]
    constant = sum(float(table.max()) for table in tables)
    num_constants = 1 + int(abs(constant) / MAX_LOG_CONSTANT)
    with path.open("w", encoding="ascii", newline="\n") as file:
        file.write(f"MARKOV\n{mrf.num_nodes}\n{' '.join([str(classes)] * mrf.num_nodes)}\n")
        file.write(f"{len(tables) + num_constants}\n")
        file.write("".join(f"1 {node}\n" for node in range(mrf.num_nodes)))
        file.write("".join(f"2 {i} {j}\n" for i, j in edges))
        file.write("0\n" * num_constants)
        for table in tables:
            values = np.exp(table - table.max()).ravel()
            file.write(f"\n{len(values)}\n {' '.join(map(repr, values.tolist()))}\n")
        file.write(f"\n1\n {float(np.exp(constant / num_constants))!r}\n" * num_constants)


class _Numbers:
    """The words of a file, read one after the other."""

    def __init__(self, path: Path):
        try:
            self._words = path.read_text(encoding="utf-8").split()
        except (OSError, UnicodeDecodeError) as error:
            raise FileError(f"Expected {path} to be a readable text file, but got: {error}.") from error
        self._path, self._next = path, 0

    def word(self, meaning: str) -> str:
        if self._next == len(self._words):
            raise FileError(f"Expected {meaning} in {self._path}, but the file ends. Copy it again.")
        self._next += 1
        return self._words[self._next - 1]

    def integer(self, meaning: str, lowest: int, limit: int | None = None) -> int:
        text = self.word(meaning)
        if not text.isdecimal() or int(text) < lowest or (limit is not None and int(text) >= limit):
            allowed = f"from {lowest}" + ("" if limit is None else f" to {limit - 1}")
            raise FileError(f"Expected {meaning} in {self._path}, an integer {allowed}, but got {text[:40]!r}.")
        return int(text)

    def values(self, count: int, meaning: str) -> Array:
        words = self._words[self._next : self._next + count]
        if len(words) < count:
            raise FileError(f"Expected {count} numbers of {meaning} in {self._path}, but the file ends. Copy it again.")
        self._next += count
        try:
            return np.array(words, dtype=np.float64)
        except ValueError as error:
            raise FileError(f"Expected numbers of {meaning} in {self._path}, but got: {error}.") from error

    def end(self) -> None:
        if self._next < len(self._words):
            raise FileError(
                f"Expected {self._path} to end after the last factor, but {self._words[self._next][:40]!r} follows."
            )

    @property
    def path(self) -> Path:
        return self._path

    @property
    def num_left(self) -> int:
        return len(self._words) - self._next


def _read_scope(numbers: _Numbers, factor: int, num_nodes: int) -> list[int]:
    size = numbers.integer(f"the number of variables of factor {factor}", 0)
    if size > 2:
        raise FileError(
            f"Expected factors of at most two variables in {numbers.path}, but factor {factor} has {size}. Convert it "
            "to pairwise factors with an auxiliary variable that has one label for each entry of its table."
        )
    scope = [numbers.integer(f"a variable of factor {factor}", 0, num_nodes) for _ in range(size)]
    if len(set(scope)) < size:
        raise FileError(f"Expected distinct variables in {numbers.path}, but factor {factor} has {scope}.")
    return scope


def _read_table(numbers: _Numbers, factor: int, shape: list[int]) -> Array:
    """Read the logarithms of the potentials of a factor."""
    expected = int(np.prod(shape, dtype=np.int64))
    count = numbers.integer(f"the table size of factor {factor}", 0)
    if count != expected:
        raise FileError(
            f"Expected {expected} entries in the table of factor {factor} of {numbers.path}, but got {count}."
        )
    values = numbers.values(count, f"factor {factor}")
    if not (np.isfinite(values) & (values >= 0)).all() or not values.any():
        raise FileError(
            f"Expected nonnegative potentials, not all 0, in factor {factor} of {numbers.path}, but got values from "
            f"{values.min():g} to {values.max():g}. The format has potentials, not their logarithms."
        )
    with np.errstate(divide="ignore"):
        return np.log(values).reshape(shape)


def _read_evidence(path: Path) -> dict[int, int]:
    """Read observed labels. Files of older competitions start with the number of evidence sets, which must be 1."""
    numbers = _Numbers(path)
    if numbers.num_left == 0:
        return {}
    count = numbers.integer("the number of observed variables", 0)
    if count == 1 and numbers.num_left % 2 == 1:
        count = numbers.integer("the number of observed variables", 0)
    if numbers.num_left != 2 * count:
        raise FileError(
            f"Expected {count} pairs of variable and label in {path}, but {numbers.num_left} numbers follow."
        )
    return {numbers.integer("a variable", 0): numbers.integer("a label", 0) for _ in range(count)}
