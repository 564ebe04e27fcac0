"""What the README says of files and numbers is so; its code blocks are run by test_code_blocks.py."""

import re
from pathlib import Path

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")


def test_the_tree_names_files_that_exist():
    tree = re.search(r"```\nsrc/edgewise/\n(.*?)tests/", README, re.DOTALL)[1]
    folder, top = [], Path(__file__).parents[1] / "src" / "edgewise"
    for line in tree.splitlines():
        depth, names = (
            (len(line) - len(line.lstrip())) // 2,
            re.findall(r"[\w*]+(?:\.py|/)", line.strip().split("   ")[0]),
        )
        folder = [*folder[: depth - 1], names[0]]
        assert all(list(top.glob("/".join([*folder[:-1], part]))) for part in names), line
