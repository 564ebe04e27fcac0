"""Trained models of a sweep on disk: who has them adds calibrators without training again."""

import json
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from edgewise.experiments.runs import RunKey
from edgewise.experiments.sources import Task
from edgewise.experiments.versions import versions
from edgewise.models.fitted import Fitted
from edgewise.models.model import Model


@dataclass(frozen=True)
class FittedFiles:
    """A folder of fitted models; a file's name has a hash of all that its numbers depend on."""

    folder: Path

    def path(self, model: Model[Any], key: RunKey, task: Task) -> Path:
        """Give the file of a run's training: hyper-parameters, graph, split, seed and versions decide which it is."""
        words = [model.name, asdict(model), task.fingerprint(key.split), key.fold, key.seed, versions()]
        digest = sha256(json.dumps(words, sort_keys=True).encode()).hexdigest()[:12]
        return self.folder / f"{key.dataset}-{model.name}-{key.split}-{key.fold}-{key.init}-{digest}.safetensors"

    def fitted(self, model: Model[Any], key: RunKey, task: Task) -> Fitted:
        """Load a trained model, or train and keep it."""
        path = self.path(model, key, task)
        if path.exists():
            return Fitted.load(path)
        fitted: Fitted = model.fit(task.data, task.splits[key.split, key.fold], seed=key.seed)
        self.folder.mkdir(parents=True, exist_ok=True)
        fitted.save(path)
        return fitted
