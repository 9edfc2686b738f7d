"""Read back the pictures that an audit wrote."""

import io

import numpy as np
from PIL import Image


def unpacked(data):
    """The pixels of a grey PNG, and its text."""
    image = Image.open(io.BytesIO(data))
    assert image.mode == "L"
    return np.asarray(image), image.info.get("Description", "").encode()
