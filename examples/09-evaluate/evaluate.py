"""Computes the loss and accuracy of saved weights on the test images of example 01, over any number of ranks.

The figures do not depend on the number of ranks: each image counts once, and sums are divided by the number of images.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn

TEST_IMAGES = 360
SEED = 0
PREFIX = "module."


def main() -> None:
    args = parse_args()
    torch.set_num_threads(1)
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    else:
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    network = make_network()
    network.load_state_dict(weights_of(args.weights))
    loss, accuracy, count = evaluate(network, *share_of_test_images(), batch_size=args.batch_size)
    if dist.get_rank() == 0:
        print(f"test loss {loss:.6f}, accuracy {100 * accuracy:.2f} % of {count} images", flush=True)
    dist.destroy_process_group()


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    folder = Path(os.environ.get("WINDLASS_DATA_WEIGHTS", "weights"))
    parser.add_argument("--weights", type=Path, default=folder / "model.pt", help="what training has saved")
    parser.add_argument("--batch-size", type=int, default=50, help="images at once, each rank (default: %(default)s)")
    return parser.parse_args()


def weights_of(path: Path) -> Mapping[str, Tensor]:
    """Saved weights by the names of the bare network: DDP puts `module.` before each."""
    weights = torch.load(path, map_location="cpu", weights_only=True)
    if all(name.startswith(PREFIX) for name in weights):
        weights = {name.removeprefix(PREFIX): value for name, value in weights.items()}
    return weights


def make_network() -> nn.Module:
    """The network of example 01."""
    return nn.Sequential(
        nn.Conv2d(1, 16, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


def share_of_test_images() -> tuple[Tensor, Tensor]:
    """Every n-th of the 360 test images of example 01: shares may differ by one image, and no image is in two.

    A `DistributedSampler` would repeat images until all shares are equal, and those would count twice.
    """
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(SEED))[-TEST_IMAGES:]
    mine = order[dist.get_rank() :: dist.get_world_size()]
    return images[mine], torch.tensor(digits.target)[mine]


@torch.no_grad()
def evaluate(network: nn.Module, images: Tensor, labels: Tensor, *, batch_size: int) -> tuple[float, float, int]:
    """Mean loss, accuracy and number of images, over all ranks.

    Sums are added up, not means: the last batch of a rank is smaller, and so may be its share.
    """
    network.eval()
    sums = torch.zeros(3, dtype=torch.float64)
    for batch, expected in zip(images.split(batch_size), labels.split(batch_size), strict=True):
        logits = network(batch)
        sums[0] += F.cross_entropy(logits, expected, reduction="sum").double()
        sums[1] += (logits.argmax(dim=1) == expected).sum()
        sums[2] += len(batch)
    dist.all_reduce(sums)
    loss, correct, count = sums.tolist()
    return loss / count, correct / count, int(count)


if __name__ == "__main__":
    main()
