"""Each test has a short name and few facts, because one that fails at its first hides the others."""

import ast
from pathlib import Path

import pytest

LETTERS, FACTS = 59, 6  # at most
FILES = sorted(Path(__file__).parent.rglob("test_*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_names_are_short_and_facts_are_few(path):
    nodes = ast.walk(ast.parse(path.read_text()))
    facts = {
        test.name: sum(isinstance(one, ast.Assert) for one in ast.walk(test))
        for test in nodes
        if isinstance(test, ast.FunctionDef) and test.name.startswith("test_")
    }
    assert [name for name in facts if len(name) > LETTERS] == []
    assert [name for name, count in facts.items() if count > FACTS] == []
