"""What the README says of files and numbers is so; its code blocks are run by test_code_blocks.py."""

import re
from pathlib import Path

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")


def test_the_tree_has_a_line_for_every_file_and_no_other():
    tree = re.search(r"```\nsrc/edgewise/\n(.*?)tests/", README, re.DOTALL)[1]
    top, folder, named = Path(__file__).parents[1] / "src" / "edgewise", [], set()
    for line in tree.splitlines():
        depth = (len(line) - len(line.lstrip())) // 2
        names = re.findall(r"[\w*]+(?:\.py|/)", line.strip().split("   ")[0])
        folder = [*folder[: depth - 1], names[0]]
        for name in names:
            found = list(top.glob("/".join([*folder[:-1], name])))
            assert found, line
            named.update(found)
    assert set(top.rglob("*.py")) - set(top.rglob("__init__.py")) <= named
