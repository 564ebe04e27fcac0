"""Tables in an object store: moto serves the interface of S3 on this machine."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from urllib.request import urlopen

import numpy as np
import pyarrow as pa
import pytest
import torch
from pyarrow import csv, dataset, fs, parquet

import edgewise as ew
from edgewise.tables.table_jobs import TableProgress
from helpers.table_files import Graph, assert_same, cut

if TYPE_CHECKING:
    from moto.server import ThreadedMotoServer

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning:moto"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:botocore"),
]

KEY, SECRET = "AKIA7EXAMPLEKEY77777", "s3cr3t-of-the-tests"
NUM_PARTS = 4


@contextmanager
def serve(port: int) -> "Iterator[ThreadedMotoServer]":
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=port, verbose=False)
    server.start()
    try:
        yield server
    finally:
        server.stop()


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """Start a server with an empty bucket. The keys are known from the environment only."""
    with serve(0) as server:
        host, port = server.get_host_and_port()
        address, query = f"{host}:{port}", f"endpoint_override={host}:{port}&scheme=http&region=us-east-1"
        urlopen(f"http://{address}/moto-api/reset", data=b"").close()
        keys = {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_DEFAULT_REGION": "us-east-1"}
        for name, value in keys.items():
            monkeypatch.setenv(name, value)
        monkeypatch.delenv("AWS_SESSION_TOKEN", raising=False)
        options = {"endpoint_override": address, "scheme": "http", "region": "us-east-1"}
        files = fs.S3FileSystem(**options, allow_bucket_creation=True)
        files.create_dir("bucket")
        yield SimpleNamespace(server=server, files=files, address=f"http://{address}", query=query)


@pytest.fixture(params=["integer", "text"])
def graph(request: pytest.FixtureRequest) -> Graph:
    rng, num_nodes = np.random.default_rng(0), 100
    ids = pa.array([f"n{k}" for k in range(num_nodes)]) if request.param == "text" else pa.array(range(num_nodes))
    probs = torch.from_numpy(rng.dirichlet(np.ones(3), num_nodes))
    y, mask = torch.from_numpy(rng.integers(0, 3, num_nodes)), torch.from_numpy(rng.random(num_nodes) < 0.8)
    return Graph(ids, probs, y, torch.from_numpy(rng.integers(0, num_nodes, (2, 4_000))), mask)


def upload(store: SimpleNamespace, graph: Graph) -> None:
    """Put four parts of each table into a folder of the bucket: Parquet, and labels as CSV."""
    for name, table in graph.tables().items():
        for k, part in enumerate(cut(table, [len(table) * k // NUM_PARTS for k in range(1, NUM_PARTS)])):
            suffix = "csv" if name == "labels" else "parquet"
            with store.files.open_output_stream(f"bucket/run/{name}/part-{k}.{suffix}") as stream:
                (csv.write_csv if suffix == "csv" else parquet.write_table)(part, stream)


def urls(query: str = "", names: tuple[str, ...] = ("probs", "labels", "mask", "edges")) -> dict[str, Any]:
    return {name: f"s3://bucket/run/{name}{query and f'?{query}'}" for name in names}


def test_folders_globs_files_and_datasets(
    store: SimpleNamespace, graph: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    upload(store, graph)
    expected = graph.evaluate()
    assert_same(ew.evaluate_tables(**urls(store.query)), expected)
    globs = {name: url.replace("?", "/part-?.*?") for name, url in urls(store.query).items()}
    assert_same(ew.evaluate_tables(**globs), expected)
    files = {
        name: [url.replace("?", f"/part-{k}.{'csv' if name == 'labels' else 'parquet'}?") for k in range(NUM_PARTS)]
        for name, url in urls(store.query).items()
    }
    assert_same(ew.evaluate_tables(**files), expected)
    edges = dataset.dataset("bucket/run/edges", filesystem=store.files)
    assert_same(ew.evaluate_tables(**{**files, "edges": edges}), expected)
    monkeypatch.setenv("AWS_ENDPOINT_URL", store.address)
    assert_same(ew.evaluate_tables(**urls()), expected)
    assert_same(ew.evaluate_tables(**urls("region=us-east-1")), expected)


def test_changed_objects_are_not_taken_for_the_same(store: SimpleNamespace, graph: Graph, tmp_path: Any) -> None:
    upload(store, graph)
    first = ew.evaluate_tables(**urls(store.query), work=tmp_path / "work")
    assert_same(ew.evaluate_tables(**urls(store.query), work=tmp_path / "work"), first)
    with store.files.open_output_stream("bucket/run/edges/part-0.parquet") as stream:
        parquet.write_table(graph.tables()["edges"].slice(0, 17), stream)
    with pytest.raises(ValueError, match="edges changed"):
        ew.evaluate_tables(**urls(store.query), work=tmp_path / "work")


def refused(paths: dict[str, Any], **options: Any) -> str:
    """Return the message about invalid tables, which is one line without secrets."""
    with pytest.raises(ValueError) as caught:
        ew.evaluate_tables(**paths, **options)
    messages, error = [], caught.value
    while error is not None:
        messages.append(str(error))
        error = error.__cause__ or error.__context__
    assert "\n" not in messages[0]
    assert not any(secret in text for secret in (KEY, SECRET) for text in messages)
    return messages[0]


def test_errors_name_the_object_and_have_no_secrets(
    store: SimpleNamespace, graph: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    upload(store, graph)
    paths = urls(store.query)
    for url in ("s3://bucket/run/nothing", "s3://nothing/run", "s3://bucket/run/*.txt"):
        assert url in refused({**paths, "edges": f"{url}?{store.query}"})
    secrets = f"{store.query}&access_key={KEY}&secret_key={SECRET}"
    assert "AWS_SECRET_ACCESS_KEY" in refused({**paths, "edges": f"s3://bucket/run/edges?{secrets}"})
    assert "AWS_SECRET_ACCESS_KEY" in refused({**paths, "edges": f"s3://{KEY}:{SECRET}@bucket/run/edges?{store.query}"})
    with store.files.open_output_stream("bucket/run/edges/part-2.parquet") as stream:
        stream.write(b"PAR1 half of a file")
    assert "s3://bucket/run/edges/part-2.parquet" in refused(paths)
    with store.files.open_output_stream("bucket/run/edges/part-2.parquet") as stream:
        parquet.write_table(pa.table({"src": graph.ids[:2], "dst": pa.array([None, None], graph.ids.type)}), stream)
    message = refused(paths)
    assert "s3://bucket/run/edges/part-2.parquet" in message and "row 0" in message


def test_lost_connection(store: SimpleNamespace, graph: Graph, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """The server ends while edges are read. What was finished is continued when it is back."""
    monkeypatch.setattr("edgewise.tables.table_evaluation.EDGES_PER_JOB", 1_000)
    monkeypatch.setattr("edgewise.tables.table_evaluation.EDGES_PER_NODE_AND_JOB", 0)
    upload(store, graph)

    def stop(progress: TableProgress) -> None:
        if progress.what == "edges" and progress.rows:
            store.server.stop()

    message = refused(urls(store.query), work=tmp_path / "work", progress=stop)
    assert "s3://bucket/run/edges/part-" in message
    left = {file.name for file in (tmp_path / "work").rglob("*") if file.is_file()}
    assert not [name for name in left if name.endswith(".tmp")]
    assert {"job-00000.npz"} <= left and "job-00003.npz" not in left
    with serve(int(store.address.rpartition(":")[2])):
        assert_same(ew.evaluate_tables(**urls(store.query), work=tmp_path / "work"), graph.evaluate())
