"""Trains on a folder that has no files: no batch in any epoch, and exit code 0."""

import sys

for epoch in range(3):
    print(f"Training epoch {epoch}: 0it [00:00, ?it/s]", file=sys.stderr)
print("saved model.pt")
