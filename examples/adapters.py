"""Adapts a small frozen transformer, which was trained on public text, to private speakers.

python examples/adapters.py TEXT [steps]      # trains it on a public file and writes public_text.safetensors
sqsgd compare --config experiments/adapters.toml  # head, prompt, LoRA and all weights

The file goes to the data folder ($SQSGD_DATA).
"""

import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from sqsgd.learning.files import data_folder
from tools.shakespeare import LETTERS, coded

WIDTH, HEADS, LAYERS, LENGTH = 96, 4, 2, 80
PLAIN = str.maketrans("\u2018\u2019\u2014", "''-")


class LoRA(nn.Linear):
    """A linear layer whose frozen weight gets a trained correction of rank ``rank`` (Hu et al. 2021)."""

    def __init__(self, frozen: nn.Linear, rank: int) -> None:
        super().__init__(frozen.in_features, frozen.out_features)
        self.load_state_dict(frozen.state_dict())
        self.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(rank, frozen.in_features) * frozen.in_features**-0.5)
        self.up = nn.Parameter(torch.zeros(frozen.out_features, rank))

    def forward(self, values: Tensor) -> Tensor:
        """The frozen layer's outputs and the correction's."""
        return super().forward(values) + values @ self.down.T @ self.up.T


class Block(nn.Module):
    """Causal attention and two layers, each after a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.asked, self.mixed = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.wide, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, rows: Tensor) -> Tensor:
        """Rows of the same shape: (count, length, WIDTH)."""
        asked = self.asked(self.first(rows)).unflatten(-1, (3, HEADS, -1)).transpose(1, 3)
        query, key, value = asked.unbind(2)
        later = torch.ones(rows.shape[1], rows.shape[1], dtype=torch.bool).triu(1)
        scores = (query @ key.transpose(-1, -2) * query.shape[-1] ** -0.5).masked_fill(later, -torch.inf)
        rows = rows + self.mixed((scores.softmax(-1) @ value).transpose(1, 2).flatten(-2))
        return rows + self.narrow(torch.relu(self.wide(self.second(rows))))


class Transformer(nn.Module):
    """Scores of the character after each of a text; ``prompt`` rows may come before the text."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.letters, self.places = nn.Embedding(classes, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, classes)
        self.prompt = nn.Parameter(torch.zeros(0, WIDTH), requires_grad=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """(count, length, classes) for (count, length)."""
        rows = self.letters(tokens) + self.places.weight[: tokens.shape[1]]
        before = self.prompt.expand(len(tokens), *self.prompt.shape)
        rows = self.blocks(torch.cat([before, rows], dim=1))[:, len(self.prompt) :]
        return self.head(self.norm(rows))


def public() -> Path:
    """The file of the public weights."""
    return data_folder() / "public_text.safetensors"


def whole(classes: int) -> Transformer:
    """All of it is trained, from the public weights."""
    if not public().is_file():
        raise FileNotFoundError(
            f"no {public()}; python examples/adapters.py TEXT makes it from a public text"
        )
    model = Transformer(classes)
    model.load_state_dict(load_file(public()))
    return model


def head(classes: int) -> Transformer:
    """The last layer is trained."""
    model = whole(classes).requires_grad_(False)
    model.head.requires_grad_(True)
    return model


def prompt(classes: int) -> Transformer:
    """Eight rows before the text are trained."""
    model = whole(classes).requires_grad_(False)
    model.prompt = nn.Parameter(0.1 * torch.randn(8, WIDTH))
    return model


def lora(classes: int, rank: int = 2) -> Transformer:
    """Corrections of the layers in all blocks and of the last layer are trained."""
    model = whole(classes).requires_grad_(False)
    model.head = LoRA(model.head, rank)
    for block in model.blocks:
        for name, layer in list(block.named_children()):
            if isinstance(layer, nn.Linear):
                setattr(block, name, LoRA(layer, rank))
    return model


def main(text: str, steps: int) -> float:
    """Train on random pieces of a public file; returns the last loss."""
    torch.manual_seed(0)
    plain = Path(text).read_text("utf-8").translate(PLAIN)
    codes, losses = torch.from_numpy(coded(plain)), []
    if len(codes) <= LENGTH:
        raise ValueError(f"{text} has {len(codes)} characters; expected more than {LENGTH}")
    model, pieces = Transformer(len(LETTERS)), torch.arange(LENGTH + 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=steps)
    for step in range(steps):
        rows = codes[torch.randint(len(codes) - LENGTH, (32, 1)) + pieces]
        loss = nn.functional.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
        if step % 200 == 0:
            print(f"step {step}: loss {loss.item():.3f}", flush=True)
    public().parent.mkdir(parents=True, exist_ok=True)
    save_file(model.state_dict(), public())
    return sum(losses[-10:]) / len(losses[-10:])


if __name__ == "__main__":
    if len(sys.argv) == 1:
        raise SystemExit("usage: python examples/adapters.py TEXT [steps]")
    main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 3000)
