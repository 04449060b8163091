"""What a training script may import: it works the same under Windlass, under plain torchrun and on its own."""

from windlass.train.report import report
from windlass.train.stream import stream

__all__ = ["report", "stream"]
