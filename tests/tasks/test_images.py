"""Images of every depth, as the image data sets read them."""

import numpy as np
from conftest import refuses
from PIL import Image
from pytest import mark

from mixed_precision_study.tasks.images import decoded

STEPS = np.linspace(0, 1, 64).reshape(8, 8)


@mark.parametrize("mode", ["RGB", "L"])
@mark.parametrize("ending", ["png", "tif"])
def test_16_bits_are_scaled_and_not_clipped(tmp_path, mode, ending):
    path = tmp_path / f"grey.{ending}"
    Image.fromarray((STEPS * 65535).astype(np.uint16)).save(path)
    pixels = np.asarray(decoded(path, mode)).reshape(64, -1)[:, 0]
    assert np.abs(pixels - STEPS.ravel() * 255).max() <= 1
    assert len(np.unique(pixels)) == 64


def test_other_byte_orders_are_scaled_too(tmp_path):
    path = tmp_path / "grey.tif"
    Image.frombytes("I;16B", (8, 8), (STEPS * 65535).astype(">u2").tobytes()).save(path)
    assert np.abs(np.asarray(decoded(path, "L")) - STEPS * 255).max() <= 1


@mark.parametrize("kind", [np.int32, np.float32])
def test_numbers_of_unknown_range_are_refused(tmp_path, kind):
    path = tmp_path / "numbers.tif"
    Image.fromarray((STEPS * 4095).astype(kind)).save(path)
    with refuses(r"numbers\.tif.*8 or 16 bits"):
        decoded(path)


def test_8_bits_stay_as_they_are(tmp_path):
    path = tmp_path / "grey.png"
    Image.fromarray((STEPS * 255).astype(np.uint8)).save(path)
    assert (np.asarray(decoded(path, "L")) == (STEPS * 255).astype(np.uint8)).all()
