"""Drawings of a report as one SVG file, for documents."""

import re

from mixed_precision_study.report.charts import GAP, GROUND, INK, LINE, PAPER, PIXELS, SOFT, THEME

# of a picture on a dark page
DARK = {INK: "#f0f6fc", SOFT: "#9198a1", LINE: "#3d444d", GROUND: "#262c36", PAPER: "#0d1117"}


def sheet_of(drawings: list[str], columns: int) -> str:
    """Return drawings of drawing_of() as one SVG file in rows of `columns`, which follows dark
    pages by itself.
    """
    boxes = re.compile(r'viewBox="0 0 (\S+) (\S+)"')
    sizes = [[float(side) for side in boxes.findall(one)[0]] for one in drawings]
    gap = 72 * GAP  # points, as the drawings have them
    wide = max(width for width, _ in sizes) + gap
    body, top = "", 0.0
    for start in range(0, len(drawings), columns):
        row = range(start, min(start + columns, len(drawings)))
        for place, number in enumerate(row):
            width, height = sizes[number]
            at = f'x="{place * wide:g}" y="{top:g}" width="{width:g}" height="{height:g}"'
            # a tick's number may reach beyond its drawing
            body += drawings[number].replace("<svg ", f'<svg {at} overflow="visible" ', 1)
        top += max(sizes[number][1] for number in row) + gap
    width, height = columns * wide - gap, top - gap
    colours, dark = (
        "".join(f"--{name}:{shades[shade]};" for shade, name in THEME.items() if shade in shades)
        for shades in ({shade: shade for shade in DARK}, DARK)
    )
    look = f"svg{{{colours}}}@media(prefers-color-scheme:dark){{svg{{{dark}}}}}"
    pixels = f'width="{width * PIXELS / 72:.0f}" height="{height * PIXELS / 72:.0f}"'
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" '
        f'xmlns:xlink="http://www.w3.org/1999/xlink" {pixels}'
        f' viewBox="{-gap / 2:g} {-gap / 2:g} {width + gap:g} {height + gap:g}" overflow="visible">'
        f'<style>{look}</style><rect x="{-gap / 2:g}" y="{-gap / 2:g}" width="100%" height="100%"'
        f' style="fill:var(--paper)"/>{body}</svg>\n'
    )
