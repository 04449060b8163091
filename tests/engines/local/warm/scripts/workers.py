"""Uses DataLoader workers, whose seeds follow from torch's seed."""

import torch
from torch.utils.data import DataLoader, Dataset


class Noise(Dataset):  # type: ignore[type-arg]
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        return index + torch.rand(1)


if __name__ == "__main__":
    torch.manual_seed(7)
    loader = DataLoader(Noise(), batch_size=4, num_workers=2)
    print([batch.flatten().tolist() for batch in loader])
