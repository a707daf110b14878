"""A model folder that plays one part in a play: asked for two steps, it has a program's shell run
one command after the other, and then says "pong", as it does to all else. Where it is to think, it
thinks before that.

Its next token depends on the last one alone, so it answers in the same way behind prompts of any
length. What has to come next the chat template tells it, which counts the results of tools: it
ends with a token for each line of the play. A line is one token, too.

    scripted_model.py FOLDER
"""
import json
import pathlib
import struct
import sys

POSITIONS = 262144
HIDDEN = 320  # of which each token takes one: no more tokens than that
HEAD = 64
FIRST = "echo first > one.txt"
SECOND = "cat one.txt > two.txt; echo second >> two.txt"
# A program's shell, by its name among the tools, and what it calls a command.
SHELLS = {"Bash": "command", "exec_command": "cmd", "bash": "command"}

TEMPLATE = """\
{%- if tools %}<|im_start|>system
{{ tools | tojson }}<|im_end|>
{% endif %}
{%- set play = namespace(asked=false, results=0, shell='') %}
{%- for tool in tools or [] %}{% if tool.function.name in SHELLS %}{% set play.shell = tool.function.name %}{% endif %}{% endfor %}
{%- for message in messages %}<|im_start|>{{ message.role }}
{% if message.reasoning_content %}<think>{{ message.reasoning_content }}</think>{% endif -%}
{{ message.content }}{% if message.tool_calls %}{{ message.tool_calls | tojson }}{% endif %}<|im_end|>
{% if message.role == 'tool' %}{% set play.results = play.results + 1 %}{% endif %}
{%- if message.role == 'user' and 'in two steps' in message.content %}{% set play.asked = true %}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% if play.asked and play.shell and play.results < 2 %}<|{{ play.shell }}-{{ play.results }}|>
{%- elif enable_thinking %}<|thought|>{% else %}<|pong|>{% endif %}
{%- endif %}"""


def byte_letters():
    """What byte-level tokenizers write for each byte."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = iter(range(256, 512))
    return [chr(byte if byte in shown else next(hidden)) for byte in range(256)]


def call(shell, command):
    return f'<tool_call>\n{json.dumps({"name": shell, "arguments": {SHELLS[shell]: command}})}\n</tool_call>'


def write(folder):
    cues = {"<|pong|>": "pong", "<|thought|>": "<think>\nWhat is there to say?\n</think>\n\npong"}
    for shell in SHELLS:
        for step, command in enumerate((FIRST, SECOND)):
            cues[f"<|{shell}-{step}|>"] = call(shell, command)
    special = ["<|im_start|>", "<|im_end|>", "<|endoftext|>", *cues]
    added = special + list(cues.values())
    ids = {text: 256 + index for index, text in enumerate(added)}
    tokens = 256 + len(added)
    assert tokens <= HIDDEN
    end = ids["<|im_end|>"]
    following = {ids[cue]: ids[line] for cue, line in cues.items()}

    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    files = {
        "tokenizer.json": {
            "version": "1.0", "truncation": None, "padding": None, "normalizer": None, "post_processor": None,
            "pre_tokenizer": byte_level, "decoder": byte_level,
            "added_tokens": [{"id": ids[text], "content": text, "single_word": False, "lstrip": False,
                              "rstrip": False, "normalized": False, "special": text in special} for text in added],
            "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                      "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
                      "vocab": {letter: byte for byte, letter in enumerate(byte_letters())}, "merges": []}},
        "tokenizer_config.json": {"eos_token": "<|im_end|>",
                                  "chat_template": TEMPLATE.replace("SHELLS", json.dumps(list(SHELLS)))},
        "generation_config.json": {"eos_token_id": [end, ids["<|endoftext|>"]]},
        "config.json": {
            "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": HIDDEN,
            "intermediate_size": HEAD, "num_hidden_layers": 1, "num_attention_heads": HIDDEN // HEAD,
            "num_key_value_heads": 1, "head_dim": HEAD, "vocab_size": tokens, "rms_norm_eps": 1e-5,
            "hidden_act": "silu", "max_position_embeddings": POSITIONS, "rope_theta": 1e4,
            "torch_dtype": "bfloat16", "tie_word_embeddings": False, "eos_token_id": end}}
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))
    write_weights(folder / "model.safetensors", tokens, lambda token: following.get(token, end))


def write_weights(file, tokens, next_of):
    """Attention and the feed-forward layer add nothing; a token is one unit, the output its next."""
    layer = "model.layers.0."
    ones = {(index,): 1.0 for index in range(HIDDEN)}
    tensors = {
        "model.embed_tokens.weight": ((tokens, HIDDEN), {(token, token): 1.0 for token in range(tokens)}),
        "lm_head.weight": ((tokens, HIDDEN), {(next_of(token), token): 4.0 for token in range(tokens)}),
        "model.norm.weight": ((HIDDEN,), ones),
        layer + "input_layernorm.weight": ((HIDDEN,), ones),
        layer + "post_attention_layernorm.weight": ((HIDDEN,), ones)}
    for name, shape in {"self_attn.q_proj": (HIDDEN, HIDDEN), "self_attn.k_proj": (HEAD, HIDDEN),
                        "self_attn.v_proj": (HEAD, HIDDEN), "self_attn.o_proj": (HIDDEN, HIDDEN),
                        "mlp.gate_proj": (HEAD, HIDDEN), "mlp.up_proj": (HEAD, HIDDEN),
                        "mlp.down_proj": (HIDDEN, HEAD)}.items():
        tensors[f"{layer}{name}.weight"] = (shape, {})
    head, data = {}, bytearray()
    for name, (shape, values) in tensors.items():
        width = shape[1] if len(shape) > 1 else 1
        numbers = bytearray(2 * shape[0] * width)
        for at, value in values.items():
            place = at[0] * width + (at[1] if len(at) > 1 else 0)
            numbers[2 * place:2 * place + 2] = struct.pack("<f", value)[2:]  # bf16
        head[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [len(data), len(data) + len(numbers)]}
        data += numbers
    text = json.dumps(head).encode()
    file.write_bytes(struct.pack("<Q", len(text)) + text + data)


if __name__ == "__main__":
    write(pathlib.Path(sys.argv[1]))
