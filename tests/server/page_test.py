"""The server's page at /, in a real browser, against a real server of a shipped model.

    page_test.py PROGRAM [unittest arguments]

Needs chromium or Google Chrome. Where there is none it exits with status 77 (skipped), but fails where the
environment says that it runs for continuous integration (CI).
"""
import itertools
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.request

from browser import BROWSER, Browser, PageLeft

PROGRAM = sys.argv[1]
MODELS = pathlib.Path(__file__).resolve().parents[2] / "models"
PATIENCE_S = 60
TOOLS = [tool for tool in json.loads((MODELS / "dendrite-tools/tools.json").read_text())
         if tool["name"] in ("get_time", "get_weather")]

# Each would do something if it were markup.
HOSTILE = ["<script>document.title='taken'</script>", "<img src=x onerror=\"document.title='taken'\">",
           "<a href=\"javascript:document.title='taken'\">x</a><style>*{display:none}</style>"]
SAID = ".assistant > .inner > .text"
TIME = "What time is it in Lima?"

# What the page asks for is asked for with these fields besides.
WITH = """{ const real = window.fetch; window.fetch = (url, options = {}) => real(url, options.body === undefined ? options
    : { ...options, body: JSON.stringify({ ...JSON.parse(options.body), ...%s }) }); }"""
# Events come to the page one by one, however many had come to the browser meanwhile, and are kept.
ONE_BY_ONE = """window.came = []; {
    const real = window.fetch, apart = async (text, into) => { for (const event of text.split(/(?<=\\n\\n)/)) {
      into.enqueue(event);
      window.came.push(event);
      await new Promise((then) => setTimeout(then));
    } };
    window.fetch = async (...asked) => new Response((await real(...asked)).body.pipeThrough(new TextDecoderStream())
        .pipeThrough(new TransformStream({ transform: apart })).pipeThrough(new TextEncoderStream())); }"""
# Chunks that no shipped model makes.
STUB = """window.fetch = async () => new Response(%s.map((it) => `data: ${it}\\n\\n`).join(""),
    { headers: { "Content-Type": "text/event-stream" } })"""


class Served:
    def __init__(self, *flags, model="dendrite-tools"):
        command = [PROGRAM, "serve", "--model", str(MODELS / model), "--port", "0", "--device", "cpu", *flags]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.url = re.search(r"http://\S+", self.process.stdout.readline())[0]

    def post(self, path, body):
        request = urllib.request.Request(self.url + path, json.dumps(body).encode(),
                                         {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            return json.load(answer)

    def get(self, path):
        with urllib.request.urlopen(self.url + path, timeout=PATIENCE_S) as answer:
            return answer.headers, answer.read().decode()

    def end(self):
        self.process.terminate()
        self.process.wait(timeout=PATIENCE_S)
        self.process.stdout.close()


class PageTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp(prefix="dendrite-page-")
        cls.addClassCleanup(shutil.rmtree, cls.folder, ignore_errors=True)
        cls.browser = Browser(cls.folder)
        cls.addClassCleanup(cls.browser.end)
        cls.served = Served()
        cls.addClassCleanup(cls.served.end)
        cls.puzzles = Served(model="dendrite-24")
        cls.addClassCleanup(cls.puzzles.end)

    def setUp(self):
        self.open(self.served)

    def open(self, served):
        """A page of its own, which knows its models."""
        self.page = self.browser.open(served.url + "/")
        self.addCleanup(self.page.close)
        self.until("document.querySelector('.draft') !== null && "
                   "($('model').options.length > 0 || !$('problem').hidden)")
        self.js(f"$('tools').value = {json.dumps(json.dumps(TOOLS))}")

    def js(self, expression):
        return self.page.js(expression)

    def until(self, expression):
        end = time.monotonic() + PATIENCE_S
        while not self.is_so(expression):
            if time.monotonic() > end:
                self.fail(f"never: {expression}\n{self.js('document.body?.innerText')}")
            time.sleep(0.02)

    def is_so(self, expression):
        try:
            return self.js(expression)
        except PageLeft:  # asked while the page is loaded again
            return False

    def texts(self, selector):
        return self.js(f"[...document.querySelectorAll({json.dumps(selector)})].map((it) => it.textContent)")

    def say(self, text, draft=-1):
        """Types into a draft, sends, and waits for what was begun."""
        self.js(f"[...document.querySelectorAll('.draft textarea')].at({draft}).focus()")
        self.page.type(text)
        self.page.press("Enter")
        self.rest()

    def rest(self):
        self.until("[...document.querySelectorAll('[data-do=stop]')].every((it) => it.hidden)")

    def click(self, action, turn=-1):
        self.js(f"[...document.querySelectorAll('.turn:not(.draft) [data-do={action}]')].at({turn}).click()")

    def sent(self):
        """The bodies of all that was posted."""
        return [json.loads(it["postData"]) for it in self.page.requests if it["method"] == "POST"]

    def test_a_chat_is_streamed(self):
        self.js(ONE_BY_ONE)
        self.js("""window.seen = new Set(); new MutationObserver(() => window.seen.add(
            document.querySelector('.call pre')?.textContent)).observe($('tree'), { subtree: true, childList: true })""")
        self.say(TIME)
        whole = self.served.post("/v1/chat/completions", {
            "messages": [{"role": "user", "content": TIME}],
            "tools": [{"type": "function", "function": tool} for tool in TOOLS]})
        call = whole["choices"][0]["message"]["tool_calls"][0]["function"]
        self.assertEqual(self.texts(".call b"), [call["name"]])
        self.assertEqual(self.texts(".call pre"), [call["arguments"]])
        # What was said behind each event; how many tokens come in one, the server's clock decides.
        pieces = [piece["function"].get("arguments", "") for event in self.js("window.came") if "[DONE]" not in event
                  for choice in json.loads(event[len("data: "):])["choices"]
                  for piece in choice["delta"].get("tool_calls", [])]
        self.assertEqual(set(self.js("[...window.seen]")) - {None}, set(itertools.accumulate(pieces)))
        self.assertRegex(self.texts(".assistant .facts")[0], rf"^prompt {whole['usage']['prompt_tokens']}: \d+ shared, "
                         rf"\d+ computed · {whole['usage']['completion_tokens']} written · seed \d+$")
        self.assertEqual(self.texts(".draft .who"), [f"Result of {call['name']}"])
        self.say('{"time":"07:30"}')
        self.assertEqual(self.texts(SAID)[-1], 'The result: {"time":"07:30"}')
        self.assertEqual([it["role"] for it in self.sent()[-1]["messages"]], ["user", "assistant", "tool"])

    def test_enter_sends_and_shift_enter_breaks_the_line(self):
        self.js("$('tools').value = ''; document.querySelector('.draft textarea').focus()")
        self.page.type("one")
        self.page.press("Enter", shift=True)
        self.page.type("two")
        self.assertEqual(self.js("document.querySelector('.draft textarea').value"), "one\ntwo")
        self.assertEqual(self.sent(), [])
        self.page.press("Enter")
        self.rest()
        self.assertEqual(self.sent()[0]["messages"], [{"role": "user", "content": "one\ntwo"}])
        self.page.press("Enter")  # nothing was written
        self.assertEqual(len(self.sent()), 1)

    def test_branches_are_side_by_side_and_share(self):
        self.say(TIME)
        self.click("fork")
        self.assertEqual(len(self.texts(".draft")), 2)
        self.say('{"time":"07:30"}', 0)
        self.say("error: no such city")
        said = self.js("[...document.querySelectorAll('.fork > .column > .assistant')].map((it) => {"
                       "const { left, right, top } = it.getBoundingClientRect();"
                       "return { left, right, top, text: it.innerText } })")
        self.assertEqual(len(said), 2)
        self.assertIn('The result: {"time":"07:30"}', said[0]["text"])
        self.assertIn("That did not work: error: no such city", said[1]["text"])
        self.assertEqual(said[0]["top"], said[1]["top"])
        self.assertLess(said[0]["right"], said[1]["left"])
        first, left, right = self.sent()
        self.assertEqual(left["messages"][:2], right["messages"][:2])
        self.assertEqual(right["messages"][2]["content"], "error: no such city")
        self.assertEqual(len(right["messages"]), 3)
        prompt, shared, computed = map(int, re.search(r"prompt (\d+): (\d+) shared, (\d+) computed",
                                                      said[1]["text"]).groups())
        self.assertGreater(shared, len(TIME))  # a byte is a token
        self.assertEqual(prompt, shared + computed)
        self.assertRegex(self.texts("#total")[0], r"^\d+ of \d+ prompt tokens shared$")

    def test_replies_have_seeds_of_their_own(self):
        self.js("$('temperature').value = '1.5'; $('seed').value = '7'; $('max').value = '30'")
        self.say("abc")
        self.click("again")
        self.rest()
        self.assertEqual([(it.get("seed"), it["temperature"], it["max_completion_tokens"]) for it in self.sent()],
                         [(7, 1.5, 30), (None, 1.5, 30)])
        facts = self.texts(".fork > .column > .assistant .facts")
        self.assertIn("seed 7", facts[0])
        drawn = re.search(r"seed (\d+)", facts[1])[1]
        self.assertNotEqual(drawn, "7")
        again = self.texts(SAID)[1:]
        self.js(f"$('seed').value = '{drawn}'")
        self.js("[...document.querySelectorAll('[data-do=remove]')].at(0).click()")  # all
        self.assertEqual(len(self.texts(".turn")), 1)
        self.say("abc")
        self.assertEqual(self.texts(SAID), again)

    def test_an_edited_message_forks(self):
        self.say(TIME)
        self.click("edit", 0)
        self.assertEqual(self.js("document.activeElement.value"), TIME)
        self.page.type(" ")
        self.page.press("Enter")
        self.rest()
        self.assertEqual(len(self.texts(".fork > .column > .user")), 2)
        self.assertEqual(self.sent()[1]["messages"], [{"role": "user", "content": TIME + " "}])

    def test_stop_ends_it_at_the_server(self):
        self.js(WITH % '{ ignore_eos: true, max_completion_tokens: 900 }')
        self.js("$('tools').value = ''")
        # In the page, so that no reply is whole before it is stopped.
        self.js("""new MutationObserver(() => {
            if (document.querySelector('.assistant > .inner > .text')?.textContent.length > 5) {
              document.querySelector('.assistant [data-do=stop]:not([hidden])')?.click();
            }
          }).observe($('tree'), { subtree: true, childList: true, characterData: true })""")
        self.say(TIME)
        self.assertRegex(self.texts(".assistant .facts")[0], "stopped$")
        self.assertEqual(self.js("document.querySelector('.assistant .error').hidden"), True)
        end = time.monotonic() + PATIENCE_S
        while 'num_requests_running{model_name="dendrite-tools"} 0' not in self.served.get("/metrics")[1]:
            self.assertLess(time.monotonic(), end)

    def test_what_a_model_says_is_text(self):
        for text in HOSTILE:
            self.js("window.isOld = true; location.reload()")
            self.until("!window.isOld && document.querySelector('.draft') !== null && $('model').options.length > 0")
            self.js(WITH % json.dumps({"structured_outputs": {"choice": [text]}}))
            self.say(text)
            self.assertEqual(self.texts(".user .text"), [text])
            self.assertEqual(self.texts(SAID), [text])
            self.nothing_was_taken()

    def test_thoughts_calls_and_errors_are_text(self):
        function = {"name": HOSTILE[1], "arguments": json.dumps({"x": HOSTILE[0]})}
        chunks = [{"choices": [{"delta": delta, "finish_reason": None}]} for delta in (
            {"reasoning_content": "Let me "}, {"reasoning": HOSTILE[1]}, {"content": HOSTILE[2]},
            {"tool_calls": [{"index": 0, "id": "call_1", "function": function}]})]
        self.js(STUB % json.dumps([json.dumps(it) for it in chunks] + [json.dumps({"error": {"message": HOSTILE[0]}})]))
        self.say("x")
        self.assertEqual(self.texts(".thoughts .text"), ["Let me " + HOSTILE[1]])
        self.assertEqual(self.js("document.querySelector('.thoughts').open"), False)
        self.assertEqual(self.texts(SAID), [HOSTILE[2]])
        self.assertEqual(self.texts(".call *"), [function["name"], function["arguments"]])
        self.assertEqual(self.texts(".assistant .error:not([hidden])"), [HOSTILE[0]])
        self.assertEqual(self.texts(".draft .who"), ["Result of " + HOSTILE[1]])
        self.nothing_was_taken()

    def nothing_was_taken(self):
        time.sleep(0.1)
        self.assertEqual(self.js("document.title"), "Dendrite")
        self.assertEqual(self.js("document.querySelectorAll('script').length"), 1)
        self.assertEqual(self.js("document.querySelectorAll('img, a, main style').length"), 0)

    def search(self, strategy=None):
        """The pane of searches, with a strategy in place of its own; and what is asked."""
        self.open(self.puzzles)
        self.js("$('see-search').click(); $('seed').value = '7'")
        if strategy is not None:
            self.js(f"$('strategy').value = {json.dumps(json.dumps(strategy))}")
        return {"input": self.js("$('input').value"), "strategy": json.loads(self.js("$('strategy').value")), "seed": 7}

    def test_a_search_is_drawn_as_it_comes(self):
        asked = self.search()
        self.js(ONE_BY_ONE)
        self.js("""window.seen = new Set(); new MutationObserver(() => window.seen.add(
            document.querySelectorAll('#drawn [data-node]').length)).observe($('drawn'), { subtree: true, childList: true });
            $('run').click()""")
        self.until("!$('run').disabled")
        whole = self.puzzles.post("/v1/searches", asked)
        self.assertGreater(self.js("window.seen.size"), 3)
        nodes = {it["node"]: it for it in whole["nodes"]}
        self.assertEqual(len(self.texts("#drawn [data-node]")), len(nodes) + 1)

        def numbers(selector):
            return set(self.js(f"[...document.querySelectorAll({json.dumps(selector)})].map((it) => +it.dataset.node)"))
        self.assertEqual(numbers("g.way"), {0, *whole["path"]})
        self.assertEqual(numbers("g.pruned"), {number for number, it in nodes.items() if not it["kept"]})
        for number, node in list(nodes.items())[:5]:
            self.assertEqual(self.texts(f"[data-node='{number}'] text:not(.value)"), [node["text"].strip()])
            shown = self.texts(f"[data-node='{number}'] .value")[0]
            self.assertAlmostEqual(float(shown), node["value"], delta=0.05 * abs(node["value"]))
        self.assertRegex(self.texts("#sum")[0], rf"^{len(nodes)} thoughts · solved · {whole['usage']['output_tokens']} ")
        # A thought is right of the one before it, and no two are in one place.
        places = self.js("[...document.querySelectorAll('#drawn [data-node]')].map((it) => it.getAttribute('transform'))")
        self.assertEqual(len(set(places)), len(places))
        left = {number: self.js(f"document.querySelector('[data-node=\"{number}\"]').getBoundingClientRect().left")
                for number in (0, *whole["path"])}
        self.assertEqual(sorted(left.values()), [left[number] for number in (0, *whole["path"])])
        self.js("$('see-chat').click()")
        self.assertEqual(self.js("$('search').hidden && !document.querySelector('main').hidden"), True)

    def test_a_search_ends_at_stop(self):
        self.search({"type": "mcts", "iterations": 100000, "candidates": 4, "depth": 3})
        self.js("""new MutationObserver(() => {
            if (document.querySelectorAll('#drawn [data-node]').length > 5) $('halt').click();
          }).observe($('drawn'), { subtree: true, childList: true });
          $('run').click()""")
        self.until("!$('run').disabled")
        self.assertRegex(self.texts("#sum")[0], r"^\d+ thoughts · stopped$")
        self.assertEqual(self.js("$('failed').hidden"), True)
        end = time.monotonic() + PATIENCE_S
        while 'num_requests_running{model_name="dendrite-24"} 0' not in self.puzzles.get("/metrics")[1]:
            self.assertLess(time.monotonic(), end)

    def test_thoughts_of_a_search_are_text(self):
        self.search()
        events = [{"type": "search.node.added", "node": i + 1, "parent": i, "text": text, "joined": [0]}
                  for i, text in enumerate(HOSTILE)]
        self.js(STUB % json.dumps([json.dumps(it) for it in events + [
            {"type": "search.failed", "error": {"message": HOSTILE[0]}}]]))
        self.js("$('run').click()")
        self.until("!$('run').disabled")
        self.assertEqual(self.texts("#drawn title")[1:], HOSTILE)
        self.assertEqual(self.texts("#failed"), [HOSTILE[0]])
        self.nothing_was_taken()

    def test_errors_of_a_search_are_shown(self):
        self.search()
        for strategy, message in (("{", "The strategy is no JSON: "), ('{"type": "guess"}', "400: .*strategy.type")):
            self.js(f"$('strategy').value = {json.dumps(strategy)}; $('run').click()")
            self.until("!$('run').disabled")
            self.assertRegex(self.texts("#failed:not([hidden])")[0], message)

    def test_markup_would_not_run(self):
        for way in ("document.body.innerHTML = '<b>x</b>'", "document.write('<b>x</b>')", "eval('1')",
                    "document.body.setAttribute('onclick', '1')", "document.createElement('script').text = '1'",
                    "document.createElement('iframe').srcdoc = 'x'"):
            self.assertEqual(self.js(f"(() => {{ try {{ {way}; return 'ran' }} catch {{ return 'refused' }} }})()"),
                             "refused", way)

    def test_nothing_is_asked_of_others(self):
        self.say(TIME)
        self.assertGreaterEqual(len(self.page.requests), 3)
        for request in self.page.requests:
            self.assertTrue(request["url"].startswith(self.served.url + "/"), request["url"])
        headers, text = self.served.get("/")
        self.assertEqual(re.findall(r"https?:|src=|href=|@import|url\(|@NONCE@", text), [])
        nonces = {re.search(r'nonce="(\w{32})"', self.served.get("/")[1])[1] for _ in range(3)}
        self.assertEqual(len(nonces), 3)
        self.assertRegex(headers["Content-Security-Policy"], "default-src 'none'; .*connect-src 'self'; .*"
                         "frame-ancestors 'none'")

    def test_a_key_is_asked_for_and_forgotten(self):
        keys = os.path.join(self.folder, "keys")
        pathlib.Path(keys).write_text("secret\n")
        served = Served("--api-key-file", keys)
        self.addCleanup(served.end)
        self.open(served)
        self.assertEqual(self.texts("#problem"), ["This server asks for an API key."])
        self.say(TIME)
        self.assertRegex(self.texts(".assistant .error:not([hidden])")[0], r"^401: .*invalid_api_key")
        self.js("$('key').focus()")
        self.page.type("secret")
        self.page.press("Tab")
        self.until("$('problem').hidden && $('model').options.length === 1")
        self.click("again")
        self.rest()
        self.assertEqual(len(self.texts(".call")), 1)
        self.assertEqual(self.js("localStorage.length + sessionStorage.length + document.cookie.length"), 0)

    def test_errors_are_shown(self):
        for setting, message in (("$('temperature').value = 'warm'", "Temperature is “warm”; expected a number"),
                                 ("$('temperature').value = '-3'", "400: .*temperature"),
                                 ("$('temperature').value = ''; $('tools').value = '{'", "Tools are no JSON: "),
                                 ("$('tools').value = '{}'", "Tools are no JSON array")):
            self.js(setting)
            self.say("x")
            self.assertRegex(self.texts(".assistant .error:not([hidden])")[-1], message)
            self.assertEqual(self.js("document.querySelector('.draft [data-do=send]').disabled"), True)
            self.click("remove", 0)
        served = Served()
        self.open(served)
        served.end()
        self.say(TIME)
        self.assertIn("The server could not be reached", self.texts(".assistant .error:not([hidden])")[0])

    def test_light_and_dark(self):
        colours = set()
        for scheme in ("light", "dark"):
            self.page.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
            colours.add(tuple(self.js("[getComputedStyle(document.body).color, getComputedStyle(document.body)"
                                      ".backgroundColor, getComputedStyle($('temperature')).backgroundColor]")))
        self.assertEqual(len(colours), 2)
        self.assertEqual(len({colour for scheme in colours for colour in scheme}), 6)


if __name__ == "__main__":
    if BROWSER is None:
        print("page_test: no chromium, chromium-browser or google-chrome was found; the server's page was not tested")
        sys.exit(1 if os.environ.get("CI") else 77)
    unittest.main(argv=sys.argv[:1] + sys.argv[2:], verbosity=1)
