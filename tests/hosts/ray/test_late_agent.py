"""Ray's agent for runtime environments is started by the first request."""

from __future__ import annotations

import subprocess
import sys
import urllib.request
from pathlib import Path

import psutil

from tests.services import until
from tuner.hosts.ray import late_agent

AGENT = """
import http.server, os, socket, sys

options = dict(a[2:].split("=", 1) for a in sys.argv[1:])
listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
listener.bind((options["node-ip-address"], int(options["runtime-env-agent-port"])))

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(f"{os.getpid()} {'beside' in sys.modules} {__name__} {sys.argv[0]}".encode())

import beside
server = http.server.HTTPServer(("127.0.0.1", 0), Handler, bind_and_activate=False)
server.socket = listener
server.server_activate()
server.serve_forever()
"""
"""Takes the place of Ray's agent: binds the port, as that does, and imports a module of its own folder."""


def test_the_agent_starts_with_the_first_request_and_answers_it(tmp_path: Path) -> None:
    script = tmp_path / "agent.py"
    script.write_text(AGENT)
    (tmp_path / "beside.py").touch()
    options = ["--node-ip-address=127.0.0.1", "--runtime-env-agent-port=0", "--node-id=n", f"--session-dir={tmp_path}"]
    agent = subprocess.Popen(
        [sys.executable, "-S", "-E", late_agent.__file__, sys.executable, "-u", str(script), *options]
    )
    try:
        port = tmp_path / f"{late_agent.PORT}_n"
        until("port", port.exists)
        assert late_agent.__file__ in psutil.Process(agent.pid).cmdline()[3], "it waits"
        with urllib.request.urlopen(f"http://127.0.0.1:{port.read_text()}/", timeout=30) as answer:
            assert answer.read().decode() == f"{agent.pid} True __main__ {script}", "it has the same process id"
    finally:
        agent.kill()
        agent.wait()


def test_it_ends_with_the_raylet(tmp_path: Path) -> None:
    options = ["--node-ip-address=127.0.0.1", "--runtime-env-agent-port=0", "--node-id=n", f"--session-dir={tmp_path}"]
    code = f"""
import subprocess, sys
agent = subprocess.Popen([sys.executable, "-S", "-E", {late_agent.__file__!r}, sys.executable, "agent.py", *{options!r}])
print(agent.pid, flush=True)
sys.stdin.read()
"""
    raylet = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert raylet.stdout is not None
    agent = psutil.Process(int(raylet.stdout.readline()))
    until("port", (tmp_path / f"{late_agent.PORT}_n").exists)
    raylet.kill()
    raylet.communicate()
    until("end", lambda: not agent.is_running())
