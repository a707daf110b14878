#!/usr/bin/env python3
"""A server without a model: each step it sends one token to all streams that are open. What load.py says of it is the
driver's own: gaps beyond the step, and how much of a processor it takes.

  bench/serve/load.py --server 'echo=python3 bench/serve/echo.py --port {port} --step-ms 20' --shared 0
"""
from __future__ import annotations

import argparse
import asyncio
import json
import sys

open_streams: dict[asyncio.StreamWriter, int] = {}  # tokens that are still to come


def chunk(data: str) -> bytes:
    return f"{len(data):x}\r\n{data}\r\n".encode()


def event(text: str, **more: object) -> bytes:
    choice = {"index": 0, "text": text, "finish_reason": None}
    return chunk(f"data: {json.dumps({'id': 'cmpl-1', 'object': 'text_completion', 'choices': [choice], **more})}\n\n")


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
    if head.startswith("get "):
        body = json.dumps({"data": [{"id": "echo"}]})
        writer.write(f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
        writer.close()
        return
    length = int(head.split("content-length: ")[1].split("\r\n")[0])
    body = json.loads(await reader.readexactly(length))
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
    open_streams[writer] = body["max_tokens"]


async def turn(step_s: float) -> None:
    loop = asyncio.get_running_loop()
    token = event("w")
    due = loop.time()
    while True:
        due = max(due + step_s, loop.time())
        await asyncio.sleep(due - loop.time())
        for writer, left in list(open_streams.items()):
            writer.write(token)
            open_streams[writer] = left - 1
            if left == 1:
                writer.write(chunk("data: [DONE]\n\n") + b"0\r\n\r\n")
                writer.close()
                del open_streams[writer]


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--step-ms", type=float, default=20)
    options = parser.parse_args()
    server = await asyncio.start_server(serve, "127.0.0.1", options.port, limit=1 << 26, backlog=1024)
    print(f"listening on http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await turn(options.step_ms / 1e3)


if __name__ == "__main__":
    try:
        asyncio.run(main())
    except KeyboardInterrupt:
        sys.exit(0)
