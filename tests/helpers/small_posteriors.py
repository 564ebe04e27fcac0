"""Small posteriors of all kinds."""

import torch

import edgewise as ew

EDGES = torch.tensor([[0, 1, 2, 3], [1, 2, 0, 2]])  # a triangle 0, 1, 2 with node 3 attached to node 2


def random_probs(*shape, seed=0, dtype=torch.float64):
    g = torch.Generator().manual_seed(seed)
    return (2 * torch.randn(*shape, generator=g, dtype=torch.float64)).softmax(-1).to(dtype)


def pairwise(seed=0, num_classes=3, dtype=torch.float64, batch=(), shared=True, scaled=True):
    """Posterior of sum-product on a random MRF."""
    g = torch.Generator().manual_seed(seed)
    unary = torch.randn(*batch, 5, num_classes, generator=g, dtype=torch.float64).to(dtype)
    coupling = torch.randn(*batch, 1 if shared else 4, num_classes, num_classes, generator=g, dtype=torch.float64)
    scale = torch.randn(*batch, 4, generator=g, dtype=torch.float64).to(dtype) if scaled else None
    coupling = coupling if batch else coupling.squeeze(0)
    mrf = ew.PairwiseMRF(unary, EDGES, coupling.to(dtype), edge_scale=scale)
    return ew.sum_product(mrf)[0]


def consistent_joints():
    """Joints and their node marginals. Some pairs of labels have probability zero."""
    samples = random_probs(6, 5, 3)
    samples[:3, :, 0], samples[3:, :, 2] = 0.0, 0.0
    mixture = ew.MixturePosterior(samples / samples.sum(-1, keepdim=True))
    return mixture.node, EDGES, mixture.joint(EDGES)


KINDS = {
    "independent": lambda: ew.IndependentPosterior(random_probs(5, 3)),
    "mixture": lambda: ew.MixturePosterior(random_probs(4, 5, 3)),
    "weighted mixture": lambda: ew.MixturePosterior(random_probs(4, 5, 3), torch.tensor([0.1, 0.2, 0.3, 0.4])),
    "pairwise": pairwise,
    "pairwise from joints": lambda: ew.PairwisePosterior.from_joints(*consistent_joints()),
}
