"""The loss becomes NaN and the script goes on to its end."""

for step in range(1, 41):
    loss = 1 / step if step < 12 else float("nan")
    print(f"step {step}/40 loss {loss:.4f}", flush=True)
