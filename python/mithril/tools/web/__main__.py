"""Serve a folder to browsers so that models in it may use threads: ``python -m mithril.tools.web FOLDER``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

_TYPES = {".mjs": "text/javascript", ".wasm": "application/wasm"}


class Handler(SimpleHTTPRequestHandler):
    """Serves files with the headers that let pages share memory between threads."""

    def guess_type(self, path: Any) -> str:
        """Return the type of a file; that of code does not depend on what the system says."""
        return _TYPES.get(Path(path).suffix) or super().guess_type(path)

    def end_headers(self) -> None:
        """Add the headers."""
        self.send_header("Cross-Origin-Opener-Policy", "same-origin")
        self.send_header("Cross-Origin-Embedder-Policy", "require-corp")
        super().end_headers()


def main(words: Sequence[str] | None = None) -> int:
    """Serve the folder that the words of a command line name, until it is interrupted.

    Parameters
    ----------
    words : sequence of str, optional
        The folder, and the port. Default: those of this process.

    Returns
    -------
    int
        0, or 1 after an error, which is printed.
    """
    parser = argparse.ArgumentParser(prog="python -m mithril.tools.web", description=__doc__)
    parser.add_argument("folder", nargs="?", default=".", help="the folder (default: the current one)")
    parser.add_argument("--port", type=int, default=8000, metavar="N", help="port of localhost (default 8000; 0: any)")
    args = parser.parse_args(words)
    if not Path(args.folder).is_dir():
        print(f"{args.folder} is not a directory: pass the folder of an export", file=sys.stderr)
        return 1
    try:
        server = ThreadingHTTPServer(("127.0.0.1", args.port), partial(Handler, directory=args.folder))
    except (OSError, OverflowError) as error:
        print(f"port {args.port} cannot be used: {error}; choose another one with --port", file=sys.stderr)
        return 1
    print(f"http://localhost:{server.server_port} serves {args.folder}; Ctrl+C ends it", flush=True)
    with server:
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print()
    return 0


if __name__ == "__main__":
    sys.exit(main())
