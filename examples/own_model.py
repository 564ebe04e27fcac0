"""Train a PyTorch Geometric model on bundled Cora, evaluate its probabilities, and calibrate them.

python examples/own_model.py

The model does not depend on edgewise. `ew.wrap` converts its predictions to a posterior, `ew.evaluate` scores nodes and
edges, and `ew.StructuredCalibrator` calibrates the nodes and models the dependence between the ends of each edge.
"""

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, dropout
from torch_geometric.data import Data
from torch_geometric.nn import SAGEConv

import edgewise as ew


class Sage(torch.nn.Module):
    """Two layers of GraphSAGE on a linear embedding of the features."""

    def __init__(self, num_features: int, num_classes: int, width: int = 64) -> None:
        super().__init__()
        self.embedding = torch.nn.Linear(num_features, width)
        self.first, self.second = SAGEConv(width, width), SAGEConv(width, num_classes)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Return logits, one row per node, as `ew.wrap` expects."""
        x = dropout(self.embedding(x).relu(), 0.5, self.training)
        x = dropout(self.first(x, edge_index).relu(), 0.5, self.training)
        logits: Tensor = self.second(x, edge_index)
        return logits


def train(model: Sage, data: Data, split: ew.Split) -> None:
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
    for _ in range(60):
        optimizer.zero_grad()
        logits = model(data.x, data.edge_index)
        cross_entropy(logits[split.train], data.y[split.train]).backward()
        optimizer.step()


def main() -> None:
    """Train, score, calibrate, score again."""
    torch.manual_seed(0)
    data = ew.load_dataset("cora")
    split = ew.make_splits(data.y)[0]
    model = Sage(data.num_features, num_classes=7)
    train(model, data, split)

    before = ew.wrap(model, data)  # the joint of two nodes is the product of their marginals
    after = ew.StructuredCalibrator().fit(before, data, split).posterior()  # does not use labels of test nodes

    scores = {
        name: ew.evaluate(posterior, data.y, data.edge_index, mask=split.test)
        for name, posterior in (("before", before), ("after", after))
    }
    nodes, edges = scores["before"].nodewise, scores["before"].edgewise
    print(f"{nodes.count:,} test nodes (accuracy {nodes.accuracy:.1%}), {edges.count:,} edges between them\n")
    print(f"{'':8}{'node ece':>10}{'node nll':>10}{'edge ece':>10}{'edge nll':>10}{'P(same)':>10}{'observed':>10}")
    for name, ev in scores.items():
        same = ev.same_label
        assert same is not None
        numbers = (ev.nodewise.ece, ev.nodewise.nll, ev.edgewise.ece, ev.edgewise.nll, same.probability, same.frequency)
        print(f"{name:8}" + "".join(f"{number:10.3f}" for number in numbers))

    error = "over" if nodes.overconfidence > nodes.underconfidence else "under"
    print(
        f"\nThe model was {error}-confident. Calibration keeps its predictions and corrects their confidence. The"
        "\ncoupling adds that neighbors often have the same label, which a product cannot express. P(same) is the mean"
        "\nprobability of this event, and the last column is its frequency."
    )


if __name__ == "__main__":
    main()
