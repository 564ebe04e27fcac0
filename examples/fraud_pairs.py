"""Decide about pairs of accounts where fraud hides among the honest, and compare with what the truth would decide.

python examples/fraud_pairs.py

The graph is heterophilous: fraudsters deal with honest accounts and hardly ever with each other. It is drawn from a
known law, so the best probabilities that anybody could have are known too. We train a model, calibrate it, and act on
edges: look into those where any end is a fraudster, and act at once where exactly one is.
"""

import torch
from torch.nn.functional import cross_entropy
from torch_geometric.nn import GraphSAGE

import edgewise as ew

CLASSES = ("honest", "fraud")
LOOK = {"false_positive": 1.0, "false_negative": 4.0}  # to look in vain is cheaper than to miss a fraudster
ACT = {"false_positive": 4.0, "false_negative": 1.0}  # to act in vain is dearer than to wait
ANY, ONE = "any=fraud", "only_one=fraud"


def trained(graph: ew.SyntheticGraph, split: ew.Split) -> ew.Posterior:
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
    """Draw, train, calibrate, decide."""
    coupling = torch.tensor([[0.0, 0.3], [0.3, -4.0]])  # log-potentials of an edge: two fraudsters hardly ever meet
    graph = ew.synthetic(6000, 2, kind="mrf", coupling=coupling, average_degree=3.0, seed=0)
    y, edges = graph.data.y, graph.edge_index
    role = torch.rand(len(y), generator=torch.Generator().manual_seed(0))
    split = ew.Split(train=role < 0.2, val=(role >= 0.2) & (role < 0.6), test=role >= 0.6)
    both = (y[edges] == 1).all(0).float().mean()
    print(f"{len(y):,} accounts, {y.float().mean():.0%} of them fraud. Of {edges.shape[1]:,} edges", end=" ")
    print(f"{1 - graph.homophily:.0%} join a fraudster and an\nhonest account, and {both:.1%} join two fraudsters.\n")

    raw = trained(graph, split)
    calibrated = ew.StructuredCalibrator().fit(raw, graph.data, split).posterior()
    truth, _ = graph.truth(split.train, chains=2, burn_in=100, sweeps=300)  # given the labels that the model had
    beliefs = {
        "uncalibrated product": raw,
        "calibrated product": ew.wrap(calibrated.node),
        "calibrated joints": calibrated,
        "true joints": truth,
    }
    print(
        "1. Decide by P alone. Look where any end may be a fraudster (a miss costs 4, a vain look 1); act where exactly"
    )
    print("   one is (acting in vain costs 4, a miss 1). Means over test edges:\n")
    print(f"{'':22}{'edge nll':>10}{'cost of looking':>17}{'cost of acting':>16}{'false alarms':>14}")
    tables, costs = {}, {}
    for name, belief in beliefs.items():
        nll = ew.evaluate(belief, y, edges, mask=split.test).edgewise.nll
        tables[name] = ew.predict_edges(belief, edges, (ANY, ONE), class_names=CLASSES)
        look, act = (tables[name].outcomes(event, y, split.test) for event in (ANY, ONE))
        costs[name] = ew.bayes_threshold(**LOOK).check(*look).cost, ew.bayes_threshold(**ACT).check(*act).cost
        false = ew.threshold_for_believed_fdr(act[0], 0.1).check(*act).false_discoveries
        print(f"{name:22}{nll:10.3f}{costs[name][0]:17.3f}{costs[name][1]:16.3f}{false:14.1%}")
    wasted, product, joint, best = (sum(costs[name]) for name in beliefs)
    print("\nFalse alarms: their share when one acts on as many edges as P says can be had with 10% of them.")
    print(f"Against the best there is, uncalibrated products waste {wasted - best:.3f} an edge;", end=" ")
    print(f"calibrated\nproducts save {(wasted - product) / (wasted - best):.0%} of that,", end=" ")
    print(f"and calibrated joints {(wasted - joint) / (wasted - best):.0%}.")

    print("\n2. Choose thresholds of the calibrated joints on validation edges, and check them on test edges:\n")
    for event, of_errors in ((ANY, LOOK), (ONE, ACT)):
        p, happened = tables["calibrated joints"].outcomes(event, y, split.val)
        on_test = tables["calibrated joints"].outcomes(event, y, split.test)
        for threshold in (
            ew.threshold_for_cost(p, happened, **of_errors),
            ew.threshold_for_precision(p, happened, 0.85, confidence=0.9),
            ew.threshold_for_fdr(p, happened, 0.1, among=on_test[0]),
        ):
            print(f"{event}: {threshold}\n    on test: {threshold.check(*on_test)}")


if __name__ == "__main__":
    main()
