"""The convergence attribute of posteriors: set by solvers, saved, loaded and kept by conversions."""

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

import edgewise as ew

TRIANGLE = torch.tensor([[0, 1, 0], [1, 2, 2]])
SOLVERS = {
    "sum_product": ew.sum_product,
    "max_product": ew.max_product,
    "mean_field": ew.mean_field,
    "exact by enumeration": ew.exact_marginals,
}


def make_mrf(edges=TRIANGLE, batch=()):
    unary = torch.randn(*batch, 3, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return ew.PairwiseMRF(unary, edges, torch.eye(2, dtype=torch.float64))


@pytest.mark.parametrize("solver", SOLVERS)
def test_solver_returns_the_convergence_of_its_posterior(solver):
    posterior, convergence = SOLVERS[solver](make_mrf())
    assert isinstance(convergence, ew.Convergence) and convergence
    assert posterior.convergence is convergence


def test_exact_marginals_of_a_forest_converge_in_zero_sweeps():
    posterior, convergence = ew.exact_marginals(make_mrf(TRIANGLE[:, :2]))
    assert posterior.convergence is convergence
    assert convergence == ew.Convergence(True, 0, 0.0, method="forest")


def test_truncated_run_advises_more_sweeps():
    posterior, _ = ew.sum_product(make_mrf(), max_sweeps=2, tolerance=0.0)
    assert not posterior.convergence
    assert "raise max_sweeps" in posterior.convergence.advice


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("max_sweeps", [2, 1000])
def test_convergence_is_saved_and_loaded_with_the_posterior(tmp_path, solver, max_sweeps):
    options = {} if solver.startswith("exact") else {"max_sweeps": max_sweeps}
    posterior, convergence = SOLVERS[solver](make_mrf(), **options)
    posterior.save(tmp_path / "posterior.safetensors")
    loaded = ew.Posterior.load(tmp_path / "posterior.safetensors")
    assert loaded.convergence == convergence
    assert torch.equal(loaded.node, posterior.node)


def test_file_without_convergence_loads_as_none(tmp_path):
    posterior, _ = ew.sum_product(make_mrf())
    path = tmp_path / "old.safetensors"
    save_file(posterior.tensors(), path, {"format": "edgewise posterior 1", "kind": "PairwisePosterior"})
    assert ew.Posterior.load(path).convergence is None


@pytest.mark.parametrize("text", ["converged", "{}", '{"converged": true, "turns": 3}', "[1]"])
def test_file_with_invalid_convergence_raises(tmp_path, text):
    posterior = ew.IndependentPosterior(torch.full((3, 2), 0.5))
    path = tmp_path / "wrong.safetensors"
    metadata = {"format": "edgewise posterior 1", "kind": "IndependentPosterior", "convergence": text}
    save_file(dict(posterior.tensors()), path, metadata)
    with pytest.raises(ValueError, match="Expected a convergence"):
        ew.Posterior.load(path)


def test_posterior_without_solver_has_no_convergence(tmp_path):
    posterior = ew.IndependentPosterior(torch.full((3, 2), 0.5))
    assert posterior.convergence is None
    posterior.save(tmp_path / "posterior.safetensors")
    with safe_open(tmp_path / "posterior.safetensors", framework="pt") as file:
        assert "convergence" not in file.metadata()


def test_convergence_is_kept_by_to_detach_and_indexing():
    posterior, convergence = ew.sum_product(make_mrf(batch=(2,)))
    assert posterior.to("cpu", torch.float32).convergence is convergence
    assert posterior.detach().convergence is convergence
    assert posterior[1].convergence is convergence


def test_convergence_of_wrong_type_raises():
    with pytest.raises(ValueError, match="but got str"):
        ew.IndependentPosterior(torch.full((3, 2), 0.5), convergence="yes")
