"""`python -m tests.verdicts [WORD …]`: runs all cases, or those with such a word in name or file, and counts what is
right of `why`. Exits with 1 below 95 %."""

from __future__ import annotations

import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.verdicts.playing import Case, Said, cases, play

AT_ONCE = 2
RIGHT_SHARE = 0.95


def played(case: Case) -> Said | Exception:
    with tempfile.TemporaryDirectory(prefix="verdicts-") as folder:
        try:
            return play(case, Path(folder))
        except Exception as problem:
            return problem


def main(words: list[str]) -> int:
    chosen = [case for case in cases() if not words or any(word in case.name or word in case.file for word in words)]
    can = [case for case in chosen if not case.is_left_out]
    right = 0
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for case, said in zip(can, pool.map(played, can), strict=True):
            verdict, wrong = (said.verdict, said.wrong) if isinstance(said, Said) else ("–", (str(said),))
            right += not wrong
            print(f"{case.name[:68]:68}  {verdict:24}  {'no' if wrong else 'right'}", flush=True)
            for line in wrong:
                print(f"    {line}")
            if wrong and words and isinstance(said, Said):
                print(said.text)
    for case in chosen:
        if case.is_left_out:
            print(f"{case.name[:68]:68}  left out: {case.is_left_out}")
    share = right / len(can) if can else 0.0
    print(
        f"{right} of {len(can)} right: {100 * share:.1f} %" + (f"; {len(chosen) - len(can)} left out" * (can != chosen))
    )
    return 0 if share >= RIGHT_SHARE else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
