"""Log the calibration of nodes and edges in a Lightning training loop.

python examples/lightning_loop.py

The data are many small graphs in mini-batches, so both ends of an edge are always in one batch. `ew.GraphCalibration`
is a torchmetrics module: as an attribute of a LightningModule, it moves to the device of the module.

The same code works with several processes (`Trainer(devices=4, strategy="ddp")`): the state is one tensor of integer
sums, `compute` adds the sums of all processes, and each process logs the same scores of all validation graphs, so
`sync_dist` is not needed. The number of graphs must be a multiple of the number of processes: otherwise Lightning's
sampler repeats some graphs, and they count twice.
"""

import logging
import warnings

import lightning as L
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch_geometric.data import Batch, Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GraphSAGE

import edgewise as ew

PRINTED_SCORES = ("nodewise/accuracy", "nodewise/ece", "edgewise/nll", "edgewise/ece")


class Classifier(L.LightningModule):
    """GraphSAGE that logs the calibration on the validation graphs."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.network = GraphSAGE(num_classes, hidden_channels=32, num_layers=3, out_channels=num_classes)
        self.calibration = ew.GraphCalibration()
        self.epochs: dict[int, ew.Evaluation] = {}

    def training_step(self, batch: Batch, step: int) -> Tensor:
        """Return the cross-entropy of all nodes of a batch."""
        return cross_entropy(self.network(batch.x, batch.edge_index), batch.y)

    def validation_step(self, batch: Batch, step: int) -> None:
        """Add a batch to the sums."""
        probs = self.network(batch.x, batch.edge_index).softmax(-1)
        self.calibration.update(probs, batch.y, batch.edge_index)

    def on_validation_epoch_end(self) -> None:
        """Log the scores of all batches and processes, and reset the sums."""
        ev = self.epochs[self.current_epoch + 1] = self.calibration.compute()
        self.log_dict(ev.scalars())  # 21 numbers under names such as "edgewise/ece"
        self.calibration.reset()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Use a high learning rate, to become overconfident soon."""
        return torch.optim.Adam(self.parameters(), lr=0.02)


def small_graph(seed: int) -> Data:
    """Draw a graph, with features projected on the class means, which differ between graphs."""
    graph = ew.synthetic(150, 3, homophily=0.8, feature_noise=1.2, seed=seed)
    return Data(x=graph.data.x @ graph.feature_means.float().T, edge_index=graph.data.edge_index, y=graph.data.y)


def main() -> None:
    """Train on 4 graphs, and validate on 20."""
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", ".*LeafSpec", FutureWarning)  # lightning 2.6 with torch 2.13
    warnings.filterwarnings("ignore", ".*does not have many workers")  # all graphs are in memory
    L.seed_everything(0, verbose=False)
    graphs = [small_graph(seed) for seed in range(24)]
    train, val = DataLoader(graphs[:4], batch_size=2, shuffle=True), DataLoader(graphs[4:], batch_size=8)
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=48,
        num_sanity_val_steps=0,
        check_val_every_n_epoch=6,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    model = Classifier(num_classes=3)
    trainer.fit(model, train, val)

    print("epoch" + "".join(f"{name:>19}" for name in PRINTED_SCORES))
    for epoch, ev in model.epochs.items():
        print(f"{epoch:5}" + "".join(f"{ev.scalars()[name]:19.3f}" for name in PRINTED_SCORES))
    nodes, edges = (min(model.epochs, key=lambda epoch: model.epochs[epoch][view].ece) for view in ew.VIEWS[:2])
    print(
        f"\nEach row scores {ev.nodewise.count:,} nodes and {ev.edgewise.count:,} edges of {len(graphs[4:])} graphs,"
        f" and {len(trainer.callback_metrics)} scores are logged.\nThe calibration error is lowest for nodes after"
        f" epoch {nodes}, and for edges after epoch {edges}, so early stopping\nby the nodes selects a different model."
        " Later both errors increase, because the network becomes overconfident."
    )


if __name__ == "__main__":
    main()
