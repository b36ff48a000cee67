"""What keeps the code readable: few branches, and no `if` in disguise."""

import ast

from conftest import ROOT

PACKAGE = ROOT / "mixed_precision_study"
TREES = {path: ast.parse(path.read_text()) for path in PACKAGE.rglob("*.py")}
LIMITS = {
    "most branches of a function": 20,
    "percent of functions with more than 10": 6.0,
    "products that stand for an if": 0,
}
BRANCHES = (ast.If, ast.IfExp, ast.For, ast.While, ast.ExceptHandler, ast.Assert, ast.match_case)
TEXTS = (ast.List, ast.Tuple, ast.JoinedStr)


def branches_of(node):
    """Return how many ways lead through a node, without those of functions and classes in it."""
    ways = isinstance(node, BRANCHES)
    if isinstance(node, ast.BoolOp):
        ways += len(node.values) - 1
    if isinstance(node, ast.comprehension):
        ways += 1 + len(node.ifs)
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, (ast.FunctionDef, ast.ClassDef)):
            ways += branches_of(child)
    return ways


def functions():
    """Yield (place, branches) of each function of the package."""
    for path, tree in TREES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef):
                yield f"{path.relative_to(ROOT)}:{node.lineno} {node.name}", 1 + branches_of(node)


def is_text(node):
    return isinstance(node, TEXTS) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str)
    )


def is_truth(node):
    """Return whether an expression is true or false, as in `"s" * (count > 1)`."""
    is_bool = isinstance(node, ast.Call) and getattr(node.func, "id", None) == "bool"
    is_not = isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)
    return is_bool or is_not or isinstance(node, (ast.Compare, ast.BoolOp))


def places_of(is_wanted):
    """Return the places of the nodes of which something is true."""
    return [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path, tree in TREES.items()
        for node in ast.walk(tree)
        if is_wanted(node)
    ]


def test_few_functions_have_more_than_ten_branches():
    found = dict(functions())
    most = LIMITS["most branches of a function"]
    assert {place: ways for place, ways in found.items() if ways > most} == {}
    many = {place: ways for place, ways in found.items() if ways > 10}
    assert 100 * len(many) / len(found) <= LIMITS["percent of functions with more than 10"], many


def test_no_product_stands_for_an_if():
    def is_trick(node):
        if not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult)):
            return False
        sides = (node.left, node.right)
        return any(map(is_text, sides)) and any(map(is_truth, sides))

    tricks = places_of(is_trick)
    assert len(tricks) <= LIMITS["products that stand for an if"], tricks
