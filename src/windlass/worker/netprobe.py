"""Network checks between two pods: `netprobe.py serve`, and `names`, `reach`, `speed`, `reduce`.

One process in each pod runs `serve`, which listens on the ports that ranks use for rendezvous. The other commands run
in the same pod and print one line of JSON. Standard library of Python 3.9 only, except that `reduce` needs torch.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import sys
import threading
import time
from typing import Any

PORTS = (29500, 29400)
"""Rendezvous port of ranks, and a second port, which remains open when torch listens on the first."""
CONNECT_SECONDS = 5.0
NAME_SECONDS = 40.0
"""Seconds within which a name must resolve. The name of a pod exists only after the pod has an address."""
NAME_PAUSE_SECONDS = 0.5
ROUNDS = 200
SPEED_SECONDS = 2.0
CHUNK_BYTES = 1 << 20
REDUCED_FLOATS = 4 << 20
REDUCTIONS = 5
HELLO = struct.Struct("!cI")
"""Request: a command and a number. `e` echoes that many bytes, `d` discards all data, `p` returns the port that the
kernel chose, `q` closes the listener."""


def serve(seconds: float) -> int:
    """Listens on all ports for the given number of seconds."""
    for port in (*PORTS, 0):
        listener = _listen(port)
        if port == 0:
            _chosen.append(listener.getsockname()[1])
        threading.Thread(target=_accept, args=(listener,), daemon=True).start()
    print("serving", flush=True)
    time.sleep(seconds)
    return 0


_chosen: list[int] = []  # the port that the kernel chose; empty until the socket is bound


def _listen(port: int) -> socket.socket:
    try:
        family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
        return socket.create_server(("", port), family=family, dualstack_ipv6=family == socket.AF_INET6)
    except OSError:  # the kernel has no IPv6
        return socket.create_server(("", port))


def _accept(listener: socket.socket) -> None:
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:  # the listener was closed by `q`
            return
        threading.Thread(target=_answer, args=(listener, connection), daemon=True).start()


def _answer(listener: socket.socket, connection: socket.socket) -> None:
    with connection:
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            word, number = HELLO.unpack(_exactly(connection, HELLO.size))
            if word == b"e":
                for _ in range(number):
                    connection.sendall(_exactly(connection, 1))
            elif word == b"d":
                buffer = bytearray(CHUNK_BYTES)
                total = 0
                while got := connection.recv_into(buffer):
                    total += got
                connection.sendall(struct.pack("!Q", total))
            elif word == b"p":
                connection.sendall(struct.pack("!I", _chosen[0] if _chosen else 0))
            elif word == b"q":
                listener.shutdown(socket.SHUT_RDWR)
                listener.close()
                connection.sendall(b"q")
        except (OSError, EOFError, struct.error):
            pass


def _exactly(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = connection.recv(size - len(data))
        if not more:
            raise EOFError
        data += more
    return data


def _ask(address: str, port: int, word: bytes, number: int = 0) -> socket.socket:
    connection = socket.create_connection((address, port), timeout=CONNECT_SECONDS)
    connection.settimeout(CONNECT_SECONDS + SPEED_SECONDS)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.sendall(HELLO.pack(word, number))
    return connection


# -- what is measured -------------------------------------------------------------------------------------------------


def names(hosts: list[str]) -> dict[str, Any]:
    """Resolves host names, after replacing `{domain}` by the cluster's DNS domain. Returns address and seconds, or the
    error, by name.
    """
    domain = _domain()
    wanted = [host.replace("{domain}", domain) for host in hosts]
    found: dict[str, Any] = {}
    threads = [threading.Thread(target=_look_up, args=(host, found), daemon=True) for host in wanted]
    give_up = time.monotonic() + NAME_SECONDS + CONNECT_SECONDS
    for thread in threads:
        thread.start()
    for thread in threads:  # a resolver that does not respond may block for a minute
        thread.join(max(0.0, give_up - time.monotonic()))
    return {host: found.get(host, {"error": f"no answer in {NAME_SECONDS:g} s"}) for host in wanted}


def _look_up(host: str, found: dict[str, Any]) -> None:
    begun = time.monotonic()
    while True:
        try:
            address = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0]
            found[host] = {"address": address, "seconds": time.monotonic() - begun}
            return
        except OSError as error:
            if time.monotonic() - begun > NAME_SECONDS:
                found[host] = {"error": str(error.strerror or error)}
                return
            time.sleep(NAME_PAUSE_SECONDS)


def _domain() -> str:
    """Returns the DNS domain of the cluster from the search list in `/etc/resolv.conf`."""
    try:
        with open("/etc/resolv.conf") as file:
            for line in file:
                words = line.split()
                for word in words[1:] if words[:1] == ["search"] else ():
                    if word.startswith("svc."):
                        return word[len("svc.") :]
    except OSError:
        pass
    return "cluster.local"


def reach(address: str) -> dict[str, Any]:
    """Checks that the other pod can be reached at each port, and at a port that its kernel chose, as ranks use them.

    Returns an error text by port; empty if the port can be reached.
    """
    found = {}
    chosen = 0
    for port in PORTS:
        try:
            with _ask(address, port, b"p") as connection:
                (chosen,) = struct.unpack("!I", _exactly(connection, 4))
            found[str(port)] = ""
        except (OSError, EOFError) as error:
            found[str(port)] = _words(error)
    if chosen:
        try:
            _ask(address, chosen, b"p").close()
            found["any"] = ""
        except OSError as error:
            found["any"] = _words(error)
    return found


def speed(address: str) -> dict[str, Any]:
    """Measures the median round-trip latency and the bytes per second to the other pod."""
    with _ask(address, PORTS[1], b"e", ROUNDS) as connection:
        times = []
        for _ in range(ROUNDS):
            begun = time.perf_counter()
            connection.sendall(b".")
            _exactly(connection, 1)
            times.append(time.perf_counter() - begun)
    with _ask(address, PORTS[1], b"d") as connection:
        connection.settimeout(4 * CONNECT_SECONDS + SPEED_SECONDS)
        chunk = bytes(CHUNK_BYTES)
        begun = time.perf_counter()
        while time.perf_counter() - begun < SPEED_SECONDS:
            connection.sendall(chunk)
        connection.shutdown(socket.SHUT_WR)
        (total,) = struct.unpack("!Q", _exactly(connection, 8))
        seconds = time.perf_counter() - begun
    return {"latency_seconds": sorted(times)[ROUNDS // 2], "bytes_per_second": total / seconds}


def reduce(rank: int, master: str) -> dict[str, Any]:
    """Sums a tensor over both pods with gloo, as CPU ranks do, and measures the throughput in bytes per second."""
    try:
        import torch
        import torch.distributed as dist
    except ImportError:
        return {"missing": "torch"}
    import datetime

    if rank == 0:  # closes the listener, because torch's store needs the port
        with _ask("127.0.0.1", PORTS[0], b"q") as connection:
            _exactly(connection, 1)
    url = f"tcp://{master}:{PORTS[0]}"
    dist.init_process_group("gloo", init_method=url, rank=rank, world_size=2, timeout=datetime.timedelta(seconds=60))
    mine = torch.full((REDUCED_FLOATS,), float(rank + 1))
    dist.all_reduce(mine)
    right = bool((mine == 3.0).all())
    dist.barrier()
    begun = time.perf_counter()
    for _ in range(REDUCTIONS):
        dist.all_reduce(mine)
    seconds = (time.perf_counter() - begun) / REDUCTIONS
    dist.barrier()
    print(json.dumps({"right": right, "bytes_per_second": 4 * REDUCED_FLOATS / seconds}), flush=True)
    os._exit(0)  # skips the teardown of torch, which may take long on a bad network


def _words(error: BaseException) -> str:
    if isinstance(error, socket.timeout):
        return f"no answer in {CONNECT_SECONDS:g} s"
    return str(getattr(error, "strerror", None) or error or type(error).__name__)


def main(argv: list[str]) -> int:
    """Runs the command named by the first argument."""
    what, words = argv[0], argv[1:]
    if what == "serve":
        return serve(float(words[0]))
    try:
        found = {
            "names": lambda: names(words),
            "reach": lambda: reach(words[0]),
            "speed": lambda: speed(words[0]),
            "reduce": lambda: reduce(int(words[0]), words[1]),
        }[what]()
    except (OSError, EOFError, RuntimeError, ValueError) as error:
        found = {"error": _words(error).splitlines()[0] if _words(error) else type(error).__name__}
    print(json.dumps(found), flush=True)
    os._exit(0)  # exits although a name lookup may still be running in a thread


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
