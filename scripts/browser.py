"""Debian's chromium, spoken to over two pipes (the DevTools protocol): pages opened at a width and
in a colour scheme, what they fetched, what their console said, what stands in them.

Nothing is reached but this machine: every name but its own address is unknown to the browser.
"""

import base64
import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time

FLAGS = [
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-extensions",
    "--disable-sync",
    "--no-first-run",
    "--no-default-browser-check",
    "--hide-scrollbars",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
    "--remote-debugging-pipe",
]


class Browser:
    """Ends with its `with` block."""

    def __init__(self, folder, seconds=60):
        program = shutil.which("chromium") or sys.exit("chromium is not installed")
        self.seconds = seconds
        self.number, self.bytes, self.pages = 0, b"", {}
        theirs_in, self.out = os.pipe()
        self.into, theirs_out = os.pipe()
        # The browser reads commands from descriptor 3 and writes to 4.
        shell = f'exec "$0" "$@" 3<&{theirs_in} 4>&{theirs_out}'
        command = ["sh", "-c", shell, program, *FLAGS, f"--user-data-dir={folder}", "about:blank"]
        self.log = os.path.join(folder, "browser.log")
        with open(self.log, "w", encoding="utf-8") as log:
            self.child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(theirs_in, theirs_out),
                start_new_session=True,
            )
        os.close(theirs_in)
        os.close(theirs_out)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        # Its own processes are of its group; what has ended already is no failure.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.child.pid, signal.SIGTERM)
        try:
            self.child.wait(timeout=10)
        except subprocess.TimeoutExpired:
            os.killpg(self.child.pid, signal.SIGKILL)
            self.child.wait()
        # Its helpers may write to their folder a little longer than it lives.
        end = time.monotonic() + 10
        while time.monotonic() < end:
            try:
                os.killpg(self.child.pid, signal.SIGKILL)
            except ProcessLookupError:
                break
            time.sleep(0.05)
        os.close(self.out)
        os.close(self.into)

    def take(self, within):
        """The next message, or `None` if none comes in so many seconds."""
        end = time.monotonic() + within
        while b"\0" not in self.bytes:
            left = end - time.monotonic()
            if left <= 0 or not select.select([self.into], [], [], left)[0]:
                return None
            got = os.read(self.into, 1 << 20)
            if not got:
                with open(self.log, encoding="utf-8") as log:
                    sys.exit(f"the browser has ended\n{log.read()}")
            self.bytes += got
        message, self.bytes = self.bytes.split(b"\0", 1)
        return json.loads(message)

    def heed(self, message):
        """Gives an event to the page that it is of."""
        page = self.pages.get(message.get("sessionId"))
        if page and "method" in message:
            page.events.append((message["method"], message["params"]))

    def ask(self, method, session=None, **params):
        """A command's result."""
        self.number += 1
        number, message = self.number, {"id": self.number, "method": method, "params": params}
        message |= {"sessionId": session} if session else {}
        os.write(self.out, json.dumps(message).encode() + b"\0")
        end = time.monotonic() + self.seconds
        while time.monotonic() < end:
            answer = self.take(end - time.monotonic())
            if answer and answer.get("id") == number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
            if answer:
                self.heed(answer)
        raise RuntimeError(f"{method}: no answer within {self.seconds} s")

    def open(self, url, width, height, dark):
        return Page(self, url, width, height, dark)


class Page:
    """A tab, loaded."""

    def __init__(self, browser, url, width, height, dark):
        self.browser, self.url, self.width = browser, url, width
        self.events = []
        self.target = browser.ask("Target.createTarget", url="about:blank")["targetId"]
        attached = browser.ask("Target.attachToTarget", targetId=self.target, flatten=True)
        self.session = attached["sessionId"]
        browser.pages[self.session] = self
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 640}
        self.ask("Emulation.setDeviceMetricsOverride", **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.ask("Emulation.setEmulatedMedia", features=[scheme])
        self.ask("Page.navigate", url=url)
        self.until("it is loaded", lambda: self.said("Page.loadEventFired"))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.browser.ask("Target.closeTarget", targetId=self.target)
        del self.browser.pages[self.session]

    def ask(self, method, **params):
        return self.browser.ask(method, self.session, **params)

    def said(self, method):
        return [params for name, params in self.events if name == method]

    def until(self, what, holds):
        end = time.monotonic() + self.browser.seconds
        while not holds():
            if time.monotonic() > end:
                raise RuntimeError(f"{self.url}: {what}: not within {self.browser.seconds} s")
            if message := self.browser.take(0.05):
                self.browser.heed(message)

    def value(self, expression):
        """What JavaScript makes of it, as JSON; a promise is waited for."""
        how = {"returnByValue": True, "awaitPromise": True}
        said = self.ask("Runtime.evaluate", expression=expression, **how)
        if "exceptionDetails" in said:
            raise RuntimeError(f"{expression}: {said['exceptionDetails']}")
        return said["result"].get("value")

    def body(self, end):
        """The last answer that came whole from an address that ends so."""
        answers = self.said("Network.responseReceived")
        ended = {params["requestId"] for params in self.said("Network.loadingFinished")}
        of = [a["requestId"] for a in answers if a["response"]["url"].endswith(end)]
        last = [one for one in of if one in ended][-1]
        return json.loads(self.ask("Network.getResponseBody", requestId=last)["body"])

    def fetched(self):
        return [params["request"]["url"] for params in self.said("Network.requestWillBeSent")]

    def errors(self):
        """What the console got as an error, and what nobody caught."""
        calls = self.said("Runtime.consoleAPICalled")
        entries = [params["entry"] for params in self.said("Log.entryAdded")]
        told = [json.dumps(c["args"]) for c in calls if c["type"] in ("error", "assert")]
        told += [f"{e['text']} {e.get('url', '')}" for e in entries if e["level"] == "error"]
        thrown = self.said("Runtime.exceptionThrown")
        return told + [json.dumps(params["exceptionDetails"]) for params in thrown]

    def shot(self, path, height_max=4000):
        """A picture from the top down, no longer than that."""
        whole = self.ask("Page.getLayoutMetrics")["cssContentSize"]["height"]
        clip = {"x": 0, "y": 0, "width": self.width, "height": min(whole, height_max), "scale": 1}
        how = {"format": "png", "captureBeyondViewport": True}
        image = self.ask("Page.captureScreenshot", clip=clip, **how)
        with open(path, "wb") as file:
            file.write(base64.b64decode(image["data"]))
