"""The page that `dendrite trace view` writes, in a real browser.

    page_test.py PROGRAM [unittest arguments]

Needs chromium or Google Chrome. Where there is none it exits with status 77 (skipped), but fails where the
environment says that it runs for continuous integration (CI).
"""
import html.parser
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

PROGRAM = sys.argv[1]
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
         "--disable-background-networking", "--disable-component-update", "--disable-sync",
         "--window-size=1300,800", "--virtual-time-budget=3000", "--dump-dom"]

HEADER = {"trace": 1, "strategy": "tree-of-thoughts", "params": {"depth": "2", "width": "2"}, "seed": 7,
          "prompt": "P 24: 4 5 6 10\n", "model": "dendrite-24", "numerics": "cpu/portable/bf16"}
# Each would leave a text's place in the page if it were not escaped.
HOSTILE = ["</script><script>document.title='taken'</script>", "<!--<script>", "<img src=x onerror=document.title=1>"]


def proposed(node, parent, depth, text):
    return {"event": "proposed", "node": node, "parent": parent, "depth": depth, "text": text,
            "tokens": [node, 7], "logprob": -0.25 * node}


def judged(node, value):
    return {"event": "judged", "node": node, "value": value}


SMALL = [
    proposed(1, 0, 1, "10-4=6 | 5 6 6"), proposed(2, 0, 1, HOSTILE[0]), proposed(3, 0, 1, HOSTILE[1]),
    judged(1, 0.5), judged(2, 0.25), judged(3, None),
    {"event": "kept", "node": 1}, {"event": "kept", "node": 2}, {"event": "pruned", "node": 3},
    proposed(4, 1, 2, "6*5=30 | 6 30"), proposed(5, 1, 2, "日本語 \u2028 \"é\" 🎉"), proposed(6, 2, 2, HOSTILE[2]),
    judged(4, 1), judged(5, 0), judged(6, 0.001),
    {"event": "visited", "node": 1, "value": 0.75, "visits": 12},
    {"event": "kept", "node": 4}, {"event": "pruned", "node": 5}, {"event": "pruned", "node": 6},
    {"event": "solved", "node": 4},
]
RESULT = {"result": {"solved": True, "finish": "stop", "path": [1, 4], "nodes": 6}}


class Dom(html.parser.HTMLParser):
    """What the tests look at of a dumped page: nodes, texts of elements by id, scripts."""
    VOID = {"meta", "input", "img", "br", "link"}

    def __init__(self, text):
        super().__init__()
        self.stack, self.nodes, self.ids, self.scripts, self.images = [], {}, {}, 0, 0
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.scripts += tag == "script"
        self.images += tag == "img"
        node = attributes.get("data-node") if tag == "button" else None
        if node is not None:
            self.nodes[int(node)] = {"classes": set(attributes["class"].split()), "text": "", "value": ""}
        if attributes.get("id"):
            self.ids[attributes["id"]] = ""
        if tag not in self.VOID:
            self.stack.append((tag, attributes.get("id"), node, attributes.get("class", "")))

    def handle_endtag(self, tag):
        while self.stack and self.stack.pop()[0] != tag:
            pass

    def handle_data(self, data):
        node = next((entry[2] for entry in reversed(self.stack) if entry[2] is not None), None)
        if node is not None and self.stack[-1][3] in ("text", "fact value"):
            self.nodes[int(node)]["text" if self.stack[-1][3] == "text" else "value"] += data
        for _, id, _, _ in self.stack:
            if id:
                self.ids[id] += data

    def with_class(self, name):
        return sorted(node for node, it in self.nodes.items() if name in it["classes"])


class PageTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="dendrite-page-")
        self.addCleanup(shutil.rmtree, self.folder)

    def page(self, lines):
        """The path of the page for a trace of these objects."""
        trace = os.path.join(self.folder, "search.jsonl")
        with open(trace, "w", encoding="utf-8") as file:
            file.writelines(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
        done = subprocess.run([PROGRAM, "trace", "view", trace], capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 0, done.stderr)
        page = os.path.join(self.folder, "search.html")
        self.assertIn(page, done.stdout)
        return page

    def dom(self, page, node="", script=""):
        """The page in the browser, at a deep link, after a script of the test's own ran in it."""
        with open(page, encoding="utf-8") as file:
            text = file.read()
        self.assertEqual(text.count("</body>"), 1)
        with open(page, "w", encoding="utf-8") as file:
            file.write(text.replace("</body>", f"<script>{script}</script></body>"))
        profile = tempfile.mkdtemp(dir=self.folder)
        done = subprocess.run([BROWSER, *FLAGS, f"--user-data-dir={profile}", f"file://{page}#{node}"],
                              capture_output=True, timeout=120)
        self.assertEqual(done.returncode, 0, done.stderr)
        with open(page, "w", encoding="utf-8") as file:
            file.write(text)
        return Dom(done.stdout.decode())

    def small(self, node="", script=""):
        return self.dom(self.page([HEADER, *SMALL, RESULT]), node, script)

    def test_shows_every_thought_and_the_path(self):
        dom = self.small()
        self.assertEqual(sorted(dom.nodes), list(range(7)))
        self.assertEqual(dom.with_class("path"), [1, 4])
        self.assertEqual(dom.with_class("solved"), [4])
        self.assertEqual(dom.with_class("pruned"), [3, 5, 6])
        self.assertEqual(dom.with_class("picked"), [0])
        self.assertEqual(dom.nodes[4]["text"], "★ 6*5=30 | 6 30")
        self.assertEqual(dom.nodes[1]["value"], "0.750")  # the later one
        self.assertEqual(dom.nodes[3]["value"], "none")
        self.assertEqual((dom.ids["title"], dom.ids["verdict"]), ("tree-of-thoughts", "solved"))
        self.assertIn("seed 7", dom.ids["summary"])
        self.assertIn("20 of 20 · 6 thoughts", dom.ids["clock"])

    def test_a_link_picks_a_thought(self):
        dom = self.small("4")
        self.assertEqual(dom.with_class("picked"), [4])
        self.assertIn("Thought 4", dom.ids["details"])
        self.assertIn("P 24: 4 5 6 10\n10-4=6 | 5 6 6\n6*5=30 | 6 30\n", dom.ids["details"])
        self.assertIn("log-prob-1.0000", dom.ids["details"])
        self.assertIn("could not be computed", self.small("3").ids["details"])
        self.assertEqual(self.small("99").with_class("picked"), [0])

    def test_a_join_goes_on_from_all_of_them(self):
        events = [proposed(1, 0, 1, "both ways:"), proposed(2, 1, 2, "one"), proposed(3, 1, 2, "two"),
                  {**proposed(4, 2, 3, "so three"), "joined": [2, 3]}]
        dom = self.dom(self.page([HEADER, *events, {"result": {**RESULT["result"], "path": [1, 2, 4]}}]), "4",
                       "setTimeout(() => $('title').textContent = document.querySelectorAll('.link').length, 500)")
        self.assertIn("both ways:\none\ntwo\nso three\n", dom.ids["details"])
        self.assertRegex(dom.ids["details"], "Goes on from.*one.*two")
        self.assertEqual(dom.ids["title"], "5")

    def test_texts_stay_texts(self):
        dom = self.small("6")
        self.assertEqual([dom.nodes[node]["text"] for node in (2, 3, 6)], HOSTILE)
        self.assertEqual(dom.nodes[5]["text"], "日本語 \u2028 \"é\" 🎉")
        self.assertIn(HOSTILE[0] + "\n" + HOSTILE[2], dom.ids["details"])
        self.assertEqual((dom.scripts, dom.images), (3, 0))  # the trace, the page's own, the test's

    def test_needs_nothing_from_elsewhere(self):
        with open(self.page([HEADER, RESULT]), encoding="utf-8") as file:
            page = file.read()
        for word in ("http:", "https:", "src=", "href=", "@import", "url("):
            self.assertNotIn(word, page)

    def test_a_search_that_did_not_end(self):
        dom = self.dom(self.page([HEADER, *SMALL[:5]]), "2")
        self.assertEqual((len(dom.nodes), dom.ids["verdict"]), (4, "did not end"))
        self.assertEqual(dom.with_class("path"), [])
        cut = {"result": {"solved": False, "finish": "budget", "path": [], "nodes": 0}}
        dom = self.dom(self.page([HEADER, cut]))
        self.assertEqual((sorted(dom.nodes), dom.ids["verdict"]), ([0], "not solved (budget)"))

    def test_big_trees_show_what_was_kept_first(self):
        events = []
        for node in range(1, 301):
            events += [proposed(node, 0, 1, f"step {node}"), judged(node, node / 300)]
        events += [{"event": "kept" if node % 100 == 0 else "pruned", "node": node} for node in range(1, 301)]
        page = self.page([HEADER, *events, {"result": {**RESULT["result"], "path": [300]}}])
        self.assertEqual(sorted(self.dom(page).nodes), [0, 100, 200, 300])
        dom = self.dom(page, "150")  # a pruned one: all are shown, and it is in view
        self.assertEqual(dom.with_class("picked"), [150])
        self.assertIn(151, dom.nodes)
        self.assertLess(len(dom.nodes), 100)  # what is out of view is not drawn

    def test_deep_trees(self):
        events = [proposed(node, node - 1, node, "x") for node in range(1, 3001)]
        dom = self.dom(self.page([{**HEADER, "strategy": "beam"}, *events]), "3000")
        self.assertEqual(dom.with_class("picked"), [3000])
        self.assertIn("x" * 3000, dom.ids["details"])

    def test_time_goes_back_and_plays(self):
        dom = self.small(script="$('time').value = 3; $('time').dispatchEvent(new Event('input'))")
        self.assertEqual(sorted(dom.nodes), [0, 1, 2, 3])
        self.assertEqual((dom.with_class("path"), dom.with_class("kept")), ([], []))
        dom = self.small(script="""
            $('play').click();
            setTimeout(() => { $('summary').textContent = $('clock').textContent; }, 200);""")
        self.assertRegex(dom.ids["summary"], r"event [1-9] of 20")  # under way
        self.assertIn("20 of 20", dom.ids["clock"])  # it came to the end and stopped
        self.assertEqual(dom.ids["play"], "Play")
        self.assertEqual(len(dom.nodes), 7)

    def test_mouse_and_keys(self):
        click = "document.querySelector('[data-node=\"%d\"]').dispatchEvent(new MouseEvent('%s', {bubbles: true}));"
        key = "document.body.dispatchEvent(new KeyboardEvent('keydown', {key: '%s', bubbles: true}));"
        self.assertEqual(self.small(script=click % (2, "click")).with_class("picked"), [2])
        folded = self.small(script=click % (1, "dblclick"))
        self.assertEqual(sorted(folded.nodes), [0, 1, 2, 3, 6])
        arrows = "".join(key % f"Arrow{way}" for way in ("Right", "Right", "Down", "Down", "Left"))
        self.assertEqual(self.small(script=arrows).with_class("picked"), [2])
        self.assertEqual(sorted(self.small("1", key % "Enter").nodes), [0, 1, 2, 3, 6])
        self.assertEqual(sorted(self.small(script=key % "h").nodes), [0, 1, 2, 4])
        find = "$('find').value = '日本'; $('find').dispatchEvent(new Event('input'));"
        self.assertEqual(self.small(script=find).with_class("found"), [5])
        enter = "$('find').dispatchEvent(new KeyboardEvent('keydown', {key: 'Enter', bubbles: true}));"
        self.assertEqual(self.small(script=find + enter).with_class("picked"), [5])

    def test_a_real_search(self):
        trace = os.path.join(self.folder, "solve.jsonl")
        done = subprocess.run([PROGRAM, "solve", "3", "5", "9", "13", "--trace", trace, "--json"],
                              capture_output=True, text=True, timeout=120)
        self.assertEqual(done.returncode, 0, done.stderr)
        subprocess.run([PROGRAM, "trace", "view", trace], check=True, capture_output=True, timeout=60)
        dom = self.dom(os.path.join(self.folder, "solve.html"))
        steps = [step["text"] for step in json.loads(done.stdout)["steps"]]
        self.assertEqual([dom.nodes[node]["text"].removeprefix("★ ") for node in dom.with_class("path")], steps)


if __name__ == "__main__":
    if BROWSER is None:
        print("page_test: no chromium, chromium-browser or google-chrome was found; the page of a trace was "
              "not tested")
        sys.exit(1 if os.environ.get("CI") else 77)
    unittest.main(argv=sys.argv[:1] + sys.argv[2:], verbosity=1)
