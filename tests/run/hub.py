"""A server that speaks the hub's endpoints for jobs, and really runs what it is sent."""

import json
import os
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

STAGES = {None: "RUNNING", 0: "COMPLETED"}


class Hub:
    """POST /api/jobs/NS, GET /api/jobs/NS/ID, POST /api/jobs/NS/ID/cancel, GET /api/whoami-v2."""

    def __init__(self, token):
        self.token, self.specs, self.processes, self.cancelled = token, [], {}, set()
        self.most, self.harm, self.on_send = 0, lambda *_: None, lambda *_: None
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def answer(self):
                size = int(self.headers.get("Content-Length") or 0)
                body = json.loads(self.rfile.read(size) or "{}")
                code, said = hub.answer(self.command, self.path, self.headers.get("Authorization"), body)
                data = json.dumps(said).encode()
                self.send_response(code)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

        for method in ("GET", "POST"):
            setattr(Handler, f"do_{method}", Handler.answer)
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def answer(self, method, path, authorization, body):
        if authorization != f"Bearer {self.token}":
            return 401, {"error": "Invalid credentials"}
        if path == "/api/whoami-v2":
            return 200, {"name": "ada", "type": "user"}
        parts = path.strip("/").split("/")
        if parts[:2] != ["api", "jobs"] or parts[2] != "ada":
            return 404, {"error": "not found"}
        harm = self.harm(method, path)
        if harm is not None:
            return harm, {"error": "harmed"}
        if method == "POST" and len(parts) == 3:
            return 200, self.start(body)
        name = parts[3]
        if method == "POST" and parts[4:] == ["cancel"]:
            self.cancelled.add(name)
            self.processes[name].kill()
        return 200, self.describe(name)

    def start(self, spec):
        name = f"job{len(self.specs)}"
        self.specs.append(spec)
        environment = {**os.environ, **spec["environment"], **spec.get("secrets", {})}
        self.processes[name] = subprocess.Popen(
            spec["command"], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        self.most = max(self.most, sum(p.poll() is None for p in self.processes.values()))
        self.on_send(name, self.processes[name])
        return self.describe(name)

    def describe(self, name):
        code = self.processes[name].poll()
        stage = "CANCELED" if name in self.cancelled else STAGES.get(code, "ERROR")
        status = {"stage": stage, "message": None if code in STAGES else f"exit code {code}"}
        return {"id": name, "status": status, "owner": {"id": "1", "name": "ada", "type": "user"}}

    def close(self):
        self.server.shutdown()
        self.server.server_close()
        for process in self.processes.values():
            if process.poll() is None:
                process.kill()
            process.wait()
