from pathlib import Path

import pytest


@pytest.fixture
def stub_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let worker processes, which inherit the import path, import a stub instead of torch."""
    monkeypatch.syspath_prepend(Path(__file__).parent / "stub_torch")
