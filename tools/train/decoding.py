"""Batched decoding in PyTorch, without a KV cache: every step runs whole prefixes, padded on the right.

For sequences of a hundred tokens and six million weights that is fast enough, and nothing here can be wrong about
positions or shared state: it is the reference that an engine is compared with.
"""

import math

import torch

import tokenizer

CHUNK_TOKENS = 1 << 19  # of a forward pass
NEWLINE = tokenizer.ID_OF_BYTE[ord("\n")]
SURE, IMPOSSIBLE = tokenizer.ID_OF_BYTE[ord("s")], tokenizer.ID_OF_BYTE[ord("i")]


class Decoder:
    def __init__(self, model):
        self.model = model
        self.device = model.embedding.device

    def prompts(self, texts, room, opening=()):
        """(tokens [rows, longest + room], lengths [rows]) of <|bos|>, the ids of `opening`, and each text."""
        ids = [[tokenizer.BOS, *opening] + tokenizer.encode(text) for text in texts]
        longest = max(map(len, ids)) + room
        tokens = torch.tensor([i + [tokenizer.PAD] * (longest - len(i)) for i in ids])
        return tokens.to(self.device), torch.tensor([len(i) for i in ids], device=self.device)

    @torch.no_grad()
    def next_logits(self, tokens, lengths):
        """Logits [rows, vocab] of the token after each row's first `lengths` tokens."""
        width = int(lengths.max())
        rows = max(1, CHUNK_TOKENS // width)
        parts = []
        for at in range(0, len(tokens), rows):
            hidden = self.model(tokens[at:at + rows, :width])
            last = lengths[at:at + rows] - 1
            parts.append(self.model.logits(hidden[torch.arange(len(last), device=self.device), last]))
        return torch.cat(parts)

    def complete(self, texts, max_tokens=110, temperature=0.0, seed=0, opening=()):
        """What follows each prompt, up to <|eos|>: (texts, tokens generated with <|eos|>)."""
        tokens, begins, ends = self.complete_tokens(texts, max_tokens, temperature, seed, opening)
        return ([tokenizer.decode(row[b:e]) for row, b, e in zip(tokens.tolist(), begins, ends)],
                [e - b for b, e in zip(begins, ends)])

    def complete_tokens(self, texts, max_tokens=110, temperature=0.0, seed=0, opening=()):
        """(tokens, padded on the right; where what follows each prompt begins; where it ends, with <|eos|>)."""
        generator = torch.Generator(self.device).manual_seed(seed)
        tokens, lengths = self.prompts(texts, max_tokens, opening)
        begins = lengths.clone()
        running = torch.arange(len(texts), device=self.device)
        for _ in range(max_tokens):
            logits = self.next_logits(tokens[running], lengths[running])
            if temperature == 0:
                chosen = logits.argmax(dim=-1)
            else:
                chosen = torch.multinomial((logits / temperature).softmax(dim=-1), 1, generator=generator)[:, 0]
            tokens[running, lengths[running]] = chosen
            lengths[running] += 1
            running = running[chosen != tokenizer.EOS]
            if len(running) == 0:
                break
        return tokens, begins.tolist(), lengths.tolist()

    def propose(self, trunks, threshold=0.003, max_tokens=28):
        """All lines that the model gives a probability above `threshold` after each trunk, found token by token.

        Returns (per trunk a list of (line with newline, probability), tokens looked at).
        """
        tokens, lengths = self.prompts(trunks, max_tokens)
        begins = lengths.tolist()
        owner = torch.arange(len(trunks), device=self.device)
        log_probs = torch.zeros(len(trunks), device=self.device)
        lines, looked_at = [[] for _ in trunks], 0
        for _ in range(max_tokens):
            paths = log_probs[:, None] + self.next_logits(tokens, lengths).log_softmax(dim=-1)
            row, token = (paths > math.log(threshold)).nonzero(as_tuple=True)
            looked_at += len(row)
            log_probs, owner, tokens, lengths = paths[row, token], owner[row], tokens[row], lengths[row]
            tokens[torch.arange(len(row), device=self.device), lengths] = token
            lengths = lengths + 1
            done = token == NEWLINE
            for o, ids, end, p in zip(*(x[done].tolist() for x in (owner, tokens, lengths, log_probs))):
                lines[o].append((tokenizer.decode(ids[begins[o]:end]), math.exp(p)))
            keep = ~done & (token < 256)
            log_probs, owner, tokens, lengths = (x[keep] for x in (log_probs, owner, tokens, lengths))
            if len(owner) == 0:
                break
        return lines, looked_at

    def judge(self, trunks):
        """P(sure) of each trunk: the softmax over 's' and 'i' after '?'."""
        logits = self.next_logits(*self.prompts([trunk + "?" for trunk in trunks], 0))
        return (logits[:, SURE] - logits[:, IMPOSSIBLE]).sigmoid().tolist()
