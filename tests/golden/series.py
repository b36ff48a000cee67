"""What a figure of Matplotlib shows, as plain values: its texts and the series of its panels.

And how two differ.
"""

import math

import numpy as np
from matplotlib.colors import to_hex

MANY = 200  # of more points their number, the ends and the sum are kept


def series_of(figure):
    """Return {"texts", "legend", "panels"} of a drawn figure and its subfigures."""
    figure.draw_without_rendering()  # places the ticks
    parents = [figure, *figure.subfigs]
    texts = [text for parent in parents for text in parent.texts]
    legends = [legend for parent in parents for legend in parent.legends]
    return {
        "texts": [text for text, *_ in texts_of(texts)],
        "legend": legend_of(legends),
        "panels": list(map(panel_of, figure.axes)),
    }


def panel_of(axes):
    """Return the series of a panel as drawn, without what is empty."""
    boxes = [
        bar.get_path().transformed(bar.get_patch_transform()).get_extents() for bar in axes.patches
    ]
    bars = [[*box.p0, box.width, box.height] for box in boxes]
    lines = [line for line in axes.lines if len(line.get_xydata())]
    others = [(collected(one), one) for one in axes.collections]
    panel = {
        "titles": list(
            filter(None, (axes.get_title(loc=place) for place in ("left", "center", "right")))
        ),
        "labels": [axes.get_xlabel(), axes.get_ylabel(), axes.get_xscale(), axes.get_yscale()],
        "ticks": [texts_of(axis.get_majorticklabels()) for axis in (axes.xaxis, axes.yaxis)]
        if axes.axison
        else [],
        "legend": legend_of([axes.get_legend()] if axes.get_legend() else []),
        "bars": [
            [*bar, colour_of(one), one.get_hatch()]
            for bar, one in zip(bars, axes.patches, strict=True)
        ],
        "lines": [[points_of(one.get_xydata()), colour_of(one), one.get_marker()] for one in lines],
        "collections": [
            [points_of(points), colour_of(one)] for points, one in others if len(points)
        ],  # also error bars
        # on the bars and in the gaps, in the order of drawing
        "texts": [text for text, *_ in texts_of(axes.texts)],
    }
    return {name: value for name, value in panel.items() if value}


def collected(collection):
    """Return the places of markers, or the corners of lines and areas."""
    offsets = collection.get_offsets()
    return (
        offsets
        if np.any(offsets)
        else np.concatenate([path.vertices for path in collection.get_paths()] or [()])
    )


def points_of(points):
    points = np.ma.filled(np.ma.asarray(points, float), np.nan)
    ends = {
        "count": len(points),
        "first": points[:1],
        "last": points[-1:],
        "sum": np.nansum(points, axis=0),
    }
    return points if len(points) <= MANY else ends


def texts_of(texts):
    """Return [text, x, y] of the visible texts; of a label that is shifted from a point, the
    place of the point.
    """
    shown = [text for text in texts if text.get_visible() and text.get_text()]
    return [[text.get_text(), *getattr(text, "xy", text.get_position())] for text in shown]


def legend_of(legends):
    pairs = [
        pair
        for legend in legends
        for pair in zip(legend.get_texts(), legend.legend_handles, strict=True)
    ]
    return [[text.get_text(), colour_of(handle)] for text, handle in pairs]


def colour_of(artist):
    colour = artist.get_facecolor() if hasattr(artist, "get_facecolor") else artist.get_color()
    colour = colour if len(colour) else artist.get_edgecolor()
    return to_hex(colour[0] if np.ndim(colour) == 2 else colour)


def plain(value):
    """Return a value as JSON holds it: numbers with six significant digits, None where they are not
    finite.

    A dict lacks what is None or an empty list.
    """
    if isinstance(value, dict):
        return {
            name: found for name, one in value.items() if (found := plain(one)) not in (None, [])
        }
    if isinstance(value, list | tuple | np.ndarray):
        return [plain(one) for one in value]
    if value is None or isinstance(value, str | bool):
        return value
    return float(f"{value:.6g}") * (abs(value) > 1e-12) if math.isfinite(value) else None


def differences(old, new, path):
    """Yield (path, old, new) of what differs.

    What one side lacks is one difference, as are lists of unlike length.
    """
    if isinstance(old, dict) and isinstance(new, dict):
        for name in sorted(old.keys() | new.keys()):
            yield from differences(
                old.get(name, "absent"), new.get(name, "absent"), f"{path}/{name}"
            )
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for number, pair in enumerate(zip(old, new, strict=True)):
            yield from differences(*pair, f"{path}/{number}")
    elif old != new and not (
        {type(old), type(new)} == {float} and math.isclose(old, new, rel_tol=2e-5)
    ):
        yield path, old, new
