"""The examples run as they stand, and each compares its numbers with float64 itself."""

from __future__ import annotations

import functools
import http.server
import os
import queue
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import skip_without

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / "examples"
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = (
    *("--headless", "--no-sandbox", "--enable-unsafe-webgpu", "--use-webgpu-adapter=swiftshader"),
    *("--enable-features=Vulkan", "--no-first-run", "--disable-gpu-sandbox"),
)
REPORT = """<script type="module">
const result = document.getElementById("result");
new MutationObserver(() => fetch("/result", { method: "POST", body: result.textContent })).observe(result, { childList: true });
</script>"""


def run(name: str) -> str:
    done = subprocess.run([sys.executable, EXAMPLES / name], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_embed() -> None:
    skip_without("wgpu")
    lines = run("embed.py").splitlines()
    assert [line.split()[0] for line in lines[1:]] == ["d_q", "d_k", "d_v", "bias"]


def test_one_kernel() -> None:
    skip_without("wgpu")
    assert "(500, 1, 1) workgroups of 256 threads; largest error" in run("one_kernel.py")


def test_the_list_is_complete() -> None:
    text = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    files = {path.name for path in EXAMPLES.iterdir() if path.is_file()} - {"README.md"}
    assert files and [name for name in sorted(files) if f"({name})" not in text] == []


@pytest.fixture
def served() -> Iterator[tuple[str, queue.Queue[str]]]:
    """The repository's root on a port of its own, and what the page says; the page is given a line that reports it."""
    told: queue.Queue[str] = queue.Queue()

    class Handler(http.server.SimpleHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path != "/examples/browser.html":
                return super().do_GET()
            page = (EXAMPLES / "browser.html").read_bytes() + REPORT.encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.send_header("Content-Length", str(len(page)))
            self.end_headers()
            self.wfile.write(page)
            return None

        def do_POST(self) -> None:
            told.put(self.rfile.read(int(self.headers["Content-Length"])).decode())
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=str(ROOT))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}/examples/browser.html", told
        server.shutdown()
        thread.join()


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium here")
def test_browser(served: tuple[str, queue.Queue[str]], tmp_path: Path) -> None:
    address, told = served
    assert CHROMIUM is not None
    browser = subprocess.Popen(
        [CHROMIUM, *FLAGS, f"--user-data-dir={tmp_path}", "--remote-debugging-port=0", address],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        text = told.get(timeout=120)
    finally:
        os.killpg(browser.pid, signal.SIGKILL)
        browser.wait()
    if "no WebGPU adapter" in text:
        pytest.skip(text)
    lines = text.splitlines()
    assert lines[0].startswith("attention_backward_wg256_d64_causal on ")
    assert [line.split(":")[0] for line in lines[1:]] == ["d_q", "d_k", "d_v"]
    assert all(line.endswith(", right") for line in lines[1:]), text
