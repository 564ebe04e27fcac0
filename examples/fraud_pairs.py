"""Make decisions about pairs of accounts, and compare their cost with that under the true posterior.

python examples/fraud_pairs.py

The graph is heterophilous: fraudulent accounts have links to honest accounts, and hardly ever to each other. It is
drawn from a known distribution, so the true posterior is known. The example trains a model, calibrates it, and makes
two decisions for each edge: investigate it if any end may be fraudulent, and block it if exactly one end is.
"""

import torch
from torch.nn.functional import cross_entropy
from torch_geometric.nn import GraphSAGE

import edgewise as ew

CLASSES = ("honest", "fraud")
INVESTIGATE = {"false_positive": 1.0, "false_negative": 4.0}  # a needless investigation is cheaper than a missed fraud
BLOCK = {"false_positive": 4.0, "false_negative": 1.0}  # a wrong block is more expensive than a missed one
ANY, ONE = "any=fraud", "only_one=fraud"


def train(graph: ew.SyntheticGraph, split: ew.Split) -> ew.Posterior:
    data = graph.data
    torch.manual_seed(0)
    model = GraphSAGE(data.num_features, hidden_channels=32, num_layers=2, out_channels=len(CLASSES))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(60):
        optimizer.zero_grad()
        logits = model(data.x, data.edge_index)
        cross_entropy(logits[split.train], data.y[split.train]).backward()
        optimizer.step()
    return ew.wrap(model, data)


def main() -> None:
    """Draw a graph, train, calibrate, decide."""
    coupling = torch.tensor([[0.0, 0.3], [0.3, -4.0]])  # log-potentials of an edge: two frauds are rarely linked
    graph = ew.synthetic(6000, 2, kind="mrf", coupling=coupling, average_degree=3.0, seed=0)
    y, edges = graph.data.y, graph.edge_index
    role = torch.rand(len(y), generator=torch.Generator().manual_seed(0))
    split = ew.Split(train=role < 0.2, val=(role >= 0.2) & (role < 0.6), test=role >= 0.6)
    both = (y[edges] == 1).all(0).float().mean()
    print(f"{len(y):,} accounts, {y.float().mean():.0%} of them fraudulent. Of {edges.shape[1]:,} edges,", end=" ")
    print(f"{1 - graph.homophily:.0%} link a fraudulent\nand an honest account, and {both:.1%} two fraudulent ones.\n")

    raw = train(graph, split)
    calibrated = ew.StructuredCalibrator().fit(raw, graph.data, split).posterior()
    truth, _ = graph.truth(split.train, chains=2, burn_in=100, sweeps=300)  # given the training labels
    posteriors = {
        "uncalibrated product": raw,
        "calibrated product": ew.wrap(calibrated.node),
        "calibrated joints": calibrated,
        "true joints": truth,
    }
    print("1. Decide by the probabilities alone. Investigate edges where any end may be fraudulent (a miss costs 4, a")
    print("   false positive 1). Block edges where exactly one end is (a false positive costs 4, a miss 1). Means over")
    print("   test edges:\n")
    print(f"{'':22}{'edge nll':>10}{'cost (investigate)':>20}{'cost (block)':>14}{'false alarms':>14}")
    tables, costs = {}, {}
    for name, posterior in posteriors.items():
        nll = ew.evaluate(posterior, y, edges, mask=split.test).edgewise.nll
        tables[name] = ew.predict_edges(posterior, edges, (ANY, ONE), class_names=CLASSES)
        investigate, block = (tables[name].outcomes(event, y, split.test) for event in (ANY, ONE))
        thresholds = ew.bayes_threshold(**INVESTIGATE), ew.bayes_threshold(**BLOCK)
        costs[name] = thresholds[0].check(*investigate).cost, thresholds[1].check(*block).cost
        false = ew.threshold_for_believed_fdr(block[0], 0.1).check(*block).false_discoveries
        print(f"{name:22}{nll:10.3f}{costs[name][0]:20.3f}{costs[name][1]:14.3f}{false:14.1%}")
    uncalibrated, product, joint, best = (sum(costs[name]) for name in posteriors)
    print("\nFalse alarms: their fraction among the blocked edges if the threshold is chosen so that P predicts 10%.")
    excess = uncalibrated - best
    saved = [(uncalibrated - cost) / excess for cost in (product, joint)]
    print(f"Compared with the true joints, uncalibrated products cost {excess:.3f} more per edge; calibrated products")
    print(f"save {saved[0]:.0%} of that, and calibrated joints {saved[1]:.0%}.")

    print("\n2. Choose thresholds of the calibrated joints on validation edges, and check them on test edges:\n")
    for event, costs_of_errors in ((ANY, INVESTIGATE), (ONE, BLOCK)):
        p, outcomes = tables["calibrated joints"].outcomes(event, y, split.val)
        on_test = tables["calibrated joints"].outcomes(event, y, split.test)
        for threshold in (
            ew.threshold_for_cost(p, outcomes, **costs_of_errors),
            ew.threshold_for_precision(p, outcomes, 0.85, confidence=0.9),
            ew.threshold_for_fdr(p, outcomes, 0.1, among=on_test[0]),
        ):
            print(f"{event}: {threshold}\n    on test: {threshold.check(*on_test)}")


if __name__ == "__main__":
    main()
