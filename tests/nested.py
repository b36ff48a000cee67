"""Records as they lie on disk: one leaf changed, and why a record cannot be used."""

import copy

from mixed_precision_study.store.record import PLACES, new_record, record_of


def changed(value, **changes):
    """Return a record's JSON value with these fields, and with these settings where there is no
    such field.
    """
    value = copy.deepcopy(value)
    for name, other in changes.items():
        part = value
        for step in PLACES.get(name, ("settings",)):
            part = part[step]
        part[name] = other
    return value


def flaw(value):
    """Return why a JSON value is no record that can be used, or None."""
    try:
        record_of(value)
    except ValueError as error:
        return str(error)
    return None


def names_in(value):
    """Return the names of a record's fields and settings."""
    return [*PLACES, *value["settings"]]


PARAMETERS = {
    "dataset": "auto",
    "model": "resnet18",
    "precisions": ["fp32"],
    "batch_size": 128,
    "lr": 0.1,
    "seed": 0,
    "data_dir": "data",
    "output_dir": "outputs",
}


def make(precision="fp32", **facts):
    parameters = {**PARAMETERS, **facts.pop("parameters", {})}
    return new_record("cifar_resnet", parameters, precision, facts)


def sound():
    record = make(
        status="ok",
        epoch_seconds=[1.5],
        metric=[0.5],
        metric_better="higher",
        peak_allocated_mib=1.0,
    )
    return record.model_dump(warnings=False)
