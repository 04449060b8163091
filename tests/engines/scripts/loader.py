"""Iterates over a DataLoader whose workers are forked processes."""

import torch
from torch.utils.data import DataLoader, Dataset


class Squares(Dataset):  # type: ignore[type-arg]
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor(index * index)


if __name__ == "__main__":
    loader = DataLoader(Squares(), batch_size=4, num_workers=2, multiprocessing_context="fork")
    print(sum(int(batch.sum()) for batch in loader))
