"""What docs/decisions.md shows is what runs."""

import contextlib
import io
import re
from pathlib import Path

PAGE = (Path(__file__).parents[2] / "docs" / "decisions.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(python|text)\n(.*?)```", PAGE, re.DOTALL)


def test_the_page_prints_what_it_shows(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for k, (kind, block) in enumerate(BLOCKS):
        if kind == "text":
            continue
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(block, "decisions.md", "exec"), names)
        assert BLOCKS[k + 1] == ("text", printed.getvalue())
    assert sorted(file.name for file in tmp_path.iterdir()) == ["pairs.parquet", "selected.csv"]
