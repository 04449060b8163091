"""Shows a loss that becomes NaN in a bar of tqdm."""

import time

from tqdm import tqdm

bar = tqdm(range(40))
for step in bar:
    bar.set_postfix(loss=1 / (step + 1) if step < 20 else float("nan"))
    time.sleep(0.02)
