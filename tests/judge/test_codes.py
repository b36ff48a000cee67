"""judge/ returns numbers and codes: no sentence is made there, because report/ has the words."""

import ast
import re

import pytest
from conftest import ROOT

FILES = sorted((ROOT / "mixed_precision_study" / "judge").glob("*.py"))
OF_RECORDS = {
    "power cap",
    "fp8 matmul",
    "depthwise convolution",
    "layout change",
}  # names that stand in records
WORDS = re.compile(r"[A-Za-z]+\S* +\S*[A-Za-z]+|[A-Za-z]+[.:;,] *$|^ *[.:;,] *[A-Za-z]+")


def documentation(tree):
    """Return the ids of the constants that are docstrings."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef)
    parts = [node for node in ast.walk(tree) if isinstance(node, kinds)]
    return {id(node.body[0].value) for node in parts if ast.get_docstring(node)}


def prose_in(source):
    """Return the texts in a source that look like words for people: two words and more, a phrase
    that ends or begins with a stop, or what an f-string sets between its values.
    """
    tree = ast.parse(source)
    described = documentation(tree)
    inner = [node for node in ast.walk(tree) if isinstance(node, ast.JoinedStr)]
    formatted = {id(part) for node in inner for part in node.values}
    found = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
            continue
        spoken = WORDS.search(node.value) and node.value not in OF_RECORDS
        between = id(node) in formatted and re.search(r"[A-Za-z] | [A-Za-z]", node.value)
        if id(node) not in described and (spoken or between):
            found.append(node.value)
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_no_sentence_is_made_in_judge(path):
    assert prose_in(path.read_text(encoding="utf-8")) == []
