"""Starts processes at the top of the script, in ways that end differently when these die at their import."""

import concurrent.futures
import multiprocessing
import os
import sys
import time

way = sys.argv[1]


def work(number, *_):
    time.sleep(0.1)
    return number


if way == "torch":
    import torch.multiprocessing

    torch.multiprocessing.spawn(work, nprocs=2)
elif way == "executor":
    with concurrent.futures.ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as executor:
        print(sum(executor.map(work, range(8))))
elif way == "queue":
    multiprocessing.set_start_method("forkserver")
    queue = multiprocessing.Queue()
    multiprocessing.Process(target=queue.put, args=(1,)).start()
    print(queue.get())
elif way == "manager":
    shared = multiprocessing.get_context("spawn").Manager().dict()
    print(len(shared))
elif way == "rank-1":
    if os.environ["RANK"] == "1":
        worker = multiprocessing.get_context("spawn").Process(target=work, args=(1,))
        worker.start()
        worker.join()
        assert worker.exitcode == 0, "the reader failed"
    import torch.distributed

    torch.distributed.init_process_group("gloo")
