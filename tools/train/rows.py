"""Packed rows from the generator's pipe to the device, made while the device trains on earlier ones."""

import queue
import subprocess
import threading

import torch

ROW_TOKENS = 256
TOKEN_BITS = 0x1FF  # of what a row holds; above them the piece (packing.h)
PIECE_SHIFT, PIECE_BITS, SEES_ALL = 9, 0x3F, 63


class RowStream:
    """An endless stream of batches [rows, row_tokens] of 16-bit tokens; the sign bit marks a learnt token.

    The generator runs from construction on, but the pipe and a short queue hold it back: a stream that is not read
    yet costs nothing.
    """

    def __init__(self, generator, phase, seed, threads, batch_rows, device, row_tokens=ROW_TOKENS, flags=()):
        self.device, self.batch_rows, self.row_tokens = device, batch_rows, row_tokens
        self.process = subprocess.Popen(
            [generator, "rows", "--phase", str(phase), "--seed", str(seed), "--threads", str(threads), *flags],
            stdout=subprocess.PIPE)
        self.ready = queue.Queue(maxsize=6)
        self.closed = False
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        pinned = self.device.type == "cuda"
        while not self.closed:
            batch = torch.empty(self.batch_rows, self.row_tokens, dtype=torch.int16, pin_memory=pinned)
            view = memoryview(batch.numpy()).cast("B")
            filled = 0
            while filled < len(view):
                count = self.process.stdout.readinto(view[filled:])
                if not count:
                    self.ready.put(None)  # the generator died; the trainer must not wait for ever
                    return
                filled += count
            self.ready.put(batch)

    def next(self):
        batch = self.ready.get()
        if batch is None:
            raise RuntimeError(f"generate ended early, exit code {self.process.wait()}")
        return batch.to(self.device, non_blocking=True)

    def close(self):
        self.closed = True
        self.process.kill()
        self.process.wait()
