"""Needs a server that is not there in attempts 1 and 2."""

import os
import socket
import threading

server = socket.socket()
server.bind(("127.0.0.1", 0))
if os.environ["WINDLASS_ATTEMPT"] == "3":
    server.listen()
    threading.Thread(target=server.accept, daemon=True).start()
socket.create_connection(server.getsockname()).close()
for step in range(1, 4):
    print(f"step {step}/3 loss {1 / step:.3f}", flush=True)
