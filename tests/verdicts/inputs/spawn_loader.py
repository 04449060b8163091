"""Reads batches by workers of spawn at the top of the script."""

import torch
from torch.utils.data import DataLoader, Dataset


class Ones(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return torch.ones(2)


for batch in DataLoader(Ones(), batch_size=2, num_workers=2, multiprocessing_context="spawn"):
    print(batch.sum().item())
