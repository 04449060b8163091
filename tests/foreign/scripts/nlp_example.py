"""The shape of accelerate's nlp_example.py: Accelerator from options, prepare, gather_for_metrics."""
# mypy: ignore-errors

import argparse

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset


def training_function(args: argparse.Namespace) -> None:
    accelerator = Accelerator(cpu=args.cpu, mixed_precision=args.mixed_precision)
    torch.manual_seed(42)
    inputs = torch.randn(64, 8)
    data = TensorDataset(inputs, (inputs.sum(1) > 0).long())
    model = torch.nn.Linear(8, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-1)
    model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(data, batch_size=8))
    for epoch in range(2):
        for batch, labels in loader:
            accelerator.backward(torch.nn.functional.cross_entropy(model(batch), labels))
            optimizer.step()
            optimizer.zero_grad()
        right = torch.tensor([(model(batch).argmax(1) == labels).float().mean() for batch, labels in loader])
        accuracy = accelerator.gather_for_metrics(right.mean().reshape(1))
        accelerator.print(f"epoch {epoch}: {{'accuracy': {accuracy.mean().item():.3f}}} of {len(accuracy)} processes")
    accelerator.end_training()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--mixed_precision", choices=["no", "fp16", "bf16", "fp8"])
    parser.add_argument("--cpu", action="store_true")
    training_function(parser.parse_args())


if __name__ == "__main__":
    main()
