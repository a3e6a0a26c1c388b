"""A server that speaks as much of the Hugging Face Hub's protocol as its client needs to create, fill and read repositories."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TOKEN = "hf_writes"


class Hub(ThreadingHTTPServer):
    """Repositories by name, each a table of files.

    Attributes:
        repos: contents of the files of each repository.
        uploads: files that came by the protocol of Git LFS, by SHA-256.
        commits: messages of all commits.
        cut: a path whose download ends in its middle, or "".
        fetched: paths that were downloaded.
        revisions: commits, or names of branches, of which they were asked for.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.repos: dict[str, dict[str, bytes]] = {}
        self.uploads: dict[str, bytes] = {}
        self.commits: list[str] = []
        self.cut = ""
        self.fetched: list[str] = []
        self.revisions: set[str] = set()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def sha(self, repo: str) -> str:
        """The identity of a repository's newest commit."""
        return hashlib.sha1(repr((repo, sorted(self.repos[repo].items()))).encode()).hexdigest()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of clients that went away."""


@contextlib.contextmanager
def running_hub() -> Iterator[Hub]:
    with Hub() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def is_large(content: bytes) -> bool:
    """Return whether the Hub stores a file by Git LFS; it stores only text without."""
    return b"\0" in content


class _Handler(BaseHTTPRequestHandler):
    server: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self.read()

    def do_GET(self) -> None:
        self.read()

    def read(self) -> None:
        path = self.path.partition("?")[0]
        if match := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/(revision|tree)/[^/]+)?", path):
            repo = match[1]
            if repo not in self.server.repos:
                self.refuse(401, "RepoNotFound")
                return
            files = self.server.repos[repo]
            if match[2] == "tree":
                self.answer([{"type": "file", "path": name, "size": len(x), "oid": "0" * 40} for name, x in files.items()])
            else:
                siblings = [{"rfilename": name} for name in files]
                self.answer({"id": repo, "sha": self.server.sha(repo), "siblings": siblings, "tags": [], "private": False})
        elif match := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            self.server.revisions.add(match[2])
            self.send_file(match[1], match[3])
        else:
            self.refuse(404, "")

    def send_file(self, repo: str, name: str) -> None:
        if repo not in self.server.repos:
            self.refuse(401, "RepoNotFound")
            return
        content = self.server.repos[repo].get(name)
        if content is None:
            self.refuse(404, "EntryNotFound", {"X-Repo-Commit": self.server.sha(repo)})
            return
        self.send_response(200)
        self.send_header("ETag", f'"{hashlib.sha1(content).hexdigest()}"')
        self.send_header("X-Repo-Commit", self.server.sha(repo))
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command == "GET":
            self.server.fetched.append(name)
            self.wfile.write(content[: len(content) // 2] if name == self.server.cut else content)
            self.close_connection = name == self.server.cut

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.path == "/api/validate-yaml":
            self.answer({"errors": [], "warnings": []})
            return
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            self.refuse(401, "", {"X-Error-Message": "Invalid username or password."})
            return
        if self.path == "/api/repos/create":
            asked = json.loads(body)
            repo = f"{asked.get('organization') or 'me'}/{asked['name']}"
            status = 409 if repo in self.server.repos else 200
            self.server.repos.setdefault(repo, {".gitattributes": b"*.bin filter=lfs\n"})
            self.answer({"url": f"{self.server.address}/{repo}", "id": repo}, status)
        elif re.fullmatch(r"/api/models/[^/]+/[^/]+/preupload/main", self.path):
            files = json.loads(body)["files"]
            modes = {x["path"]: "lfs" if is_large(base64.b64decode(x["sample"])) else "regular" for x in files}
            self.answer({"files": [{"path": x, "uploadMode": mode, "shouldIgnore": False} for x, mode in modes.items()]})
        elif re.fullmatch(r"/[^/]+/[^/]+\.git/info/lfs/objects/batch", self.path):
            objects = [
                {**x, "actions": {"upload": {"href": f"{self.server.address}/upload/{x['oid']}"}}}
                for x in json.loads(body)["objects"]
            ]
            self.answer({"transfer": "basic", "objects": objects})
        elif match := re.fullmatch(r"/api/models/([^/]+/[^/]+)/commit/main", self.path):
            self.commit(match[1], [json.loads(line) for line in body.splitlines()])
        else:
            self.refuse(404, "")

    def do_PUT(self) -> None:
        content = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.uploads[hashlib.sha256(content).hexdigest()] = content
        self.answer({})

    def commit(self, repo: str, lines: list[dict[str, Any]]) -> None:
        files = dict(self.server.repos[repo])
        for line in lines:
            value = line["value"]
            if line["key"] == "header":
                self.server.commits.append(value["summary"])
            elif line["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
                assert not is_large(files[value["path"]])
            elif line["key"] == "lfsFile":
                files[value["path"]] = self.server.uploads[value["oid"]]
            elif line["key"] == "deletedFile":
                del files[value["path"]]
            else:
                raise AssertionError(line)
        self.server.repos[repo] = files
        sha = self.server.sha(repo)
        self.answer({"commitUrl": f"{self.server.address}/{repo}/commit/{sha}", "commitOid": sha, "hookOutput": ""})

    def answer(self, table: Any, status: int = 200) -> None:
        body = json.dumps(table).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def refuse(self, status: int, code: str, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, text in {"X-Error-Code": code, **(headers or {}), "Content-Length": "0"}.items():
            if text:
                self.send_header(name, text)
        self.end_headers()
