"""Starts a process by spawn at the top of the script, which the new process imports again."""

import multiprocessing
import sys


def square(number):
    print(number * number)


worker = multiprocessing.get_context("spawn").Process(target=square, args=(3,))
worker.start()
worker.join()
print("the worker exited with", worker.exitcode)
sys.exit(worker.exitcode)
