"""Files in the UAI format: a literal model, the competition's instances where they are at hand, and damaged files."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given

from edgewise.inference import exact_marginals, read_uai, write_uai
from helpers.random_fields import MRFInputs, small_mrf_inputs

INSTANCES = Path(__file__).parents[3] / "shared" / "uai"
QUICK = ("Grids_12", "Segmentation_11", "Segmentation_13", "Segmentation_15")
SLOW = (
    *("Grids_14", "Grids_16", "Grids_18", "DBN_12", "DBN_14", "DBN_16", "CSP_11"),
    *(f"ObjectDetection_{number}" for number in range(12, 76, 2)),
)
needs_instances = pytest.mark.skipif(not INSTANCES.exists(), reason="needs the UAI 2014 instances in ../shared/uai")

MODEL = """MARKOV
3
2 3 2
4
1 0
2 1 0
2 1 2
0

2 0.5 2.0
6 1 2 3 4 5 6
6 1 0 1 1 1 1
1 10.0
"""


def test_literal_model(tmp_path):
    """Node 1 has three labels, the first of them excludes label 1 of node 2."""
    path = tmp_path / "model.uai"
    path.write_text(MODEL)
    mrf = read_uai(path)
    assert mrf.unary.shape == (3, 3) and mrf.edge_index.tolist() == [[0, 1], [1, 2]]
    weight = np.zeros((2, 3, 2))
    first, second = np.arange(1.0, 7.0).reshape(3, 2).T, np.array([[1, 0], [1, 1], [1, 1]])
    for labels in np.ndindex(2, 3, 2):
        weight[labels] = 10 * (0.5, 2.0)[labels[0]] * first[labels[0], labels[1]] * second[labels[1], labels[2]]
    posterior, _ = exact_marginals(mrf)
    expected = weight / weight.sum()
    np.testing.assert_allclose(posterior.node[1].numpy(), expected.sum((0, 2)), rtol=0, atol=1e-12)
    np.testing.assert_allclose(posterior.node[0].numpy(), [*expected.sum((1, 2)), 0.0], rtol=0, atol=1e-12)
    joint = posterior.joint(torch.tensor([[1], [2]]))[0].numpy()
    np.testing.assert_allclose(joint, np.pad(expected.sum(0), ((0, 0), (0, 1))), rtol=0, atol=1e-12)


@pytest.mark.parametrize("text", ["1\n0 1\n", "1 0 1", "1\n1 0 1\n"])
def test_evidence_with_and_without_the_number_of_sets(tmp_path, text):
    (tmp_path / "model.uai").write_text(MODEL)
    (tmp_path / "model.uai.evid").write_text(text)
    mrf = read_uai(tmp_path / "model.uai", evidence=tmp_path / "model.uai.evid")
    assert exact_marginals(mrf)[0].node[0].tolist() == [0.0, 1.0, 0.0]
    assert torch.equal(mrf.unary, read_uai(tmp_path / "model.uai", evidence={0: 1}).unary)


@pytest.mark.parametrize("text", ["", "0"])
def test_no_evidence(tmp_path, text):
    (tmp_path / "model.uai").write_text(MODEL)
    (tmp_path / "empty.evid").write_text(text)
    mrf = read_uai(tmp_path / "model.uai", evidence=tmp_path / "empty.evid")
    assert torch.equal(mrf.unary, read_uai(tmp_path / "model.uai").unary)


@given(inputs=small_mrf_inputs(loops=True, coupling_std=3.0))
def test_written_model_has_the_same_distribution(tmp_path_factory, inputs: MRFInputs):
    path = tmp_path_factory.mktemp("uai") / "model.uai"
    mrf = inputs.mrf()
    write_uai(mrf, path)
    again = read_uai(path)
    assert torch.equal(again.unary == -torch.inf, mrf.unary == -torch.inf)
    torch.testing.assert_close(
        exact_marginals(again)[0].node, exact_marginals(mrf)[0].node.double(), rtol=0, atol=1e-12
    )


@pytest.mark.parametrize("scale", [1.0, 300.0])
def test_written_model_keeps_log_partition(tmp_path, scale):
    """Constants above the largest double are written as several factors."""
    grid = torch.arange(16).reshape(4, 4)
    edges = torch.cat(
        [torch.stack([grid[:, :-1], grid[:, 1:]]).flatten(1), torch.stack([grid[:-1], grid[1:]]).flatten(1)], 1
    )
    inputs = MRFInputs(scale * torch.ones(16, 3, dtype=torch.float64), edges, torch.eye(3, dtype=torch.float64))
    write_uai(inputs.mrf(), tmp_path / "model.uai")
    before, after = (exact_marginals(mrf)[0] for mrf in (inputs.mrf(), read_uai(tmp_path / "model.uai")))
    np.testing.assert_allclose(float(after.log_partition), float(before.log_partition), rtol=1e-12)


@pytest.mark.parametrize(
    ("old", "new", "fact"),
    [
        ("MARKOV", "HIDDEN", "HIDDEN"),
        ("2 1 0\n", "3 1 0 2\n", "factor 1 has 3"),
        ("2 1 0\n", "2 1 7\n", "'7'"),
        ("2 1 0\n", "2 1 1\n", "factor 1"),
        ("6 1 2 3 4 5 6", "5 1 2 3 4 5", "Expected 6 entries"),
        ("0.5 2.0", "-0.5 2.0", "factor 0"),
        ("0.5 2.0", "0 0", "factor 0"),
        ("0.5 2.0", "x 2.0", "factor 0"),
        ("1 10.0", "", "file ends"),
        ("1 10.0", "1 10.0 3", "'3'"),
    ],
)
def test_damaged_model_is_refused_with_the_place(tmp_path, old, new, fact):
    assert MODEL.count(old) >= 1
    (tmp_path / "model.uai").write_text(new.join(MODEL.rsplit(old, 1)))
    with pytest.raises(ValueError, match=fact):
        read_uai(tmp_path / "model.uai")


def test_missing_file_and_batch_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"none\.uai"):
        read_uai(tmp_path / "none.uai")
    inputs = MRFInputs(torch.zeros(2, 3, 2), torch.tensor([[0], [1]]), torch.eye(2))
    with pytest.raises(ValueError, match="batch of 2"):
        write_uai(inputs.mrf(), tmp_path / "batch.uai")


@needs_instances
@pytest.mark.parametrize("name", [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)])
def test_competition_instances_have_their_published_marginals(name):
    """Marginals are published with six digits, and so is log10 Z, but without zeros at the end."""
    path = INSTANCES / f"{name}.uai"
    mrf = read_uai(path, evidence=f"{path}.evid")
    posterior, _ = exact_marginals(mrf)
    for node, expected in enumerate(_published_marginals(Path(f"{path}.MAR"))):
        np.testing.assert_allclose(posterior.node[node, : len(expected)].numpy(), expected, rtol=0, atol=1e-5)
    published = Path(f"{path}.PR").read_text().split()[-1]
    digits = len(published.lstrip("-").replace(".", "").lstrip("0"))
    assert f"{float(posterior.log_partition) / np.log(10):.{digits}g}" == f"{float(published):.{digits}g}"


@needs_instances
@pytest.mark.slow
def test_competition_instance_of_large_width_is_refused():
    """All pairs of 250 and 250 nodes, of which 17 are observed."""
    path = INSTANCES / "relational_1.uai"
    with pytest.raises(ValueError, match="at least width"):
        exact_marginals(read_uai(path, evidence=f"{path}.evid"))


def _published_marginals(path):
    words = path.read_text().split()[2:]
    while words:
        number = int(words[0])
        yield np.array(words[1 : number + 1], dtype=float)
        words = words[number + 1 :]


def test_model_without_a_possible_labeling_has_a_tiny_log_partition(tmp_path):
    """Three binary variables that must all differ: with potential 0 written as e^-10000, log Z is about -10^4."""
    factors = "\n".join(["2 0 1", "2 1 2", "2 0 2"]) + "\n" + "4 0 1 1 0\n" * 3
    (tmp_path / "odd.uai").write_text(f"MARKOV\n3\n2 2 2\n3\n{factors}")
    posterior, _ = exact_marginals(read_uai(tmp_path / "odd.uai"))
    assert -10_000 <= float(posterior.log_partition) < -9_900
