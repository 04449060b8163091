"""Trains a small detector of heads on images and labels in the layout of YOLO, and can be killed at any moment.

`python train.py`, `torchrun train.py` and `windlass run job.yaml` all run this one file. Each continues from the newest
checkpoint that it finds, with any number of ranks, and the weights with the lowest loss on the validation images are
kept in `best.safetensors`.
"""

from __future__ import annotations

import argparse
import math
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.nn  # DDP imports it; imported only after init_process_group, it holds the group past its end
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, Subset

from windlass.train import report
from windlass.train.checkpoint import Checkpoint
from windlass.train.sampler import BatchSampler

SEED = 0
STRIDE = 8
"""Width and height of a cell, in pixels of the resized image. A cell predicts one head."""
HEAD_WEIGHT = 10.0
"""Of cells with a head in the loss: most cells have none."""


def main() -> None:
    args = parse_args()
    device = choose_device()
    backend = "nccl" if device.type == "cuda" else "gloo"
    if "RANK" in os.environ:
        dist.init_process_group(backend)
    else:
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    torch.manual_seed(SEED)
    train(args, device)
    dist.destroy_process_group()


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    folder = Path(os.environ.get("WINDLASS_DATA_HEADS", "data/heads"))
    parser.add_argument("--data", type=Path, default=folder, help="folder of the set (default: %(default)s)")
    parser.add_argument("--epochs", type=int, default=100, help="times that each image is seen (default: %(default)s)")
    parser.add_argument("--batch", type=int, default=16, help="images of a step, over all ranks (default: %(default)s)")
    parser.add_argument("--size", type=int, default=320, help="width and height in pixels to which images are resized")
    parser.add_argument("--lr", type=float, default=2e-3, help="learning rate (default: %(default)s)")
    parser.add_argument("--workers", type=int, default=0, help="processes of each rank that read images")
    args = parser.parse_args()
    if args.size < STRIDE or args.size % STRIDE:
        parser.error(f"--size {args.size}: a multiple of {STRIDE} is needed")
    return args


def choose_device() -> torch.device:
    """The rank's GPU; without GPUs the CPU, on one thread, since the ranks of a machine share its cores."""
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
        return device
    torch.set_num_threads(1)
    return torch.device("cpu")


# -- data -------------------------------------------------------------------------------------------------------------


class Heads(Dataset[tuple[Tensor, Tensor]]):
    """The images of one split, resized, each with its grid of heads."""

    def __init__(self, folder: Path, split: str, size: int) -> None:
        images = folder / split_folders(folder)[split]
        self.images = sorted(path for path in images.glob("*") if path.is_file())
        self.labels = images.parent.parent / "labels" / images.name
        self.size = size
        if not self.images:
            raise SystemExit(f"{images} has no images; make the set anew: python prepare.py --folder {folder}")

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, number: int) -> tuple[Tensor, Tensor]:
        """The image as 3 × size × size from 0 to 1, and its grid."""
        path = self.images[number]
        image = read_image(path)
        image = F.interpolate(image[None], (self.size, self.size), mode="bilinear", antialias=True)[0]
        return image, make_grid((self.labels / f"{path.stem}.txt").read_text(), self.size // STRIDE)


def split_folders(folder: Path) -> dict[str, str]:
    """Split → folder of its images, as data.yaml names them: `train: images/train`."""
    try:
        lines = (folder / "data.yaml").read_text().splitlines()
    except FileNotFoundError:
        raise SystemExit(f"{folder} has no data.yaml: python prepare.py --folder {folder}") from None
    pairs = dict(line.split(": ", 1) for line in lines if ": " in line)
    return {split: pairs[split] for split in ("train", "val")}


def read_image(path: Path) -> Tensor:
    """Colours from 0 to 1 as 3 × height × width. Pillow reads it, unless it is a binary PPM."""
    with open(path, "rb") as file:
        is_ppm = file.read(2) == b"P6"
    if is_ppm:
        data = path.read_bytes()
        _, width, height = data.split(maxsplit=3)[:3]
        shape = int(height), int(width), 3
        pixels = data[-math.prod(shape) :]
    else:
        try:
            from PIL import Image
        except ImportError:
            raise SystemExit(f"{path} is read by Pillow, which is not installed: pip install pillow") from None
        with Image.open(path) as image:
            shape = image.height, image.width, 3
            pixels = image.convert("RGB").tobytes()
    return torch.frombuffer(bytearray(pixels), dtype=torch.uint8).view(shape).permute(2, 0, 1) / 255


def make_grid(labels: str, cells: int) -> Tensor:
    """5 × cells × cells: whether a head has its centre in the cell, where in the cell that is, and the head's width and
    height in parts of the image. Of several heads in one cell the last counts."""
    grid = torch.zeros(5, cells, cells)
    for line in labels.splitlines():
        x, y, width, height = (float(word) for word in line.split()[1:])
        column, row = min(int(x * cells), cells - 1), min(int(y * cells), cells - 1)
        grid[:, row, column] = torch.tensor([1.0, x * cells - column, y * cells - row, width, height])
    return grid


# -- network ----------------------------------------------------------------------------------------------------------


class Detector(nn.Sequential):
    """N × 3 × size × size → N × 5 × cells × cells: a logit of a head, and the box as in `make_grid`.

    Normalised by groups: batch statistics would depend on the number of ranks.
    """

    def __init__(self) -> None:
        super().__init__(
            *layer(3, 16, stride=2),
            *layer(16, 32, stride=2),
            *layer(32, 64, stride=2),
            *layer(64, 64, stride=1),
            nn.Conv2d(64, 5, kernel_size=1),
        )

    def forward(self, images: Tensor) -> Tensor:
        found = super().forward(images)
        return torch.cat([found[:, :1], found[:, 1:].sigmoid()], dim=1)


def layer(inputs: int, outputs: int, stride: int) -> list[nn.Module]:
    return [nn.Conv2d(inputs, outputs, kernel_size=3, stride=stride, padding=1), nn.GroupNorm(8, outputs), nn.SiLU()]


def losses(found: Tensor, grids: Tensor) -> Tensor:
    """The loss of each image: whether cells have a head, and the distance of the boxes in cells that have one."""
    has_head = grids[:, 0]
    weight = 1 + (HEAD_WEIGHT - 1) * has_head
    of_heads = F.binary_cross_entropy_with_logits(found[:, 0], has_head, weight, reduction="none").mean(dim=(1, 2))
    distance = (found[:, 1:] - grids[:, 1:]).abs().sum(dim=1) * has_head
    return of_heads + distance.sum(dim=(1, 2)) / has_head.sum(dim=(1, 2)).clamp(min=1)


# -- training ---------------------------------------------------------------------------------------------------------


def train(args: argparse.Namespace, device: torch.device) -> None:
    train_set, val_set = Heads(args.data, "train", args.size), Heads(args.data, "val", args.size)
    network = Detector().to(device)
    ddp = DistributedDataParallel(network)
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=args.lr)
    # The batch is that of all ranks together, so every number of ranks takes the same steps.
    sampler = BatchSampler(len(train_set), global_batch_size=args.batch, seed=SEED)
    loader = DataLoader(train_set, batch_sampler=sampler, num_workers=args.workers)
    best = {"loss": math.inf, "epoch": -1}
    saved = Checkpoint(model=ddp, optimizer=optimizer, sampler=sampler, best=best)
    for epoch in saved.epochs(args.epochs):
        began = time.perf_counter()
        for images, grids in saved.batches(loader):
            loss = losses(ddp(images.to(device)), grids.to(device)).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            report(epoch=epoch, loss=loss, samples=len(images))
        seconds = time.perf_counter() - began
        val_loss, num_found, num_heads = evaluate(network, val_set, args, device)
        # Written before `best` is changed: a checkpoint never names weights that are not there.
        if val_loss < best["loss"]:
            saved.export(output_folder() / "best.safetensors")
            best.update(loss=val_loss, epoch=epoch)
        if dist.get_rank() == 0:
            ranks = dist.get_world_size()
            print(
                f"epoch {epoch}: {seconds:.1f} s, world size {ranks}, val loss {val_loss:.4f}, "
                f"{num_found} of {num_heads} heads found",
                flush=True,
            )
    if dist.get_rank() == 0:
        print(f"best: epoch {best['epoch']}, val loss {best['loss']:.4f}", flush=True)


def output_folder() -> Path:
    return Path(os.environ.get("WINDLASS_OUTPUT_DIR", "outputs"))


@torch.no_grad()
def evaluate(
    network: nn.Module, images: Heads, args: argparse.Namespace, device: torch.device
) -> tuple[float, int, int]:
    """Mean loss of an image, heads found, and heads, over all ranks: each image counts once, whatever their number."""
    network.eval()
    mine = range(dist.get_rank(), len(images), dist.get_world_size())
    sums = torch.zeros(3, dtype=torch.float64, device=device)
    for pixels, grids in DataLoader(Subset(images, mine), batch_size=args.batch, num_workers=args.workers):
        grids = grids.to(device)
        found = network(pixels.to(device))
        has_head = grids[:, 0] > 0
        sums[0] += losses(found, grids).sum()
        sums[1] += (has_head & (found[:, 0] > 0) & (overlap(found, grids) > 0.5)).sum()
        sums[2] += has_head.sum()
    dist.all_reduce(sums)
    network.train()
    loss, num_found, num_heads = sums.tolist()
    return loss / len(images), int(num_found), int(num_heads)


def overlap(found: Tensor, grids: Tensor) -> Tensor:
    """N × cells × cells: intersection over union of the two boxes of each cell."""
    cells = grids.shape[-1]
    edges = []
    for one in (found, grids):
        centre, half = one[:, 1:3] / cells, one[:, 3:5] / 2
        edges.append((centre - half, centre + half))
    (low, high), (other_low, other_high) = edges
    both = (torch.minimum(high, other_high) - torch.maximum(low, other_low)).clamp(min=0).prod(dim=1)
    either = found[:, 3:5].prod(dim=1) + grids[:, 3:5].prod(dim=1) - both
    return both / either.clamp(min=1e-9)


if __name__ == "__main__":
    main()
