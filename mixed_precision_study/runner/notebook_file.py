"""The code cells of a notebook: a batch reads them here; tests and benchmarks run them here, a batch never."""

import hashlib
import json
import sys
from types import ModuleType
from typing import NamedTuple


class Cell(NamedTuple):
    """A code cell; `sets_parameters` where it is tagged `parameters`."""

    id: str | None
    source: str
    sets_parameters: bool


def code_cells(path):
    """Return the code cells of a notebook file, in order."""
    return cells_in(path.read_text(encoding="utf-8"))


def cells_in(text):
    """Return the code cells of a notebook's text, in order."""
    cells = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
    tagged = ["parameters" in cell["metadata"].get("tags", ()) for cell in cells]
    return [Cell(cell.get("id"), "".join(cell["source"]), tag) for cell, tag in zip(cells, tagged, strict=True)]


def hash_of(text):
    """Return the hash of the code in a notebook's text, without the cell that sets its parameters."""
    code = [cell.source for cell in cells_in(text) if not cell.sets_parameters]
    return hashlib.sha256(json.dumps(code).encode()).hexdigest()[:12]


def run_cells(path, last, parameters, display=print):
    """Run a notebook's code cells up to the one with the id `last`, with parameters replaced, and return its names.

    Raises LookupError, before anything runs, where there is no such cell, and where there is no such parameter.
    """
    module, cells = ModuleType(path.stem), code_cells(path)
    names = vars(module)
    if last not in [cell.id for cell in cells]:
        raise LookupError(f"{path.stem} has no cell {last!r}")
    names["display"] = display
    sys.modules[path.stem] = module  # torch.compile looks a function's module up, as it finds a kernel's __main__
    for cell in cells:
        exec(compile(cell.source, f"{path.name}:{cell.id}", "exec"), names)
        if cell.sets_parameters:
            if unknown := set(parameters) - set(names):
                raise LookupError(f"{path.stem} has no parameter {', '.join(sorted(unknown))}")
            names.update(parameters)
        if cell.id == last:
            break
    return names
