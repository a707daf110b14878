"""OpenAI's agents, unmodified, against the responses of dendrite serve."""
import asyncio
import json
import unittest

import agents
import openai
from served import MODELS, served

TOOLS = [tool.get("function", tool) for tool in json.loads((MODELS / "dendrite-tools" / "tools.json").read_text())]


class AgentsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.url = cls.enterClassContext(served("dendrite-tools", "--served-model-name", "m")) + "/v1"
        agents.set_tracing_disabled(True)

    def run_agent(self, go):
        """An agent with all tools, which answer 09:15, and what was called."""
        called = []

        def tool(spec):
            async def invoke(context, arguments):
                called.append((spec["name"], json.loads(arguments)))
                return "09:15"

            return agents.FunctionTool(name=spec["name"], description=spec.get("description", ""),
                                       params_json_schema=spec["parameters"], on_invoke_tool=invoke,
                                       strict_json_schema=False)

        async def run():
            async with openai.AsyncOpenAI(base_url=self.url, api_key="none", max_retries=0) as client:
                model = agents.OpenAIResponsesModel(model="m", openai_client=client)
                agent = agents.Agent(name="clock", instructions="You tell the time.", model=model,
                                     tools=[tool(spec) for spec in TOOLS],
                                     model_settings=agents.ModelSettings(temperature=0))
                return await go(agent)

        return asyncio.run(run()), called

    def test_tool_loop(self):
        result, called = self.run_agent(lambda agent: agents.Runner.run(agent, "What time is it in Lima?"))
        self.assertEqual(called, [("get_time", {"city": "Lima"})])
        self.assertEqual(result.final_output, "The result: 09:15")

    def test_turns_by_id(self):
        async def two(agent):
            first = await agents.Runner.run(agent, "What time is it in Lima?")
            return await agents.Runner.run(agent, "What time is it in Oslo?",
                                           previous_response_id=first.last_response_id)

        result, called = self.run_agent(two)
        self.assertEqual([arguments["city"] for _, arguments in called], ["Lima", "Oslo"])
        self.assertEqual(result.final_output, "The result: 09:15")
        self.assertGreater(result.raw_responses[0].usage.input_tokens_details.cached_tokens, 0)

    def test_streamed(self):
        async def stream(agent):
            result = agents.Runner.run_streamed(agent, "What time is it in Lima?")
            kinds = [event.type async for event in result.stream_events()]
            return kinds, result.final_output

        (kinds, final), called = self.run_agent(stream)
        self.assertEqual(final, "The result: 09:15")
        self.assertIn("raw_response_event", kinds)
        self.assertEqual(len(called), 1)


if __name__ == "__main__":
    unittest.main()
