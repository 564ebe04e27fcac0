"""Structured uncertainty on graphs: whether probabilities are right, for nodes and for pairs of neighbors.

dataset → split → model.fit → posterior → calibrator.fit → evaluate → scores → table, JSON, reliability diagram
                                                        → predict_edges → decisions

The public names are listed in ``__init__.pyi``. Each is imported when it is first used, so `import edgewise` is quick,
and a script that only scores predictions does not wait for matplotlib or torch_geometric.
"""

import lazy_loader

from edgewise.version import __version__

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
__all__ += ["__version__"]
