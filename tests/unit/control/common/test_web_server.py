"""Servers on the control node."""

import http.server
import threading

from control.common.web_server import WebServer


def test_proxy_is_not_asked_whether_a_server_runs(monkeypatch):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler)
    monkeypatch.setattr(http.server.SimpleHTTPRequestHandler, "do_GET", lambda self: (self.send_response(200), self.end_headers()))
    monkeypatch.setattr(http.server.SimpleHTTPRequestHandler, "log_message", lambda *_: None)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    for name in ("http_proxy", "HTTP_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    try:
        assert WebServer("It", "it", 1, "port", "/")._answers("127.0.0.1", server.server_address[1])
    finally:
        server.shutdown()
        server.server_close()
