"""Batch sampler that uses each sample of an epoch once, even if the number of ranks changes within the epoch."""

from __future__ import annotations

import hashlib
import os
import sys
from array import array
from collections.abc import Iterator, Mapping
from typing import Any

_NUM_ROUND_PAIRS = 4
_MIN_BITS = 8  # a smaller network makes some orders of a few samples three times as frequent as others


class BatchSampler:
    """Batches of one rank, for a DataLoader's `batch_sampler`. The position in the epoch is shared by all ranks.

    Each step takes the next `global_batch` samples of the epoch's order and splits them among the ranks. A run can
    therefore resume with another world size at any step: no sample is skipped or repeated, and all ranks make the same
    number of steps. If fewer samples than ranks would be left for the last step, they are added to the step before it.

    There is one exception: if fewer samples than ranks are left and this attempt has made no step in the epoch (because
    the world size has grown close to the end of an epoch, or the data set is smaller than the world size), ranks
    without a sample repeat one of the samples of that step, and `repeated` counts them.

    Args:
        num_samples: length of the data set.
        batch_size: samples per step on one rank. The global batch then grows and shrinks with the world size, and the
            learning rate should follow it: `lr = base_lr * sampler.global_batch / base_batch`.
        global_batch_size: samples per step on all ranks together, independent of the world size.
        shuffle: use a new random order in each epoch; otherwise 0, 1, 2 and so on.
        seed: seed of the order; the same on all ranks.
        drop_last: skip the samples at the end of an epoch that do not fill a step.
        rank: rank of this process; default: from torch.distributed if initialized, else `$RANK`, else 0.
        world_size: number of ranks; default: as for `rank`, else 1.

    Raises:
        ValueError: not exactly one of the two batch sizes is given, a number is out of range, or the global batch is
            smaller than the number of ranks.
    """

    def __init__(
        self,
        num_samples: int,
        batch_size: int | None = None,
        *,
        global_batch_size: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
        rank: int | None = None,
        world_size: int | None = None,
    ) -> None:
        here, size = _rank_and_size()
        self.rank = here if rank is None else rank
        self.world_size = size if world_size is None else world_size
        if (batch_size is None) == (global_batch_size is None):
            raise ValueError("BatchSampler takes either batch_size (of one rank) or global_batch_size (of all ranks)")
        for name, value in (
            ("num_samples", num_samples),
            ("batch_size", batch_size),
            ("global_batch_size", global_batch_size),
            ("world_size", self.world_size),
        ):
            if value is not None and value < 1:
                raise ValueError(f"BatchSampler({name}={value}): must be at least 1")
        if not 0 <= self.rank < self.world_size:
            raise ValueError(f"BatchSampler(rank={self.rank}): must be from 0 to {self.world_size - 1}")
        self.global_batch = batch_size * self.world_size if batch_size is not None else int(global_batch_size or 0)
        """Samples of one step on all ranks together."""
        if self.global_batch < self.world_size:
            raise ValueError(
                f"BatchSampler(global_batch_size={self.global_batch}): fewer samples in a step than the "
                f"{self.world_size} ranks; each rank needs at least one"
            )
        self.num_samples = num_samples
        self.shuffle = shuffle
        self.seed = seed
        self.drop_last = drop_last
        self.epoch = 0
        """Epoch whose order is used."""
        self.consumed = 0
        """Samples of this epoch used in completed steps, on all ranks together; samples prefetched by a DataLoader do
        not count."""
        self.repeated = 0
        """Number of times a sample was given to a second rank in the same step, in all epochs; see the
        exception above."""
        self._may_be_empty = False

    def __iter__(self) -> Iterator[list[int]]:
        """Yields this rank's batches from the current position to the end of the epoch.

        Raises:
            RuntimeError: the epoch is over and no new one was set; the loop would silently do nothing.
        """
        if self._next_size(self.consumed) == 0 and self.consumed and not self._may_be_empty:
            raise RuntimeError(
                f"epoch {self.epoch} of the sampler is over: call sampler.set_epoch({self.epoch + 1}) before the next "
                "one, or loop over Checkpoint.epochs(), which does so"
            )
        return self._batches(self.consumed, self._order())

    def __len__(self) -> int:
        """Returns the number of remaining steps in this epoch, the same on all ranks."""
        full, left = divmod(self.num_samples - self.consumed, self.global_batch)
        if self.drop_last or left == 0:
            return full
        return max(1, full) if left < self.world_size else full + 1

    def set_epoch(self, epoch: int) -> None:
        """Moves to the beginning of an epoch. For the current epoch, as after a resume, the position is kept."""
        if epoch != self.epoch:
            self.epoch, self.consumed, self._may_be_empty = epoch, 0, False

    def advance(self) -> None:
        """Records a step on all ranks. `Checkpoint` calls this; loops without a checkpoint call it after each batch.

        Raises:
            RuntimeError: the epoch has no more steps, so this was called more often than batches were drawn.
        """
        size = self._next_size(self.consumed)
        if size == 0:
            raise RuntimeError(
                f"advance() after the last step of epoch {self.epoch}: it is called once for each batch of this "
                "sampler, and set_epoch() before the next epoch"
            )
        self.repeated += max(0, self.world_size - size)
        self.consumed += size

    def state_dict(self) -> dict[str, Any]:
        """Returns the position and the settings that it depends on; the same on all ranks, and valid for any world
        size.
        """
        return {
            "num_samples": self.num_samples,
            "seed": self.seed,
            "shuffle": self.shuffle,
            "epoch": self.epoch,
            "consumed": self.consumed,
            "repeated": self.repeated,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues from the position of another sampler.

        Raises:
            ValueError: data set size, seed or `shuffle` of the other sampler differ, so its position is not valid here.
        """
        for name in ("num_samples", "seed", "shuffle"):
            if state[name] != getattr(self, name):
                raise ValueError(
                    f"the checkpoint's sampler had {name}={state[name]}, this one has {getattr(self, name)}: samples "
                    "would be lost or seen twice. Use the same value, or start without that checkpoint"
                )
        self.epoch, self.consumed, self.repeated = int(state["epoch"]), int(state["consumed"]), int(state["repeated"])
        # A run saved after the last step of an epoch resumes in that epoch, to run the code after its loop.
        self._may_be_empty = True

    def _next_size(self, consumed: int) -> int:
        """Returns the samples of the step that starts at `consumed`, on all ranks together; 0 at the end of the
        epoch.
        """
        left = self.num_samples - consumed
        if left < self.global_batch:
            return 0 if self.drop_last else left
        tail_is_too_small = not self.drop_last and left - self.global_batch < self.world_size
        return left if tail_is_too_small else self.global_batch

    def _batches(self, consumed: int, order: Permutation | range) -> Iterator[list[int]]:
        while size := self._next_size(consumed):
            first = consumed + size * self.rank // self.world_size
            end = consumed + size * (self.rank + 1) // self.world_size
            yield list(order[first : max(end, first + 1)])
            consumed += size

    def _order(self) -> Permutation | range:
        everything = range(self.num_samples)
        return Permutation(self.num_samples, f"{self.seed}/{self.epoch}") if self.shuffle else everything


class Permutation:
    """A shuffled `range(length)` that is computed on access, at any position, without a list of all numbers.

    A Feistel network with random tables over the next power of two, applied until the number is in range (Black and
    Rogaway, *Ciphers with Arbitrary Finite Domains*, 2002). The tables are derived from `key` with SHAKE-256, so the
    order is the same in every version of Python, NumPy and torch.
    """

    def __init__(self, length: int, key: str) -> None:
        self._length = length
        bits = max(_MIN_BITS, (length - 1).bit_length())
        self._low_bits = bits // 2
        low_size, high_size = 1 << self._low_bits, 1 << (bits - self._low_bits)
        entries = iter(_random_numbers(f"windlass/{key}", _NUM_ROUND_PAIRS * (low_size + high_size)))
        self._pairs = [
            (
                [next(entries) & (high_size - 1) for _ in range(low_size)],
                [next(entries) & (low_size - 1) for _ in range(high_size)],
            )
            for _ in range(_NUM_ROUND_PAIRS)
        ]

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, places: slice) -> list[int]:
        """Returns the numbers at the positions of a slice."""
        length, bits, pairs = self._length, self._low_bits, self._pairs
        mask = (1 << bits) - 1
        found = []
        for number in range(length)[places]:
            while True:
                low, high = number & mask, number >> bits
                for to_high, to_low in pairs:
                    high ^= to_high[low]
                    low ^= to_low[high]
                number = high << bits | low
                if number < length:
                    break
            found.append(number)
        return found


def _random_numbers(key: str, count: int) -> array[int]:
    numbers = array("I", hashlib.shake_256(key.encode()).digest(4 * count))
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers


def _rank_and_size() -> tuple[int, int]:
    """Returns rank and world size of this process, without importing torch."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    # With `launcher: plain`, ranks have Windlass's variables and no torchrun variables.
    prefix = "" if "RANK" in os.environ else "WINDLASS_"
    return int(os.environ.get(f"{prefix}RANK", "0")), int(os.environ.get(f"{prefix}WORLD_SIZE", "1"))
