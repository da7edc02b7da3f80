"""A model hub on this machine: what huggingface_hub asks of one, and what can go wrong with it."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class Hub:
    """Files by ``OWNER/NAME/FILE``, and faults to show."""

    url: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    requests: list[tuple[str, str, str | None]] = field(default_factory=list)
    """Method, path and range of each."""
    cuts: list[int] = field(default_factory=list)
    """Bytes after which the connection breaks, for the next downloads."""
    status: int | None = None
    """In answer to everything."""
    status_after_cut: int | None = None
    etag: str | None = None
    """Instead of the checksum."""
    commit: str = COMMIT
    spoiled: bool = False
    """Whether downloads differ from what their checksum says."""
    error_message: str = "no reason"

    @property
    def ranges(self) -> list[str | None]:
        """The range that each download asked for."""
        return [asked for method, path, asked in self.requests if path.startswith("/cdn/")]


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        hub = self.hub
        hub.requests.append((self.command, self.path, self.headers.get("Range")))
        found = re.fullmatch(r"/([^/]+/[^/]+)/resolve/[^/]+/(.+)", self.path)
        if hub.status is not None:
            self._fail(hub.status)
        elif self.path.startswith("/cdn/"):
            self._send_file(hub.files[self.path.removeprefix("/cdn/")])
        elif listed := re.fullmatch(r"/api/models/([^/]+/[^/]+)/(revision|tree)/.*", self.path):
            self._list(listed[1], listed[2])
        elif found is None or f"{found[1]}/{found[2]}" not in hub.files:
            known = found and any(name.startswith(f"{found[1]}/") for name in hub.files)
            self._fail(404, "EntryNotFound" if known else "RepoNotFound")
        else:
            self._redirect(f"{found[1]}/{found[2]}")

    def _list(self, repo: str, what: str) -> None:
        names = [name for name in self.hub.files if name.startswith(f"{repo}/")]
        if not names:
            self._fail(404, "RepoNotFound")
            return
        tree = [
            {
                "type": "file",
                "path": name.removeprefix(f"{repo}/"),
                "size": len(self.hub.files[name]),
                "oid": hashlib.sha1(self.hub.files[name]).hexdigest(),
            }
            for name in names
        ]
        answer = tree if what == "tree" else {"id": repo, "sha": self.hub.commit}
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _redirect(self, name: str) -> None:
        content = self.hub.files[name]
        self.send_response(302)
        # Another host, as a real hub's storage is: facts are asked of the hub alone.
        self.send_header("Location", f"{self.hub.url.replace('127.0.0.1', 'localhost')}/cdn/{name}")
        self.send_header("X-Repo-Commit", self.hub.commit)
        etag = self.hub.etag or hashlib.sha256(content).hexdigest()
        self.send_header("X-Linked-Etag", f'"{etag}"')
        self.send_header("X-Linked-Size", str(len(content)))
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _send_file(self, content: bytes) -> None:
        asked = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range") or "")
        start = int(asked[1]) if asked else 0
        self.send_response(206 if asked else 200)
        if asked:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        body = content[start:]
        if self.hub.spoiled:
            body = body[:-1] + bytes([body[-1] ^ 1])
        if self.command == "GET" and self.hub.cuts:
            body = body[: self.hub.cuts.pop(0)]
            self.close_connection = True
            if not self.hub.cuts:
                self.hub.status = self.hub.status_after_cut
        if self.command == "GET":
            self.wfile.write(body)

    def _fail(self, status: int, code: str | None = None) -> None:
        self.send_response(status)
        if code is not None:
            self.send_header("X-Error-Code", code)
        self.send_header("X-Error-Message", self.hub.error_message)
        self.send_header("Content-Length", "0")
        self.end_headers()


class _Server(ThreadingHTTPServer):
    def handle_error(self, *_: Any) -> None:
        """Pass over a client that closes the connection."""


@contextmanager
def serving() -> Iterator[Hub]:
    """A hub, until the block ends."""
    hub = Hub()
    handler = type("Handler", (_Handler,), {"hub": hub})
    server = _Server(("127.0.0.1", 0), handler)
    hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def environment(hub: Hub, home: Any) -> dict[str, str]:
    """For a process that is to use `hub`, and folders below `home` only."""
    return {
        "HOME": str(home),
        "HF_HOME": str(home / "hf"),
        "HF_ENDPOINT": hub.url,
        "SPECX_CACHE": str(home / "cache"),
        "SPECX_CONFIG": str(home / "config"),
        "HF_HUB_DISABLE_TELEMETRY": "1",
    }


def use(hub: Hub, home: Any, patch: pytest.MonkeyPatch) -> None:
    """Make this process use `hub`; huggingface_hub has read its environment already."""
    from huggingface_hub import constants

    for name, value in environment(hub, home).items():
        patch.setenv(name, value)
    patch.setattr(constants, "ENDPOINT", hub.url)
    template = hub.url + "/{repo_id}/resolve/{revision}/{filename}"
    patch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    patch.setattr(constants, "HF_HUB_CACHE", str(home / "hf" / "hub"))
    patch.setattr(constants, "HF_HUB_OFFLINE", False)
    patch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 1000)  # else a cut loses up to 10 MB
