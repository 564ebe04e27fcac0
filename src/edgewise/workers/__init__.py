"""Workers that call one function on many jobs, in local processes or on a Ray cluster."""

from edgewise.workers.cluster import RayCluster
from edgewise.workers.outcomes import Failure, Finished, JobOutcome, NodeCheck, Workers
from edgewise.workers.processes import LocalProcesses, available_cores

__all__ = [
    "Failure",
    "Finished",
    "JobOutcome",
    "LocalProcesses",
    "NodeCheck",
    "RayCluster",
    "Workers",
    "available_cores",
]
