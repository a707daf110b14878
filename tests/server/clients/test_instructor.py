"""instructor against dendrite serve: typed answers, whatever the model would say."""
import asyncio
import unittest
from collections.abc import Iterable
from typing import Literal

import instructor
import openai
from pydantic import BaseModel, Field
from served import served

MODES = (instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA)
ASK = [{"role": "user", "content": "What time is it in Lima?"}]


class Closed(BaseModel, extra="forbid"):
    """No other members: a schema that says nothing of them lets a model write any."""


class Item(Closed):
    name: str = Field(max_length=12)
    count: int = Field(ge=1, le=99)


class Order(Closed):
    """What somebody orders."""

    items: list[Item] = Field(min_length=1, max_length=2)
    day: Literal["today", "tomorrow"]
    is_gift: bool
    note: str | None = Field(max_length=8)


class get_time(Closed):  # the name of a tool that the model knows
    """The local time of a city"""

    city: str = Field(max_length=40)


class InstructorTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.url = cls.enterClassContext(served("dendrite-tools", "--served-model-name", "m")) + "/v1"

    def by_both(self, test):
        for mode in MODES:
            with self.subTest(mode=mode), openai.OpenAI(base_url=self.url, api_key="none", max_retries=0) as client:
                test(instructor.from_openai(client, mode=mode))

    def test_all_are_valid(self):
        def test(client):
            for seed in range(16):  # of a model that is hot and knows no orders
                order = client.chat.completions.create(model="m", messages=ASK, response_model=Order, temperature=1.5,
                                                       seed=seed, max_retries=0, max_tokens=600)
                self.assertIsInstance(order, Order)

        self.by_both(test)

    def test_partial(self):
        def test(client):
            ask = dict(model="m", messages=ASK, temperature=1.5, seed=1, max_retries=0)
            parts = list(client.chat.completions.create_partial(response_model=Order, **ask))
            self.assertTrue(parts)
            Order.model_validate(parts[-1].model_dump())

        self.by_both(test)

    def test_several(self):
        ask = dict(model="m", messages=ASK, temperature=0, max_retries=0)
        with openai.OpenAI(base_url=self.url, api_key="none", max_retries=0) as client:
            one_call = instructor.from_openai(client, mode=instructor.Mode.TOOLS)
            times = list(one_call.chat.completions.create_iterable(response_model=get_time, **ask))
            self.assertTrue(times and all(isinstance(time, get_time) for time in times))
            calls = instructor.from_openai(client, mode=instructor.Mode.PARALLEL_TOOLS)
            times = list(calls.chat.completions.create(response_model=Iterable[get_time | Order], **ask))
            self.assertEqual(times, [get_time(city="Lima")])

    def test_many_at_once(self):
        async def run(mode):
            async with openai.AsyncOpenAI(base_url=self.url, api_key="none", max_retries=0) as client:
                typed = instructor.from_openai(client, mode=mode)
                return await asyncio.gather(*(
                    typed.chat.completions.create(model="m", messages=ASK, response_model=Order, temperature=1,
                                                  seed=seed % 4, max_retries=0) for seed in range(16)))

        for mode in MODES:
            orders = asyncio.run(run(mode))
            for seed in range(4):
                self.assertTrue(all(order.model_dump() == orders[seed].model_dump() for order in orders[seed::4]))


if __name__ == "__main__":
    unittest.main()
