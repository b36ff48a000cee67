"""Records as they lie on disk: one leaf changed, and why a record cannot be used."""

import copy

from mixed_precision_study.store.record import PLACES, record_of


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
