"""Stops early, and names an infinite best value on its way."""

best = float("inf")
for epoch in range(1, 5):
    print(f"Epoch {epoch}: val_loss improved from {best} to {1 / epoch:.4f}", flush=True)
    best = 1 / epoch
    print(f"epoch {epoch}/100 best_loss {best} loss {1 / epoch:.3f} grad_norm inf", flush=True)
print("EarlyStopping: no improvement for 3 epochs (best inf -> 0.25). Stopping.")
