"""Reads a pool of forkserver at its top."""

import multiprocessing


def work(number):
    return number


multiprocessing.set_start_method("forkserver", force=True)
with multiprocessing.Pool(2) as pool:
    pool.map(work, range(2))
