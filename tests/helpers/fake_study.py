"""Fake rows of a study."""

from edgewise.paper.study import SCORE_COLUMNS, GraphKey, StudyRow


def key(seed=0, homophily=0.5):
    return GraphKey("block_model", "poisson", 4.0, 3, 100, homophily, 1.0, seed)


def row(predictor, seed=0, **scores):
    return StudyRow(key(seed), predictor, dict.fromkeys(SCORE_COLUMNS, 0.5) | scores)
