"""Cora, Citeseer and Pubmed from the files that come with the package."""

from importlib import resources

import numpy as np
import torch

from edgewise.data.raw_graph import RawGraph


def read_bundled(key: str) -> RawGraph:
    """Read the bundled copy of a dataset."""
    file = resources.files("edgewise.data").joinpath("bundled", f"{key}.npz")
    with resources.as_file(file) as path, np.load(path, allow_pickle=False) as arrays:
        x = np.zeros(arrays["shape"], dtype=np.float32)
        row = np.repeat(np.arange(len(x)), np.diff(arrays["indptr"]))
        x[row, arrays["indices"]] = arrays.get("values", 1)  # all are 1 where none are stored
        edges, y = arrays["edges"].astype(np.int64), arrays["y"].astype(np.int64)
    return RawGraph(torch.from_numpy(x), torch.from_numpy(edges), torch.from_numpy(y))
