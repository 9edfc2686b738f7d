"""Trains the network of ``features = "font-digits"`` on rendered digits of open fonts, and on nothing else.

python tools/font_list.py fetch DIR                 # the fonts of tools/font_digits.csv, from Debian
python tools/font_digits.py DIR                     # writes font_digits.safetensors and .json in src
python tools/font_digits.py DIR --sheet digits.png  # shows 200 drawings instead

Repeatable up to rounding, which versions and processors change. Needs Pillow, SciPy and safetensors.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import platform
import time
from pathlib import Path

import numpy as np
import scipy
import torch
from digit_strokes import SIDE, Fields, draw, make_fields
from font_list import LIST, digits, read_list
from PIL import Image
from PIL import __version__ as pillow_version
from safetensors.torch import save_file
from torch.nn.functional import cross_entropy

from sqsgd.learning.features import CLASSES, WEIGHTS, DigitNetwork, unit

BATCH, RATE, SMOOTHING, SHARPNESS = 128, 3e-3, 0.05, 3.0
HAND = 6.0
"""How often a font of handwriting is drawn for each time that another is."""
WHITENING, SOFTNESS = 0.25, 0.7
"""Power of the variances by which features are divided; factor of the head, so that users can change it."""


def fields_of(folder: Path) -> Fields:
    """The distance fields of all listed fonts."""
    fonts = read_list()
    found = [digits(font.file(folder), SIDE) for font in fonts]
    for font, looks in zip(fonts, found, strict=True):
        if looks is None:
            raise SystemExit(f"{font.path} lacks digits: it is not the listed version")
    chances = torch.tensor([HAND if font.hand == "yes" else 1.0 for font in fonts])
    return make_fields(np.stack([looks for looks in found if looks is not None]), chances)


def trained(fields: Fields, steps: int, seed: int) -> DigitNetwork:
    """The network after the steps, its weights averaged over the last ones; each drawing is seen once."""
    torch.manual_seed(seed)
    numbers = torch.Generator().manual_seed(seed)
    network = DigitNetwork()
    torch.nn.init.normal_(network.head.weight)
    optimizer = torch.optim.AdamW(network.parameters(), lr=RATE, weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=steps, pct_start=0.15)
    average = {name: value.clone() for name, value in network.state_dict().items()}
    for step in range(1, steps + 1):
        labels = torch.randint(CLASSES, (BATCH,), generator=numbers)
        scores = SHARPNESS * network.head(network(draw(fields, labels, numbers)))
        loss = cross_entropy(scores, labels, label_smoothing=SMOOTHING)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        for name, value in network.state_dict().items():
            average[name].lerp_(value, 0.01)
        if step % 200 == 0:
            print(f"step {step}: loss {loss.item():.3f}", flush=True)
    network.load_state_dict(average)
    return network


def projected(network: DigitNetwork, fields: Fields, seed: int) -> None:
    """Replace the last layers: principal components of what comes before, and a head that is fitted to them.

    The features on which the network was trained hardly differ within a class, so that a new head could learn
    little on them. Components also keep what rendered digits of one class do not share.
    """
    numbers = torch.Generator().manual_seed(seed)
    labels = torch.randint(CLASSES, (8000,), generator=numbers)
    with torch.no_grad():
        values = torch.cat([network.hidden(draw(fields, part, numbers)) for part in labels.split(1000)])
        mean = values.mean(dim=0)
        variances, directions = torch.linalg.eigh(torch.cov((values - mean).T))
        count = network.features.out_features
        projection = (directions * variances.clamp(min=1e-9) ** -WHITENING).flip(1)[:, :count]
        network.features.weight.copy_(projection.T)
        network.features.bias.copy_(-mean @ projection)
        rows = unit((values - mean) @ projection)
    weights = torch.zeros(CLASSES, count, requires_grad=True)
    optimizer = torch.optim.LBFGS([weights], max_iter=60)

    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        scores = cross_entropy(rows @ weights.T, labels, label_smoothing=SMOOTHING)
        whole = scores + 1e-4 * weights.square().sum()
        whole.backward()
        return whole

    optimizer.step(loss)
    with torch.no_grad():
        network.head.weight.copy_(SOFTNESS * weights)


def accuracy(network: DigitNetwork, fields: Fields, seed: int) -> float:
    """On 10,000 new drawings of the same fonts."""
    numbers = torch.Generator().manual_seed(seed)
    right = 0
    with torch.no_grad():
        for _ in range(10):
            labels = torch.randint(CLASSES, (1000,), generator=numbers)
            right += int((network.head(network(draw(fields, labels, numbers))).argmax(dim=1) == labels).sum())
    return right / 10_000


def write(network: DigitNetwork, about: dict[str, object]) -> None:
    """The weights as float16, and where they come from."""
    save_file({name: value.half().contiguous() for name, value in network.state_dict().items()}, WEIGHTS)
    about["sha256"] = hashlib.sha256(WEIGHTS.read_bytes()).hexdigest()
    WEIGHTS.with_suffix(".json").write_text(json.dumps(about, indent=2) + "\n")


def sheet(fields: Fields, path: Path, seed: int) -> None:
    """Twenty rows of the ten digits."""
    images = draw(fields, torch.arange(10).repeat(20), torch.Generator().manual_seed(seed))
    whole = images.reshape(20, 10, 28, 28).permute(0, 2, 1, 3).reshape(560, 280)
    Image.fromarray((255 * whole).byte().numpy()).save(path)


def main() -> None:
    """Train and write, or draw."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="the unpacked packages")
    parser.add_argument("--steps", type=int, default=2500)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--sheet", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    fields = fields_of(given.folder)
    if given.sheet:
        sheet(fields, given.sheet, given.seed)
        return
    began = time.process_time()
    network = trained(fields, given.steps, given.seed)
    projected(network, fields, given.seed + 1)
    fonts = read_list()
    write(
        network,
        {
            "data": f"{given.steps * BATCH:,} drawings of the digits of {len(fonts)} open fonts; "
            "no handwritten digit",
            "fonts": "tools/font_digits.csv (names, versions and licences), "
            f"sha256 {hashlib.sha256(LIST.read_bytes()).hexdigest()}",
            "command": f"python tools/font_digits.py DIR --steps {given.steps} --seed {given.seed}",
            "accuracy on new drawings of these fonts": accuracy(network, fields, given.seed + 2),
            "cpu seconds": round(time.process_time() - began),
            "versions": {
                "python": platform.python_version(),
                "torch": torch.__version__,
                "numpy": np.__version__,
                "scipy": scipy.__version__,
                "pillow": pillow_version,
            },
            "licence": "Apache-2.0, as sqsgd",
        },
    )
    print(f"{WEIGHTS}: {WEIGHTS.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
