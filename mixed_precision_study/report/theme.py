"""The settings of Matplotlib under which every chart is drawn and saved."""

from contextlib import contextmanager

import matplotlib.pyplot as plt
import seaborn as sns

FONTS = {"font.size": 9, "axes.labelsize": 9, "xtick.labelsize": 8, "ytick.labelsize": 8}
GRID = {"axes.grid.axis": "y", "grid.color": "#d5d5d5", "axes.spines.top": False}


@contextmanager
def chart_style():
    """Draw charts in the style of the report within this context, or in the function that it decorates."""
    with plt.rc_context({"figure.max_open_warning": 0}):
        sns.set_theme(style="whitegrid", rc={**FONTS, **GRID})
        plt.rcParams["axes.spines.right"] = False
        yield
