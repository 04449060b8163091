"""Starts two processes that import this file anew."""

import multiprocessing


def square(number: int) -> int:
    return number * number


if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        print(pool.map(square, range(5)))
