"""Chromium without a window: what pages look like and contain, also those of a folder that has to be served."""

from __future__ import annotations

import functools
import http.server
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path

__all__ = ["CHROMIUM", "document", "photograph", "posted", "screenshot"]

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)
_OPTIONS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--hide-scrollbars")

#: Browsers take pictures of pages that are loaded; the page that is photographed is a part of this one, whose style
#: sheet arrives when it is done.
_FRAME = """<!doctype html><meta name="color-scheme" content="light dark">
<style>html, body, iframe { margin: 0; border: 0; width: 100%; height: 100%; display: block }</style>
<iframe src="@PAGE@"></iframe><script>
const body = () => document.querySelector("iframe").contentDocument?.body;
let acted = false;
const timer = setInterval(() => {
  const page = body();
  if (!page) return;
  if (!acted) acted = (@ACT@);
  if (!(@READY@)) return;
  clearInterval(timer);
  fetch("/report", { method: "POST", body: page.innerText });
}, 50);
document.head.append(Object.assign(document.createElement("link"), { rel: "stylesheet", href: "/hold.css" }));
</script>
"""


def screenshot(page: str, picture: Path, size: str = "1400,900") -> None:
    """Take a picture of a page that is ready at once.

    Parameters
    ----------
    page : str
        Its address, with ``file://`` for a file.
    picture : Path
        PNG to be written.
    size : str, default "1400,900"
        Width and height of the window.
    """
    if CHROMIUM is None:
        print(f"{picture.name} stays: Chromium is not installed")
        return
    with tempfile.TemporaryDirectory() as profile:
        options = [f"--user-data-dir={profile}", f"--window-size={size}", "--virtual-time-budget=4000"]
        subprocess.run(
            [CHROMIUM, *_OPTIONS, *options, f"--screenshot={picture}", page],
            check=True,
            capture_output=True,
            timeout=120,
        )


def document(page: str) -> str:
    """Return the document of a page as HTML, after its programs have run.

    Parameters
    ----------
    page : str
        Its address, with ``file://`` for a file.

    Raises
    ------
    RuntimeError
        If Chromium is not installed.
    """
    if CHROMIUM is None:
        raise RuntimeError("Chromium is not installed")
    with tempfile.TemporaryDirectory() as profile:
        options = [f"--user-data-dir={profile}", "--virtual-time-budget=3000", "--dump-dom"]
        done = subprocess.run(
            [CHROMIUM, *_OPTIONS, *options, page], check=True, capture_output=True, text=True, timeout=60
        )
    return done.stdout


def photograph(folder: Path, page: str, picture: Path, ready: str, *, act: str = "true", size: str = "900,640") -> str:
    """Serve a folder, open a page of it, and take a picture when it is ready.

    Parameters
    ----------
    folder : Path
        What is served; a file ``frame.html`` is written there for the time.
    page : str
        The page, relative to the folder.
    picture : Path
        PNG to be written.
    ready : str
        An expression of JavaScript that is true when the page is done; ``page`` is its body.
    act : str, optional
        What is evaluated until it is true, before that.
    size : str, default "900,640"
        Width and height of the window.

    Returns
    -------
    str
        The text of the page.

    Raises
    ------
    RuntimeError
        If Chromium is not installed, or the page is not ready after a minute.
    """
    frame = folder / "frame.html"
    frame.write_text(_FRAME.replace("@PAGE@", page).replace("@ACT@", act).replace("@READY@", ready), encoding="utf-8")
    done = threading.Event()

    class Handler(http.server.SimpleHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path == "/hold.css":
                done.wait(60)
            super().do_GET()

    try:
        options = [f"--window-size={size}", f"--screenshot={picture}"]
        return posted(folder, "frame.html", Handler, options=options, done=done)
    finally:
        frame.unlink()


def posted(
    folder: Path,
    page: str,
    handler: type[http.server.SimpleHTTPRequestHandler] = http.server.SimpleHTTPRequestHandler,
    *,
    options: Sequence[str] = (),
    done: threading.Event | None = None,
) -> str:
    """Serve a folder, open a page of it, and return what the page posts.

    Parameters
    ----------
    folder : Path
        What is served.
    page : str
        The page, relative to the folder.
    handler : type, optional
        Answers requests other than POST.
    options : sequence of str, optional
        Further options of Chromium; with a screenshot it ends by itself.
    done : threading.Event, optional
        Is set when the page has posted.

    Raises
    ------
    RuntimeError
        If Chromium is not installed, or the page posts nothing within a minute.
    """
    if CHROMIUM is None:
        raise RuntimeError("Chromium is not installed")
    arrived, texts = done or threading.Event(), []

    class Posts(handler):  # type: ignore[misc, valid-type]
        def do_POST(self) -> None:
            texts.append(self.rfile.read(int(self.headers["Content-Length"])).decode())
            self.send_response(204)
            self.end_headers()
            arrived.set()

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Posts, directory=folder))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}/{page}"
    try:
        # Processes of the browser write there for a moment after it has ended.
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
            command = [CHROMIUM, *_OPTIONS, f"--user-data-dir={profile}", *options, address]
            with subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as browser:
                try:
                    if not arrived.wait(60):
                        raise RuntimeError(f"{page} posted nothing within a minute")
                    if any(option.startswith("--screenshot") for option in options):
                        browser.wait(20)
                finally:
                    browser.terminate()
    finally:
        server.shutdown()
        server.server_close()
    return texts[0]
