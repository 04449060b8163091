"""Uses a multiprocessing fork server that the rank starts, and a queue for the results."""

import multiprocessing


def answer(queue: "multiprocessing.SimpleQueue[str]") -> None:
    queue.put(__name__)


if __name__ == "__main__":
    context = multiprocessing.get_context("forkserver")
    queue = context.SimpleQueue()
    process = context.Process(target=answer, args=(queue,))
    process.start()
    print(queue.get())
    process.join()
    print(process.exitcode)
