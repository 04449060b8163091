"""A server on loopback answers 429, as a hub does that gets the requests of all ranks."""

import http.server
import threading
import urllib.request


class Hub(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_error(429)


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
threading.Thread(target=server.serve_forever, daemon=True).start()
urllib.request.build_opener(urllib.request.ProxyHandler({})).open(f"http://127.0.0.1:{server.server_port}/api/models/x")
