"""What must be equal before two arms of an axis are compared."""

import pytest
from made_up_runs import flat

from mixed_precision_study.judge.axis import Axis


@pytest.mark.parametrize("settings, equal", [(("precision",), False), (("execution",), True)])
def test_another_model_of_ones_own_is_an_arm_only_of_other_axes(settings, equal):
    """A setting may make another model, and a precision never does."""
    executions = ("eager", "compile") if equal else ("eager", "eager")
    runs = [
        flat("fp32", {"execution": execution}, identity={"model": model})
        for execution, model in zip(executions, ("a", "b"), strict=True)
    ]
    rests = [Axis(settings).rest_of(run) for run in runs]
    assert (rests[0] == rests[1]) is equal
    begun = [run | {"identity": {"weights": name}} for run, name in zip(runs, "ab", strict=True)]
    assert Axis(settings).rest_of(begun[0]) != Axis(settings).rest_of(begun[1])
