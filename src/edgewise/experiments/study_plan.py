"""Which synthetic graphs a study looks at."""

from dataclasses import dataclass
from typing import NamedTuple

from edgewise.data.options import check_whole_number

# An MRF on a random graph of degree 3 cannot have a larger homophily without one label taking over.
HOMOPHILIES = {"block_model": (0.1, 0.3, 0.5, 0.7, 0.9), "mrf": (0.1, 0.35, 0.6)}
QUICK_HOMOPHILIES = {"block_model": (0.1, 0.9), "mrf": (0.6,)}
DEGREES = {"block_model": ("poisson", 4.0), "mrf": ("regular", 3.0)}
FEATURE_NOISES = (0.5, 1.0)
QUICK_FEATURE_NOISES = (1.0,)


class GraphKey(NamedTuple):
    """All that a graph of the study is drawn by."""

    kind: str
    degree_law: str
    average_degree: float
    num_classes: int
    num_nodes: int
    homophily: float
    feature_noise: float
    seed: int


@dataclass(frozen=True)
class StudyPlan:
    """Graphs of both kinds, from strong heterophily to strong homophily, with clear and with noisy features."""

    num_nodes: int = 1000
    num_seeds: int = 3
    num_classes: int = 3
    quick: bool = False

    def __post_init__(self) -> None:
        check_whole_number("nodes", self.num_nodes, 100, 10**6)
        check_whole_number("seeds", self.num_seeds, 1, 10**4)
        check_whole_number("classes", self.num_classes, 2, 20)

    def graphs(self) -> list[GraphKey]:
        """List the graphs, all of one seed before the next."""
        homophilies = QUICK_HOMOPHILIES if self.quick else HOMOPHILIES
        noises = QUICK_FEATURE_NOISES if self.quick else FEATURE_NOISES
        return [
            GraphKey(kind, *DEGREES[kind], self.num_classes, self.num_nodes, homophily, noise, seed)
            for seed in range(self.num_seeds)
            for kind in homophilies
            for homophily in homophilies[kind]
            for noise in noises
        ]
