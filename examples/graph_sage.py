"""Train a module of your own by the protocol of the paper, on bundled Cora, and compare it with GCN.

python examples/graph_sage.py

`ew.Network` trains any module that maps (x, edge_index) to logits as `ew.GCN` is trained: Adam, early stopping on the
validation nodes, and one seed that decides initial weights and dropout. So the difference of the scores is that of the
architectures. The command repeats it over splits, folds and initializations, and puts both into its tables:

edgewise reproduce --out sage --models gcn examples/graph_sage.py:GraphSAGE --datasets cora --quick
"""

import torch
from torch import Tensor
from torch_geometric.nn import SAGEConv

import edgewise as ew


class GraphSAGE(torch.nn.Module):
    """Two layers of GraphSAGE (Hamilton, Ying, Leskovec 2017) on a linear embedding of the features.

    A layer computes H W + D⁻¹A H V + b: the node and the mean of its neighbors have different weights.
    """

    def __init__(self, num_features: int, num_classes: int) -> None:
        super().__init__()
        self.embedding = torch.nn.Linear(num_features, 64)
        self.first, self.second = SAGEConv(64, 64), SAGEConv(64, num_classes)
        self.dropout = torch.nn.Dropout(0.5)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Return logits, one row per node."""
        hidden = self.dropout(self.embedding(x).relu())
        hidden = self.first(hidden, edge_index).relu()
        logits: Tensor = self.second(self.dropout(hidden), edge_index)
        return logits


def main() -> None:
    """Train both models on the same split, and print their scores and the difference."""
    data = ew.load_dataset("cora")
    split = ew.make_splits(data.y)[0]
    models = {"GCN": ew.GCN(), "GraphSAGE": ew.Network(GraphSAGE)}
    fitted = {name: model.fit(data, split, seed=0) for name, model in models.items()}

    print(f"{'':12}{'epochs':>8}{'accuracy':>10}{'node nll':>10}{'edge ece':>10}{'edge nll':>10}")
    for name, one in fitted.items():
        ev = ew.evaluate(one, data, mask=split.test)
        nodes, edges = ev.nodewise, ev.edgewise
        scores = f"{nodes.accuracy:10.3f}{nodes.nll:10.3f}{edges.ece:10.3f}{edges.nll:10.3f}"
        print(f"{name:12}{one.history.epochs:8}{scores}")

    calibrated = ew.StructuredCalibrator().fit(fitted["GraphSAGE"], data, split)
    edges = ew.evaluate(calibrated, data, mask=split.test).edgewise
    print(f"\nGraphSAGE, calibrated with joints of edges: edge ece {edges.ece:.3f}, edge nll {edges.nll:.3f}")


if __name__ == "__main__":
    main()
