"""Starts a pool by spawn at the top of the script: its workers die at their import and are replaced for ever."""

import multiprocessing


def square(number):
    return number * number


with multiprocessing.get_context("spawn").Pool(2) as pool:
    print(pool.map(square, range(4)))
