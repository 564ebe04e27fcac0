"""Plots: reliability, groups, risk-coverage curves, joint NLL of sets. Matplotlib is imported when one is drawn."""

from typing import TYPE_CHECKING

import lazy_loader  # type: ignore[import-untyped]

if TYPE_CHECKING:
    from edgewise.plots.group_plot import plot_groups as plot_groups
    from edgewise.plots.joint_nll_plot import plot_joint_nll as plot_joint_nll
    from edgewise.plots.reliability import plot_reliability as plot_reliability
    from edgewise.plots.risk_coverage_plot import plot_risk_coverage as plot_risk_coverage

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "joint_nll_plot": ["plot_joint_nll"],
        "group_plot": ["plot_groups"],
        "reliability": ["plot_reliability"],
        "risk_coverage_plot": ["plot_risk_coverage"],
    },
)
