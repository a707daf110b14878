"""A browser without a screen, spoken to by pipes in its DevTools protocol."""
import collections
import fcntl
import json
import os
import select
import shutil
import subprocess
import time

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
         "--disable-background-networking", "--disable-component-update", "--disable-sync",
         "--window-size=1300,800", "--remote-debugging-pipe"]
PATIENCE_S = 60
# Keys by name: code of the key, and the text that it types.
KEYS = {"Enter": (13, "\r"), "Tab": (9, "")}


class PageLeft(RuntimeError):
    """A call went under with the page that it was for: another took its place meanwhile."""


class Browser:
    def __init__(self, folder):
        # Descriptors 3 and 4 of the browser are the pipes; ours are beyond 9, so that none is in the way.
        theirs_in, ours_out = (fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in os.pipe())
        ours_in, theirs_out = (fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in os.pipe())
        self.process = subprocess.Popen(
            ["bash", "-c", f'exec "$0" "$@" 3<&{theirs_in} 4>&{theirs_out}', BROWSER, *FLAGS,
             f"--user-data-dir={folder}/profile", "about:blank"],
            pass_fds=(theirs_in, theirs_out), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(theirs_in)
        os.close(theirs_out)
        self.input, self.output = ours_in, ours_out
        self.waiting, self.count = b"", 0
        self.requests = collections.defaultdict(list)  # of each page

    def call(self, method, session=None, **parameters):
        self.count += 1
        message = {"id": self.count, "method": method, "params": parameters}
        if session is not None:
            message["sessionId"] = session
        os.write(self.output, json.dumps(message).encode() + b"\0")
        end = time.monotonic() + PATIENCE_S
        while True:
            got = self.message(end)
            if got.get("method") == "Network.requestWillBeSent":
                self.requests[got["sessionId"]].append(got["params"]["request"])
            if got.get("id") == self.count:
                if "error" in got:
                    left = got["error"].get("message") == "Inspected target navigated or closed"
                    raise (PageLeft if left else RuntimeError)(f"{method}: {got['error']}")
                return got["result"]

    def message(self, end):
        while b"\0" not in self.waiting:
            ready, _, _ = select.select([self.input], [], [], max(0, end - time.monotonic()))
            more = os.read(self.input, 1 << 16) if ready else b""
            if not more:
                raise RuntimeError("the browser says nothing")
            self.waiting += more
        message, _, self.waiting = self.waiting.partition(b"\0")
        return json.loads(message)

    def open(self, url):
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        page = Page(self, target, self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"])
        page.call("Network.enable")
        page.call("Page.navigate", url=url)
        return page

    def end(self):
        self.process.terminate()
        self.process.wait(timeout=PATIENCE_S)
        os.close(self.input)
        os.close(self.output)


class Page:
    def __init__(self, browser, target, session):
        self.browser, self.target, self.session = browser, target, session

    @property
    def requests(self):
        """All that it asked for so far."""
        return self.browser.requests[self.session]

    def call(self, method, **parameters):
        return self.browser.call(method, self.session, **parameters)

    def js(self, expression):
        """The value of an expression in the page; an error is one here."""
        got = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True,
                        allowUnsafeEvalBlockedByCSP=False)
        if "exceptionDetails" in got:
            raise RuntimeError(f"{expression}: {got['exceptionDetails']['exception'].get('description')}")
        return got["result"].get("value")

    def type(self, text):
        self.call("Input.insertText", text=text)

    def press(self, key, shift=False):
        code, text = KEYS[key]
        same = {"key": key, "code": key, "windowsVirtualKeyCode": code, "modifiers": 8 if shift else 0}
        self.call("Input.dispatchKeyEvent", type="keyDown", text=text, **same)
        self.call("Input.dispatchKeyEvent", type="keyUp", **same)

    def close(self):
        self.browser.call("Target.closeTarget", targetId=self.target)
