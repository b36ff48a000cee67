"""The width of a Transformer or a ViT."""

import json
import re

VIT_WIDTHS = {"tiny": 192, "small": 384, "base": 768, "large": 1024, "huge": 1280}
KINDS = {"transformer": "Transformer language model", "vit": "ViT"}


def width_of(group: dict) -> tuple[str, int] | None:
    """Return the kind of a comparison's model (a key of KINDS) and its width, or None."""
    if group["model"] == "transformer" and "units" in group["settings"]:
        return "transformer", int(json.loads(group["settings"]["units"]))
    if found := re.match(rf"vit_({'|'.join(VIT_WIDTHS)})_", group["model"]):
        return "vit", VIT_WIDTHS[found[1]]
    return None
