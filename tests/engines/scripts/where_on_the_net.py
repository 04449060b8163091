"""Prints one line of JSON: the host name of this rank, and its network."""

import fcntl
import json
import os
import socket
import struct
from pathlib import Path
from typing import Any

SIOCGIFADDR = 0x8915


def address_of(device: str) -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        answer = fcntl.ioctl(probe, SIOCGIFADDR, struct.pack("256s", device.encode()))
    return socket.inet_ntoa(answer[20:24])


names = ("RANK", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT", "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
seen: dict[str, Any] = {name: os.environ[name] for name in names}
seen["host"] = socket.gethostname()
seen["devices"] = sorted(path.name for path in Path("/sys/class/net").iterdir())
seen["address"] = address_of("eth0")
seen["loopback"] = address_of("lo")
seen["by_name"] = {host: socket.gethostbyname(host) for host in ("localhost", "node-0", "node-1")}
seen["namespace"] = str(Path("/proc/self/ns/net").readlink())
print(json.dumps(seen), flush=True)
