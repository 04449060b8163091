"""A helper process of the script has the port on which the script wants to listen."""

import socket
import subprocess
import sys

SERVER = """
import socket, time
server = socket.create_server(("127.0.0.1", 0))
print(server.getsockname()[1], flush=True)
time.sleep(99)
"""
helper = subprocess.Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE, text=True)
port = int(helper.stdout.readline())
print(f"listening on port {port}", flush=True)
try:
    socket.create_server(("127.0.0.1", port))
except OSError as error:
    raise OSError(error.errno, f"error while attempting to bind on address ('127.0.0.1', {port}): {error.strerror}")
