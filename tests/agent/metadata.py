"""A cloud's metadata service, as far as it tells a machine that it is taken back."""

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

_SESSION = "imds-session"


@dataclass
class Metadata:
    """`answers` by path; what is not there is 404, as on EC2."""

    url: str
    answers: dict[str, str] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)


@contextlib.contextmanager
def metadata_service() -> Iterator[Metadata]:
    """Answers to what names its session (EC2's version 2) or its flavor (Compute Engine), and 401 to anything else."""

    class Handler(BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            wanted = self.path == "/latest/api/token" and self.headers["X-aws-ec2-metadata-token-ttl-seconds"]
            self._answer(_SESSION if wanted else None)

        def do_GET(self) -> None:
            metadata.asked.append(self.path)
            if self.headers["X-aws-ec2-metadata-token"] != _SESSION and self.headers["Metadata-Flavor"] != "Google":
                self.send_error(401)
                return
            self._answer(metadata.answers.get(self.path.partition("?")[0]))

        def _answer(self, text: str | None) -> None:
            if text is None:
                self.send_error(404)
                return
            self.send_response(200)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    metadata = Metadata(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield metadata
    server.shutdown()
    thread.join()
    server.server_close()
