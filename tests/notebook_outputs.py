"""What an executed notebook holds."""


def outputs_of(notebook, kind=None):
    """Return all outputs of a notebook's cells; those that have `kind`, where it is given."""
    outputs = [output for cell in notebook["cells"] for output in cell.get("outputs", [])]
    return [output for output in outputs if kind is None or kind in output]


def cell_errors(notebook):
    """Return the errors that cells have ended with."""
    return [output for output in outputs_of(notebook) if output["output_type"] == "error"]


def printed(notebook):
    """Return all that the cells have printed."""
    return "".join("".join(output["text"]) for output in outputs_of(notebook, "text"))
