"""Train a model of your own on bundled Cora, ask whether its probabilities are right, and make them right.

python examples/own_model.py

The model is plain PyTorch Geometric and knows nothing of edgewise. `ew.wrap` makes a posterior of it, `ew.evaluate`
scores nodes and edges, and `ew.StructuredCalibrator` calibrates the nodes and couples the two ends of each edge.
"""

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, dropout
from torch_geometric.data import Data
from torch_geometric.nn import SAGEConv

import edgewise as ew


class Sage(torch.nn.Module):
    """Two layers of GraphSAGE on a narrow embedding of the words."""

    def __init__(self, num_features: int, num_classes: int, width: int = 64) -> None:
        super().__init__()
        self.words = torch.nn.Linear(num_features, width)
        self.first, self.second = SAGEConv(width, width), SAGEConv(width, num_classes)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Give logits, one row a node: all that `ew.wrap` asks for."""
        x = dropout(self.words(x).relu(), 0.5, self.training)
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

    before = ew.wrap(model, data)  # the joint of two nodes is the product of what is believed of each
    after = ew.StructuredCalibrator().fit(before, data, split).posterior()  # looks at no label of a test node

    scores = {
        name: ew.evaluate(posterior, data.y, data.edge_index, mask=split.test, same_label=True)
        for name, posterior in (("before", before), ("after", after))
    }
    nodes, edges = scores["before"].nodewise, scores["before"].edgewise
    print(f"{nodes.count:,} test nodes ({nodes.accuracy:.1%} right), {edges.count:,} edges between them\n")
    print(f"{'':8}{'node ece':>10}{'node nll':>10}{'edge ece':>10}{'edge nll':>10}{'P(same)':>10}{'are same':>10}")
    for name, ev in scores.items():
        same = ev.same_label
        assert same is not None
        numbers = (ev.nodewise.ece, ev.nodewise.nll, ev.edgewise.ece, ev.edgewise.nll, same.probability, same.frequency)
        print(f"{name:8}" + "".join(f"{number:10.3f}" for number in numbers))

    over = "more" if nodes.overconfidence > nodes.underconfidence else "less"
    print(
        f"\nThe model was {over} certain than right. Calibration keeps what it predicts and corrects how certain it is;"
        "\nthe coupling adds what a product cannot say, that neighbors often share a label. P(same) is the mean"
        "\nprobability of that, beside the share of edges where it is so."
    )


if __name__ == "__main__":
    main()
