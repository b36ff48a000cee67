"""Images of every depth, as the image data sets read them."""

import numpy as np
import pytest
from conftest import refuses
from PIL import Image

from mixed_precision_study.tasks.images import decoded, timm_model, title_of

STEPS = np.linspace(0, 1, 64).reshape(8, 8)


@pytest.mark.parametrize("size, patch", [(32, 4), (224, 16)])
def test_a_vit_cuts_small_images_into_small_patches(size, patch):
    model = timm_model("vit_tiny_patch16_224", size, num_classes=5, depth=1)
    assert model.patch_embed.patch_size == (patch, patch)
    assert model.patch_embed.num_patches == (size // patch) ** 2
    assert title_of("vit_small_patch16_224", size) == f"ViT-Small/{patch}"


DEEP = (STEPS * 65535).astype(np.uint16)
GREY = {
    "deep.png": Image.fromarray(DEEP),
    "deep.tif": Image.fromarray(DEEP),
    "big-endian.tif": Image.frombytes("I;16B", (8, 8), DEEP.astype(">u2").tobytes()),
    "plain.png": Image.fromarray((STEPS * 255).astype(np.uint8)),
}


@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize("name", GREY)
def test_16_bits_are_scaled_and_not_clipped_and_8_stay(tmp_path, mode, name):
    GREY[name].save(tmp_path / name)
    pixels = np.asarray(decoded(tmp_path / name, mode)).reshape(64, -1)[:, 0]
    assert np.abs(pixels - STEPS.ravel() * 255).max() <= 1
    assert len(np.unique(pixels)) == 64


@pytest.mark.parametrize("kind", [np.int32, np.float32])
def test_numbers_of_unknown_range_are_refused(tmp_path, kind):
    path = tmp_path / "numbers.tif"
    Image.fromarray((STEPS * 4095).astype(kind)).save(path)
    with refuses(r"numbers\.tif.*8 or 16 bits"):
        decoded(path)
