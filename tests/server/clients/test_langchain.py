"""langchain-openai and langgraph against dendrite serve."""
import asyncio
import json
import os
import unittest

from served import MODELS, served

os.environ.update(LANGSMITH_TRACING="false")

import openai  # noqa: E402
from langchain_core.messages import HumanMessage, ToolMessage  # noqa: E402
from langchain_core.tools import tool  # noqa: E402
from langchain_openai import ChatOpenAI  # noqa: E402
from langgraph.checkpoint.memory import InMemorySaver  # noqa: E402
from langgraph.graph import START, MessagesState, StateGraph  # noqa: E402
from langgraph.prebuilt import ToolNode, tools_condition  # noqa: E402
from pydantic import BaseModel, Field  # noqa: E402

ASK = "What time is it in Lima?"
TOOLS = [tool if "function" in tool else {"type": "function", "function": tool}
         for tool in json.loads((MODELS / "dendrite-tools" / "tools.json").read_text())]


class Room(BaseModel):
    """A room of a house."""

    name: str = Field(max_length=10)
    floor: int = Field(ge=0, le=9)
    kind: str = Field(pattern="^(kitchen|attic)$")


@tool
def get_time(city: str) -> str:
    """The local time of a city"""
    return f"09:15 in {city}"


class LangChainTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.url = cls.enterClassContext(served("dendrite-tools", "--served-model-name", "m")) + "/v1"

    def chat(self, **settings):
        settings = {"model": "m", "temperature": 0, "stream_usage": True} | settings
        return ChatOpenAI(base_url=self.url, api_key="none", max_retries=0, **settings)

    def by_both(self, test):
        """By each of OpenAI's APIs."""
        for responses in (False, True):
            with self.subTest(responses=responses):
                test(self.chat(use_responses_api=responses))

    def test_tool_loop(self):
        def test(chat):
            bound = chat.bind_tools([get_time])
            messages = [HumanMessage(ASK)]
            first = bound.invoke(messages)
            [call] = first.tool_calls
            self.assertEqual((call["name"], call["args"]), ("get_time", {"city": "Lima"}))
            self.assertEqual(first.invalid_tool_calls, [])
            second = bound.invoke([*messages, first, get_time.invoke(call)])
            self.assertEqual(second.text, "The result: 09:15 in Lima")
            self.assertEqual(second.tool_calls, [])
            self.assertGreater(second.usage_metadata["input_token_details"]["cache_read"], 0)

        self.by_both(test)

    def test_choices(self):
        def test(chat):
            for choice, name in (("set_alarm", "set_alarm"), ("any", "get_time")):
                [call] = chat.bind_tools(TOOLS, tool_choice=choice).invoke(ASK).tool_calls
                self.assertEqual(call["name"], name)
            self.assertEqual(chat.bind_tools(TOOLS, tool_choice="none").invoke(ASK).tool_calls, [])

        self.by_both(test)

    def test_streams_are_the_whole(self):
        def test(chat):
            bound = chat.bind_tools(TOOLS)
            whole = bound.invoke(ASK)
            chunks = list(bound.stream(ASK))
            total = chunks[0]
            for chunk in chunks[1:]:
                total += chunk
            self.assertGreater(len(chunks), 2)
            [a], [b] = whole.tool_calls, total.tool_calls
            self.assertEqual((a["name"], a["args"]), (b["name"], b["args"]))
            self.assertEqual(whole.usage_metadata["output_tokens"], total.usage_metadata["output_tokens"])

        self.by_both(test)

    def test_structured_output(self):
        for method in ("json_schema", "function_calling"):
            for strict in (True, None):
                for seed in range(4):
                    chat = self.chat(temperature=1.5, seed=seed, max_tokens=500)
                    room = chat.with_structured_output(Room, method=method, strict=strict).invoke("A room")
                    self.assertIsInstance(room, Room)
        call = self.chat().with_structured_output(method="json_mode").invoke(ASK)
        self.assertEqual(call, {"name": "get_time", "arguments": {"city": "Lima"}})

    def test_logprobs(self):
        reply = self.chat(logprobs=True, top_logprobs=2).invoke(ASK)
        said = "".join(token["token"] for token in reply.response_metadata["logprobs"]["content"])
        self.assertEqual(said, reply.text)

    def test_graph_with_checkpoints(self):
        chat = self.chat().bind_tools([get_time])
        graph = StateGraph(MessagesState)
        graph.add_node("chat", lambda state: {"messages": [chat.invoke(state["messages"])]})
        graph.add_node("tools", ToolNode([get_time]))
        graph.add_edge(START, "chat")
        graph.add_conditional_edges("chat", tools_condition)
        graph.add_edge("tools", "chat")
        app = graph.compile(checkpointer=InMemorySaver())
        config = {"configurable": {"thread_id": "1"}}
        reads = []
        for city in ("Lima", "Oslo"):
            state = app.invoke({"messages": [HumanMessage(f"What time is it in {city}?")]}, config)
            self.assertEqual(state["messages"][-1].text, f"The result: 09:15 in {city}")
            reads += [message.usage_metadata["input_token_details"]["cache_read"]
                      for message in state["messages"] if message.type == "ai"]
        self.assertEqual([type(message) for message in state["messages"]].count(ToolMessage), 2)
        self.assertGreater(min(reads[1:]), 0)

    def test_many_at_once(self):
        async def run():
            chat = self.chat(temperature=1, seed=3, max_tokens=40)
            return await chat.abatch([f"Tell me {n % 4}" for n in range(32)])

        texts = [reply.text for reply in asyncio.run(run())]
        for n in range(4):
            self.assertEqual(len(set(texts[n::4])), 1)

    def test_errors(self):
        def test(chat):
            with self.assertRaises(openai.BadRequestError) as long:
                chat.invoke("a " * 2000)
            self.assertEqual(long.exception.code, "context_length_exceeded")

        self.by_both(test)
        with self.assertRaises(openai.NotFoundError):
            self.chat(model="other").invoke(ASK)


if __name__ == "__main__":
    unittest.main()
