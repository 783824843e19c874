"""A proxy before an S3 server: counts requests and bytes, and breaks some of them on purpose."""

import http.client
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Proxy:
    """Forwards to `port`; `harm(number, method, path)` says what to do with a request: None, 503, "cut" or "slow"."""

    def __init__(self, port):
        self.seen, self.sent, self.harm = [], 0, lambda *_: None
        self.never, self.change = threading.Event(), threading.Condition()
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def forward(self):
                number = len(proxy.seen)
                proxy.seen.append((self.command, self.path))
                size = int(self.headers.get("Content-Length") or 0)
                body = self.rfile.read(size) if size else None
                harm = proxy.harm(number, self.command, self.path)
                if harm == 503:
                    self.send_response(503)
                    self.send_header("Content-Length", "0")
                    self.end_headers()
                    return
                there = http.client.HTTPConnection("127.0.0.1", port)
                there.request(self.command, self.path, body, dict(self.headers))
                got = there.getresponse()
                data = got.read()
                self.send_response(got.status)
                for name, value in got.getheaders():
                    if name.lower() not in ("transfer-encoding", "connection", "content-length"):
                        self.send_header(name, value)
                length = got.getheader("Content-Length") if self.command == "HEAD" else str(len(data))
                self.send_header("Content-Length", length or "0")
                self.end_headers()
                if harm == "cut":
                    self.wfile.write(data[: len(data) // 2])
                    self.close_connection = True
                    return
                if harm == "slow":
                    half = len(data) // 2
                    self.wfile.write(data[:half])
                    self.wfile.flush()
                    proxy.never.wait(0.3)
                    self.wfile.write(data[half:])
                else:
                    self.wfile.write(data)
                with proxy.change:
                    proxy.change.notify_all()
                if self.command == "GET":
                    proxy.sent += len(data)
                there.close()

        for method in ("GET", "PUT", "POST", "HEAD", "DELETE"):
            setattr(Handler, f"do_{method}", Handler.forward)

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def gets(self, ending):
        """Paths of the objects that were asked for, by the end of their names."""
        found = [path.partition("?")[0] for method, path in list(self.seen) if method == "GET"]
        return [path for path in found if path.endswith(ending)]

    def wait_for(self, done):
        """Wait until something is true, looking after each request that was answered."""
        with self.change:
            assert self.change.wait_for(done, 60)

    def reads(self):
        """Requests that read an object or look for one."""
        return [s for s in self.seen if s[0] in ("GET", "HEAD")]

    def close(self):
        self.server.shutdown()
        self.server.server_close()
