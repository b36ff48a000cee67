"""A notebook's code cells, run as a function: for tests and benchmarks."""

import sys
from types import ModuleType

from mixed_precision_study.experiment import Experiment
from mixed_precision_study.runner.plan import parameters_of
from mixed_precision_study.store.commit import code_cells


def run_cells(path, last, parameters, display=print):
    """Run a notebook's code cells up to the one with the id `last`, with parameters replaced, and
    return its names.

    Raises LookupError where there is no such parameter.
    """
    module = ModuleType(path.stem)
    names = vars(module)
    names |= {"display": display, "In": []}
    # torch.compile looks a function's module up, as it finds a kernel's __main__
    sys.modules[path.stem] = module
    for cell in code_cells(path):
        names["In"].append(cell.source)
        exec(compile(cell.source, f"{path.name}:{cell.id}", "exec"), names)
        if cell.sets_parameters:
            if unknown := set(parameters) - set(parameters_of(path)[0].model_fields):
                raise LookupError(f"{path.stem} has no parameter {', '.join(sorted(unknown))}")
            names["In"].append(
                "\n".join(["# Parameters", *(f"{name} = ..." for name in parameters)])
            )
            names.update(parameters)
        if cell.id == last:
            break
    return names


def experiment_of(path, parameters):
    """Run a notebook's cells and return its Experiment, which has trained nothing."""
    run = Experiment.run
    Experiment.run = lambda self: []
    try:
        return run_cells(path, "run", parameters)["experiment"]
    finally:
        Experiment.run = run
