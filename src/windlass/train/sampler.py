"""Batches of one rank from a position in the epoch: each sample once over all ranks, also if their number changes."""

from __future__ import annotations

import hashlib
import os
import sys
from array import array
from collections.abc import Iterator, Mapping
from typing import Any

_NUM_ROUND_PAIRS = 4
_LEAST_BITS = 8  # of a smaller network some orders of a few samples come three times as often as others


class BatchSampler:
    """The batches of one rank, for a DataLoader's `batch_sampler`; the position in the epoch is common to all ranks.

    A step takes the next `global_batch` samples of the epoch's order and splits them among the ranks, so that a run
    may resume with another world size at any step: no sample is left out, none is seen twice, and all ranks make the
    same number of steps. Samples left at the end that are fewer than the ranks are taken by the step before them.

    One exception: where fewer samples than ranks are left and no step is before them in this attempt (the world size
    has grown close to the end of an epoch, or the data set is smaller than the world), ranks without a sample repeat
    one of that step's samples, and `repeated` counts them.

    Args:
        num_samples: the length of the data set.
        batch_size: samples of one step on one rank. The global batch then grows and shrinks with the world size, and
            the learning rate should follow it: `lr = base_lr * sampler.global_batch / base_batch`.
        global_batch_size: samples of one step on all ranks, whatever their number; the learning rate stays.
        shuffle: draw a new order for each epoch; otherwise 0, 1, 2 and so on.
        seed: of the order; the same on all ranks.
        drop_last: leave out the samples at the end that fill no step.
        rank: this process's number; default: of torch.distributed where that is up, else `$RANK`, else 0.
        world_size: number of ranks; default: as for `rank`, else 1.

    Raises:
        ValueError: not exactly one of the two batch sizes was given, a number is out of its range, or the global
            batch has fewer samples than there are ranks.
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
        """Samples of one step, all ranks together."""
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
        """Which order is used."""
        self.consumed = 0
        """Samples of this epoch that steps were made of, all ranks together; what a DataLoader fetched ahead is not."""
        self.repeated = 0
        """Samples given to a second rank in the same step, in all epochs; see the exception above."""
        self._may_be_empty = False

    def __iter__(self) -> Iterator[list[int]]:
        """This rank's batches of the epoch from the position on.

        Raises:
            RuntimeError: the epoch is over and no other was set; a loop would otherwise silently do nothing.
        """
        if self._next_size(self.consumed) == 0 and self.consumed and not self._may_be_empty:
            raise RuntimeError(
                f"epoch {self.epoch} of the sampler is over: call sampler.set_epoch({self.epoch + 1}) before the next "
                "one, or loop over Checkpoint.epochs(), which does so"
            )
        return self._batches(self.consumed, self._order())

    def __len__(self) -> int:
        """Steps that are left in this epoch, the same on all ranks."""
        full, left = divmod(self.num_samples - self.consumed, self.global_batch)
        if self.drop_last or left == 0:
            return full
        return max(1, full) if left < self.world_size else full + 1

    def set_epoch(self, epoch: int) -> None:
        """Goes to the beginning of an epoch; in the current epoch, as after a resume, the position stays."""
        if epoch != self.epoch:
            self.epoch, self.consumed, self._may_be_empty = epoch, 0, False

    def advance(self) -> None:
        """One step was made, on all ranks. `Checkpoint` calls this; a loop without it calls it after each batch.

        Raises:
            RuntimeError: the epoch has no more steps, so this is called more often than batches were drawn.
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
        """The position and what it belongs to; common to all ranks, and valid for any world size."""
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
            ValueError: that one had another data set size, seed or `shuffle`, so its position does not apply here.
        """
        for name in ("num_samples", "seed", "shuffle"):
            if state[name] != getattr(self, name):
                raise ValueError(
                    f"the checkpoint's sampler had {name}={state[name]}, this one has {getattr(self, name)}: samples "
                    "would be lost or seen twice. Give the same value, or begin without that checkpoint"
                )
        self.epoch, self.consumed, self.repeated = int(state["epoch"]), int(state["consumed"]), int(state["repeated"])
        # A run that was saved after an epoch's last step resumes in that epoch, for the code after its loop.
        self._may_be_empty = True

    def _next_size(self, consumed: int) -> int:
        """Samples of the step that begins there, all ranks together; 0 where none is left."""
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
    """A shuffled `range(length)` that is computed where it is read: no list of all, and any place at once.

    A Feistel network of random tables over the next power of two, walked on until the number is in range (Black and
    Rogaway, *Ciphers with Arbitrary Finite Domains*, 2002). The tables come from SHAKE-256 of `key`, so the order is
    the same with every version of Python, NumPy and torch.
    """

    def __init__(self, length: int, key: str) -> None:
        self._length = length
        bits = max(_LEAST_BITS, (length - 1).bit_length())
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
        """The numbers at these places."""
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
    """Rank and world size of this process, without importing torch."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    # Without those of torchrun, of the ranks that `launcher: plain` starts side by side.
    prefix = "" if "RANK" in os.environ else "WINDLASS_"
    return int(os.environ.get(f"{prefix}RANK", "0")), int(os.environ.get(f"{prefix}WORLD_SIZE", "1"))
