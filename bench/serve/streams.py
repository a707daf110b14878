"""Streamed answers over HTTP/1.1 as a load driver needs them: while they come, only bytes and times are kept; what they
say is read afterwards, so that the driver costs little beside what it measures.
"""
from __future__ import annotations

import asyncio
import dataclasses
import gc
import json
import time
import urllib.parse
from typing import Any


@dataclasses.dataclass(frozen=True)
class Address:
    host: str
    port: int
    path: str = ""

    @staticmethod
    def of(url: str) -> Address:
        parts = urllib.parse.urlsplit(url)
        if parts.scheme != "http" or not parts.hostname:
            raise SystemExit(f"{url}: expected http://HOST:PORT")
        return Address(parts.hostname, parts.port or 80, parts.path.rstrip("/"))


def request_bytes(address: Address, method: str, path: str, body: Any = None, key: str = "") -> bytes:
    data = b"" if body is None else json.dumps(body, separators=(",", ":")).encode()
    head = [f"{method} {address.path}{path} HTTP/1.1", f"Host: {address.host}:{address.port}", "Connection: close"]
    if key:
        head.append(f"Authorization: Bearer {key}")
    if body is not None:
        head += ["Content-Type: application/json", f"Content-Length: {len(data)}"]
    return "\r\n".join(head).encode() + b"\r\n\r\n" + data


class Stream(asyncio.Protocol):
    """One connection, which has one request and one answer."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.sent = 0.0
        self.pieces: list[tuple[float, bytes]] = []
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.pieces.append((time.perf_counter(), data))

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.ended.done():
            self.ended.set_result(None)

    def ask(self, request: bytes) -> None:
        assert self.transport is not None
        self.sent = time.perf_counter()
        self.transport.write(request)

    def drop(self) -> None:
        """Goes, as a client does that wants no more; nothing is lingered for."""
        if self.transport is not None:
            self.transport.abort()


async def connect(address: Address) -> Stream:
    _, stream = await asyncio.get_running_loop().create_connection(Stream, address.host, address.port)
    return stream


async def ask(address: Address, method: str, path: str, body: Any = None, key: str = "", limit_s: float = 60) -> Answer:
    stream = await connect(address)
    stream.ask(request_bytes(address, method, path, body, key))
    await asyncio.wait_for(asyncio.shield(stream.ended), limit_s)
    return read(stream)


@dataclasses.dataclass
class Answer:
    """What came: of a stream of events the times of those with output, since the request was sent; of another answer its
    body."""
    status: int = 0
    body: bytes = b""
    first_s: float | None = None
    gaps_s: list[float] = dataclasses.field(default_factory=list)
    end_s: float = 0.0
    chunks: int = 0
    tokens: int = 0  # by the server's usage; where it tells none, chunks
    texts: list[str] = dataclasses.field(default_factory=list)
    cached: int | None = None
    fault: str = ""

    def json(self) -> Any:
        return json.loads(self.body)


def payloads(pieces: list[tuple[float, bytes]]) -> tuple[int, list[tuple[float, bytes]], bool]:
    """Status, the body by the times at which its parts came, and whether it is whole."""
    buffer, status, chunked, length = b"", 0, False, None
    out: list[tuple[float, bytes]] = []
    for when, data in pieces:
        buffer += data
        if status == 0:
            head, mark, rest = buffer.partition(b"\r\n\r\n")
            if not mark:
                continue
            lines = head.lower().split(b"\r\n")
            status, buffer = int(lines[0].split()[1]), rest
            chunked = any(line.startswith(b"transfer-encoding:") and b"chunked" in line for line in lines)
            lengths = [line.split(b":")[1] for line in lines if line.startswith(b"content-length:")]
            length = int(lengths[0]) if lengths else None
        if not chunked:
            out.append((when, buffer))
            buffer = b""
            continue
        while (mark := buffer.find(b"\r\n")) >= 0:
            size = int(buffer[:mark].split(b";")[0], 16)
            if size == 0:
                return status, out, True
            if len(buffer) < mark + size + 4:
                break
            out.append((when, buffer[mark + 2:mark + 2 + size]))
            buffer = buffer[mark + size + 4:]
    got = sum(len(data) for _, data in out)
    return status, out, status > 0 and not chunked and length in (None, got)


def has_output(choice: dict[str, Any]) -> bool:
    """A chunk that brings tokens. Of completions all that end nothing do, also where the tokens have no text yet."""
    delta = choice.get("delta")
    if delta is None:
        return bool(choice.get("text") or choice.get("token_ids") or not choice.get("finish_reason"))
    return any(delta.get(name) for name in ("content", "reasoning_content", "reasoning", "tool_calls"))


def read(stream: Stream) -> Answer:
    status, parts, whole = payloads(stream.pieces)
    answer = Answer(status=status, body=b"".join(data for _, data in parts))
    answer.end_s = (parts[-1][0] if parts else time.perf_counter()) - stream.sent
    if status != 200:
        answer.fault = f"status {status}: {answer.body[:200].decode(errors='replace')}"
        return answer
    if not whole:
        answer.fault = "the connection ended before the answer did"
    if not answer.body.startswith((b"data:", b"event:", b":")):
        return answer
    usage: dict[str, Any] | None = None
    last = None
    buffer = b""
    for when, data in parts:
        buffer += data.replace(b"\r\n", b"\n")
        *events, buffer = buffer.split(b"\n\n")
        for event in events:
            line = next((line for line in event.split(b"\n") if line.startswith(b"data:")), b"")
            text = line[5:].strip()
            if not text or text == b"[DONE]":
                continue
            said = json.loads(text)
            if "error" in said:
                answer.fault = str(said["error"])[:200]
            usage = said.get("usage") or usage
            if not any(has_output(choice) for choice in said.get("choices", [])):
                continue
            answer.chunks += 1
            answer.texts += [str(choice.get("text") or "") for choice in said["choices"]]
            if last is None:
                answer.first_s = when - stream.sent
            else:
                answer.gaps_s.append(when - last)
            last = when
    answer.tokens = usage["completion_tokens"] if usage else answer.chunks
    if usage:
        answer.cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
    return answer


async def all_at_once(address: Address, requests: list[bytes], limit_s: float) -> tuple[list[Answer], float]:
    """All requests in one turn of the loop, on connections that were open before; and the processor time that this
    process took for them, in seconds."""
    streams = list(await asyncio.gather(*(connect(address) for _ in requests)))
    gc.collect()
    gc.disable()  # a pause of the driver would be a gap of the server
    try:
        busy = time.process_time()
        for stream, request in zip(streams, requests):
            stream.ask(request)
        _, late = await asyncio.wait([stream.ended for stream in streams], timeout=limit_s)
        busy = time.process_time() - busy
    finally:
        gc.enable()
    answers = []
    for stream in streams:
        is_late = not stream.ended.done()
        stream.drop()
        answers.append(read(stream))
        if is_late:
            answers[-1].fault = f"no end within {limit_s:g} s"
    return answers, busy
