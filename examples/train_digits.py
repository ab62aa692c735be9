"""Trains a small network on scikit-learn's real handwritten digits with DDP on four ranks, to 96 % test accuracy.

python examples/train_digits.py           gpuctl run examples/train_digits.py::train --arg epochs=20
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import phalanx
from phalanx.cli.attach import attach, say

TARGET = 0.96


def digits() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Returns 1,797 scans of 8x8 pixels as (train x, train y, test x, test y); a quarter is kept for the test."""
    x, y = load_digits(return_X_y=True)
    x_train, x_test, y_train, y_test = train_test_split(x / 16.0, y, test_size=0.25, random_state=0, stratify=y)
    train_x, test_x = (torch.tensor(part, dtype=torch.float32) for part in (x_train, x_test))
    train_y, test_y = (torch.tensor(part, dtype=torch.long) for part in (y_train, y_test))
    return train_x, train_y, test_x, test_y


def network() -> nn.Module:
    """A convolution and two layers: enough for 8x8 pixels."""
    return nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)),
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(256, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


@phalanx.gpu_function(gpus=4)
def train(epochs: int = 20, batch: int = 32) -> float:
    """Trains, and returns the accuracy on the test scans, which every rank measures on its part of them."""
    ctx = phalanx.current()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    x, y, x_test, y_test = (part.to(ctx.device) for part in digits())
    ids = [torch.device(ctx.device)] if ctx.device.startswith("cuda") else None
    model = DistributedDataParallel(network().to(ctx.device), device_ids=ids)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    steps = len(x) // (batch * ctx.world_size)
    for epoch in range(epochs):
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(epoch))[ctx.rank :: ctx.world_size]
        for step in range(steps):
            picked = order[step * batch : (step + 1) * batch]
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x[picked]), y[picked])
            loss.backward()
            optimizer.step()
        ctx.progress(epoch + 1, epochs)
        if epoch % 5 == 4:
            accuracy = measure(model, x_test, y_test)
            print(f"epoch {epoch + 1}: test accuracy {accuracy:.4f}", flush=True)
    return measure(model, x_test, y_test)


@torch.inference_mode()
def measure(model: nn.Module, x: Tensor, y: Tensor) -> float:
    """Returns the accuracy over all ranks: each counts its part, the sums are added."""
    mine = slice(dist.get_rank(), None, dist.get_world_size())
    right = (model(x[mine]).argmax(1) == y[mine]).sum().double()
    counts = torch.stack([right, torch.tensor(float(len(y[mine])), dtype=torch.float64, device=x.device)])
    dist.all_reduce(counts)
    return float(counts[0] / counts[1])


def main(epochs: int = 20) -> None:
    """Trains on a gang and says whether the target is reached."""
    accuracy = attach(train.spawn(epochs))
    say(f"test accuracy {accuracy:.4f} (target {TARGET:.2f})")
    if accuracy < TARGET:
        raise SystemExit(f"test accuracy {accuracy:.4f} is below {TARGET}")


if __name__ == "__main__":
    main()
