"""The settings of Matplotlib under which every chart is drawn and saved."""

from collections.abc import Iterator
from contextlib import contextmanager

import matplotlib.pyplot as plt
import seaborn as sns

FONTS = {"font.size": 9, "axes.labelsize": 9, "xtick.labelsize": 8.5, "ytick.labelsize": 8.5}  # 8.1 is 9 pixels of 800
GRID = {"axes.grid.axis": "y", "grid.color": "#d5d5d5", "axes.spines.top": False}


@contextmanager
def chart_style() -> Iterator[None]:
    """Draw charts in the style of the report; use it as a context or as a decorator."""
    with plt.rc_context({"figure.max_open_warning": 0}):
        sns.set_theme(style="whitegrid", rc={**FONTS, **GRID})
        plt.rcParams["axes.spines.right"] = False
        yield
