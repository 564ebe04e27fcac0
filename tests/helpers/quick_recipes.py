"""Recipes that train all models for a few epochs, so that a run takes fractions of a second."""

from dataclasses import replace

import edgewise as ew
from edgewise.paper.recipes import RECIPES
from edgewise.sweep.plan import Recipes, Training

QUICK_RECIPES: Recipes = {
    "gcn": (Training(ew.GCN(max_epochs=15)),),
    "gat": (Training(ew.GAT(max_epochs=5)),),
    "gmnn": (Training(ew.GMNN(pretrain_epochs=10, round_epochs=5, samples=4)),),
    "epfgnn": tuple(
        replace(training, model=replace(training.model, pretrain_epochs=10, rounds=2)) for training in RECIPES["epfgnn"]
    ),
    "jointgcn": (Training(ew.JointGCN(folds=2, max_epochs=5)),),
    "deepensemble": (Training(ew.Ensemble(ew.GCN(max_epochs=5), members=2)),),
    "mcdropout": (Training(ew.MCDropout(ew.GCN(max_epochs=5), samples=4)),),
    "spn": (Training(ew.SPN(max_epochs=5)),),
}
