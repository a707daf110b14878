"""What servers of models are asked to get right: by OpenAI's and Anthropic's own clients, each in one function."""
import asyncio
import json
import re

import anthropic
import openai

ALL = []  # (the client, what, the function)
ASK = [{"role": "user", "content": "What time is it in Lima?"}]
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 3, "maximum": 17},
                                          "word": {"type": "string", "pattern": "^[a-f]{2,4}$"},
                                          "size": {"enum": ["small", "large"]}},
          "required": ["n", "word", "size"], "additionalProperties": False}
STRANGE = {"type": "object", "properties": {"n": {"type": "strange"}}, "required": ["n"]}


def check(client, what):
    return lambda function: ALL.append((client, what, function)) or function


def holds(value):
    """SCHEMA."""
    return (set(value) == {"n", "word", "size"} and type(value["n"]) is int and 3 <= value["n"] <= 17
            and re.fullmatch("[a-f]{2,4}", value["word"]) is not None and value["size"] in ("small", "large"))


def text_format(schema):
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}}


def function(tool):
    return {"type": "function", "function": tool}


class Server:
    """Clients of a server's addresses: with a model that knows tools, and with one that thinks."""

    def __init__(self, tools_url, thinks_url, tools):
        self.tools = tools
        self.openai, self.thinker = (openai.OpenAI(base_url=url + "/v1", api_key="none", timeout=30)
                                     for url in (tools_url, thinks_url))
        self.async_openai = lambda: openai.AsyncOpenAI(base_url=tools_url + "/v1", api_key="none")
        self.anthropic, self.thinking_anthropic = (
            anthropic.Anthropic(base_url=url, api_key="none", timeout=30)
            for url in (tools_url, thinks_url))

    def chat(self, **more):
        return self.openai.chat.completions.create(**({"model": "m", "messages": ASK, "temperature": 0,
                                                       "max_tokens": 200} | more))

    def message(self, **more):
        more = {"extra_body": {"temperature": 0}} | more
        return self.anthropic.messages.create(**({"model": "m", "messages": ASK, "max_tokens": 200} | more))

    def respond(self, **more):
        return self.openai.responses.create(**({"model": "m", "input": ASK[0]["content"], "temperature": 0} | more))

    def openai_tools(self):
        return [function(tool) for tool in self.tools]

    def anthropic_tools(self):
        return [{"name": tool["name"], "description": tool["description"], "input_schema": tool["parameters"]}
                for tool in self.tools]

    def response_tools(self):
        return [{"type": "function", "strict": False, **tool} for tool in self.tools]


def is_refused(ask, kind=openai.BadRequestError):
    try:
        ask()
    except kind as error:
        return error
    return None


@check("chats", "a stream is the whole reply of the same seed")
def stream_is_whole(server):
    ask = dict(temperature=1, seed=5)
    parts = server.chat(stream=True, **ask)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in parts if chunk.choices)
    return text == server.chat(**ask).choices[0].message.content


@check("chats", "several choices (`n`)")
def several(server):
    return len(server.chat(n=3, temperature=1, seed=1).choices) == 3


@check("chats", "the same seed gives the same reply, 32 at once")
def same_in_company(server):
    async def run():
        async with server.async_openai() as client:
            return await asyncio.gather(*(client.chat.completions.create(
                model="m", messages=[{"role": "user", "content": "Tell me a story"}], temperature=1.5, seed=n % 4,
                max_tokens=100) for n in range(32)))

    texts = [reply.choices[0].message.content for reply in asyncio.run(run())]
    return all(len(set(texts[n::4])) == 1 for n in range(4))


@check("chats", "log-probs of a reply")
def logprobs(server):
    choice = server.chat(logprobs=True, top_logprobs=2).choices[0]
    return ("".join(token.token for token in choice.logprobs.content) == choice.message.content
            and all(len(token.top_logprobs) == 2 for token in choice.logprobs.content))


@check("chats", "`stop` ends a reply, and is not in it")
def stops(server):
    choice = server.chat(stop=['"arguments"']).choices[0]
    return choice.message.content == '{"name":"get_time",' and choice.finish_reason == "stop"


@check("chats", "thoughts apart, whole and streamed")
def thoughts(server):
    ask = dict(model="m", messages=ASK, extra_body={"chat_template_kwargs": {"enable_thinking": True}})
    whole = server.thinker.chat.completions.create(**ask).choices[0].message
    deltas = [chunk.choices[0].delta for chunk in server.thinker.chat.completions.create(stream=True, **ask)
              if chunk.choices]
    streamed = ["".join(getattr(delta, name, None) or "" for delta in deltas)
                for name in ("reasoning_content", "content")]
    texts = [whole.reasoning_content, whole.content, *streamed]
    return [text.strip() for text in texts] == ["What is there to say?", "pong"] * 2


@check("chats", "a second turn is read from the cache, and says so")
def cached(server):
    first = server.chat().choices[0].message
    turns = [*ASK, first.to_dict(), {"role": "user", "content": "What time is it in Oslo?"}]
    usage = server.chat(messages=turns).usage
    return usage.prompt_tokens_details.cached_tokens > usage.prompt_tokens // 2


@check("tools", "a call, and a reply to its result")
def tool_loop(server):
    first = server.chat(tools=server.openai_tools()).choices[0]
    [call] = first.message.tool_calls
    turns = [*ASK, first.message.to_dict(), {"role": "tool", "tool_call_id": call.id, "content": "09:15"}]
    second = server.chat(messages=turns, tools=server.openai_tools()).choices[0]
    return ((first.finish_reason, call.function.name, json.loads(call.function.arguments))
            == ("tool_calls", "get_time", {"city": "Lima"}) and second.message.content == "The result: 09:15")


@check("tools", "a streamed call is the whole one, and comes in parts")
def streamed_call(server):
    chunks = list(server.chat(tools=server.openai_tools(), stream=True))
    deltas = [call for chunk in chunks if chunk.choices for call in chunk.choices[0].delta.tool_calls or []]
    text = "".join(call.function.arguments or "" for call in deltas)
    return json.loads(text) == {"city": "Lima"} and len([one for one in deltas if one.function.arguments]) > 1


@check("tools", "`tool_choice`: required")
def required(server):
    calls = server.chat(tools=[function({"name": "pair", "parameters": SCHEMA})], tool_choice="required")
    return calls.choices[0].message.tool_calls[0].function.name == "pair"


@check("tools", "`tool_choice`: one of several by its name")
def named(server):
    calls = server.chat(tools=server.openai_tools(),
                        tool_choice={"type": "function", "function": {"name": "set_alarm"}})
    return [call.function.name for call in calls.choices[0].message.tool_calls] == ["set_alarm"]


@check("tools", "`tool_choice`: none")
def no_tool(server):
    return not server.chat(tools=server.openai_tools(), tool_choice="none").choices[0].message.tool_calls


@check("tools", "arguments are held to the schema, of a hot model")
def arguments_hold(server):
    tools = [function({"name": "pair", "parameters": SCHEMA, "strict": True})]
    return all(holds(json.loads(server.chat(tools=tools, tool_choice="required", temperature=1.5, seed=seed)
                                .choices[0].message.tool_calls[0].function.arguments)) for seed in range(8))


@check("tools", "an unknown name in `tool_choice` is refused")
def unknown_tool(server):
    return is_refused(lambda: server.chat(tools=server.openai_tools(),
                                          tool_choice={"type": "function", "function": {"name": "other"}})) is not None


@check("structured output", "a schema is held to: bounds, patterns, choices, of a hot model")
def schema_holds(server):
    return all(holds(json.loads(server.chat(response_format=text_format(SCHEMA), temperature=1.5, seed=seed)
                                .choices[0].message.content)) for seed in range(8))


@check("structured output", "a schema is held to beside tools that may be called")
def schema_beside_tools(server):
    for seed in range(8):
        message = server.chat(response_format=text_format(SCHEMA), tools=server.openai_tools(), temperature=1.5,
                              seed=seed).choices[0].message
        if not message.tool_calls and not holds(json.loads(message.content)):
            return False
    return True


@check("structured output", "any JSON object")
def json_object(server):
    message = server.chat(response_format={"type": "json_object"}).choices[0].message
    return isinstance(json.loads(message.content), dict)


@check("structured output", "a schema that is none is refused (400)")
def no_schema(server):
    return is_refused(lambda: server.chat(response_format=text_format(STRANGE))) is not None


@check("structured output", "a constraint of another server is refused or held to, not ignored")
def foreign_constraint(server):
    def ask():
        return server.chat(extra_body={"guided_regex": "[0-9]{3}"})

    return is_refused(ask) is not None or re.fullmatch("[0-9]{3}", ask().choices[0].message.content) is not None


@check("errors", "a prompt that is too long is 400 with `context_length_exceeded`")
def too_long(server):
    error = is_refused(lambda: server.chat(messages=[{"role": "user", "content": "a " * 2000}]))
    return error is not None and error.code == "context_length_exceeded"


@check("errors", "a model that is not served is 404")
def no_model(server):
    return is_refused(lambda: server.chat(model="other"), openai.NotFoundError) is not None


@check("errors", "a value out of range is 400, and named in `param`")
def out_of_range(server):
    error = is_refused(lambda: server.chat(temperature=-1))
    return error is not None and error.param == "temperature"


@check("errors", "a stream that is refused has its status")
def refused_stream(server):
    return is_refused(lambda: list(server.chat(messages=[{"role": "user", "content": "a " * 2000}],
                                               stream=True))) is not None


@check("completions", "`echo` with log-probs, as lm-eval asks")
def echo(server):
    choice = server.openai.completions.create(model="m", prompt="What", max_tokens=1, echo=True, logprobs=1,
                                              temperature=0).choices[0]
    lists = choice.logprobs
    return (choice.text.startswith("What") and lists.token_logprobs[0] is None
            and "".join(lists.tokens).endswith(choice.text)
            and len(lists.tokens) == len(lists.token_logprobs) == len(lists.top_logprobs))


@check("completions", "several prompts, also as tokens")
def prompts(server):
    for prompt in (["What", "Set"], [[54, 71], [54, 71, 64]]):
        done = server.openai.completions.create(model="m", prompt=prompt, max_tokens=5, temperature=0)
        if sorted(choice.index for choice in done.choices) != [0, 1]:
            return False
    return True


@check("responses", "a call, and a reply to its output")
def response_loop(server):
    first = server.respond(tools=server.response_tools())
    call = first.output[-1]
    turns = [{"role": "user", "content": ASK[0]["content"]}, *(item.to_dict() for item in first.output),
             {"type": "function_call_output", "call_id": call.call_id, "output": "09:15"}]
    second = server.respond(input=turns, tools=server.response_tools())
    return call.name == "get_time" and second.output_text == "The result: 09:15"


@check("responses", "a stream comes to the whole")
def response_stream(server):
    *_, last = server.respond(stream=True)
    return last.type == "response.completed" and last.response.output_text == server.respond().output_text


@check("responses", "a stream's events are numbered")
def numbered(server):
    numbers = [event.sequence_number for event in server.respond(stream=True)]
    return numbers == list(range(len(numbers)))


@check("responses", "`previous_response_id`")
def previous(server):
    first = server.respond(tools=server.response_tools())
    second = server.respond(tools=server.response_tools(), previous_response_id=first.id, input=[
        {"type": "function_call_output", "call_id": first.output[-1].call_id, "output": "09:15"}])
    return second.output_text == "The result: 09:15"


@check("responses", "stored: read again, deleted")
def stored(server):
    first = server.respond()
    same = server.openai.responses.retrieve(first.id).output_text == first.output_text
    server.openai.responses.delete(first.id)
    return same and is_refused(lambda: server.openai.responses.retrieve(first.id), openai.NotFoundError) is not None


@check("responses", "in the background, and cancelled")
def background(server):
    queued = server.respond(background=True)
    return (queued.status in ("queued", "in_progress", "completed")
            and server.openai.responses.retrieve(queued.id).id == queued.id)


@check("responses", "a schema is held to, of a hot model")
def response_schema(server):
    asked = {"format": {"type": "json_schema", "name": "x", "schema": SCHEMA, "strict": True}}
    return all(holds(json.loads(server.respond(text=asked, temperature=1.5).output_text)) for _ in range(8))


@check("responses", "tools that can't be called do not fail a turn")
def foreign_tools(server):
    tools = [{"type": "web_search"}, {"type": "custom", "name": "apply_patch"}, *server.response_tools()]
    return server.respond(tools=tools).output[-1].name == "get_time"


@check("responses", "tokens are counted (`input_tokens`)")
def response_tokens(server):
    count = server.openai.responses.input_tokens.count(model="m", input=ASK[0]["content"])
    return count.input_tokens == server.respond().usage.input_tokens


@check("messages", "a stream is the whole message")
def message_stream(server):
    with server.anthropic.messages.stream(model="m", messages=ASK, max_tokens=200,
                                          extra_body={"temperature": 0}) as stream:
        streamed = stream.get_final_message()
    whole = server.message()
    return (streamed.content[0].text == whole.content[0].text
            and streamed.stop_reason == whole.stop_reason == "end_turn"
            and streamed.usage.output_tokens == whole.usage.output_tokens)


@check("messages", "a call, and a reply to its result")
def message_loop(server):
    first = server.message(tools=server.anthropic_tools())
    call = first.content[-1]
    turns = [*ASK, {"role": "assistant", "content": first.content}, {"role": "user", "content": [
        {"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": "09:15"}]}]}]
    second = server.message(messages=turns, tools=server.anthropic_tools())
    return ((first.stop_reason, call.name, call.input) == ("tool_use", "get_time", {"city": "Lima"})
            and second.content[-1].text == "The result: 09:15")


@check("messages", "`tool_choice`: one of several by its name")
def message_named(server):
    reply = server.message(tools=server.anthropic_tools(), tool_choice={"type": "tool", "name": "set_alarm"})
    return [block.name for block in reply.content if block.type == "tool_use"] == ["set_alarm"]


@check("messages", "thinking blocks")
def message_thinks(server):
    reply = server.thinking_anthropic.messages.create(
        model="m", messages=ASK, max_tokens=2000, thinking={"type": "enabled", "budget_tokens": 1024})
    return [getattr(block, block.type).strip() for block in reply.content] == ["What is there to say?", "pong"]


@check("messages", "`count_tokens` is what is then used")
def message_tokens(server):
    count = server.anthropic.messages.count_tokens(model="m", messages=ASK, tools=server.anthropic_tools())
    usage = server.message(tools=server.anthropic_tools()).usage
    return count.input_tokens == usage.input_tokens + (usage.cache_read_input_tokens or 0)


@check("messages", "which stop sequence it was")
def message_stops(server):
    reply = server.message(stop_sequences=["nothing", '"arguments"'])
    return (reply.stop_reason, reply.stop_sequence) == ("stop_sequence", '"arguments"')


@check("messages", "a schema (`output_config.format`) is held to, of a hot model")
def message_schema(server):
    asked = {"format": {"type": "json_schema", "schema": SCHEMA}}
    return all(holds(json.loads(server.message(output_config=asked, extra_body={"temperature": 1.5}).content[0].text))
               for _ in range(8))


@check("messages", "errors have Anthropic's form")
def message_errors(server):
    error = is_refused(lambda: server.message(messages=[{"role": "user", "content": "a " * 2000}]),
                       anthropic.BadRequestError)
    body = error.body if error is not None else None
    return (isinstance(body, dict) and body.get("type") == "error"
            and body["error"]["type"] == "invalid_request_error")


@check("decisions", "a question about an input, with probabilities")
def decisions(server):
    decision = server.openai.decisions.create(
        model="m", input=ASK[0]["content"],
        questions=[{"type": "predicate", "instructions": "Is it about time?", "name": "time"}])
    return 0 <= decision.answers[0].probability <= 1
