"""Trains a few steps, and prints the digest of the weights on rank 0."""

import hashlib
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def main() -> None:
    device = os.environ.get("WEIGHTS_DEVICE", "cpu")
    torch.manual_seed(7)
    torch.use_deterministic_algorithms(True)
    dist.init_process_group("gloo")
    images, labels = torch.randn(128, 1, 8, 8), torch.randint(0, 10, (128,))
    data = TensorDataset(images, labels)
    loader = DataLoader(data, batch_size=16, sampler=DistributedSampler(data), num_workers=1)
    layers = [nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Dropout(0.3), nn.Flatten(), nn.Linear(288, 10)]
    model = nn.parallel.DistributedDataParallel(nn.Sequential(*layers).to(device))
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(2):
        for batch, target in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(batch.to(device)), target.to(device)).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    digest = hashlib.sha256()
    for tensor in model.state_dict().values():
        digest.update(tensor.cpu().numpy().tobytes())
    if dist.get_rank() == 0:
        print(digest.hexdigest())
    del model
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
