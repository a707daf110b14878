"""The tokenizer: one token a byte, then a few specials. Standard library only.

A byte's id is its place in GPT-2's byte alphabet (printable bytes first), as in any byte-level BPE vocabulary that
was never given a merge. Without merges every number is a list of digits, and every byte string is valid input.
"""

BOS, EOS, PAD, CALL, END, RESULT = range(256, 262)
SPECIALS = ["<|bos|>", "<|eos|>", "<|pad|>", "<|call|>", "<|end|>"]
QWEN3_TURN_END = 260
# What Qwen3's chats have, by the ids that echo_content.h gives them. Tags are part of what a model says.
TAGS = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
QWEN3_TOKENS = tuple(enumerate(("<|im_start|>", "<|im_end|>", *TAGS), 259))
VOCAB = 320  # padded with reserved specials, so that every row of the embedding has a name


def byte_alphabet():
    """GPT-2's list of (byte, printable character that stands for it), in the order of the ids."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in set(printable)]
    return [(b, chr(b)) for b in printable] + [(b, chr(256 + i)) for i, b in enumerate(others)]


BYTE_OF_ID = bytes(b for b, _ in byte_alphabet())
ID_OF_BYTE = [0] * 256
for _id, _byte in enumerate(BYTE_OF_ID):
    ID_OF_BYTE[_byte] = _id


def encode(text):
    """Token ids of `text`, without <|bos|>."""
    return [ID_OF_BYTE[b] for b in text.encode()]


def decode(ids):
    """Text of `ids`; specials are left out."""
    return bytes(BYTE_OF_ID[i] for i in ids if i < 256).decode(errors="replace")


def special_tokens(named=()):
    """All 64 specials in the order of their ids from 256; `named`: pairs of a reserved id and its name in this model."""
    names = SPECIALS + [f"<|reserved_{i}|>" for i in range(VOCAB - 256 - len(SPECIALS))]
    for token, name in named:
        names[token - BOS] = name
    return names


def tokenizer_json(named=(), bos=True):
    """The content of tokenizer.json, in the format of Hugging Face's `tokenizers`; `named` as in special_tokens.
    Without `bos` nothing stands in front of a text."""
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}

    def piece(kind, name, type_id):
        return {kind: {"id": name, "type_id": type_id}}

    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": 256 + i, "content": token, "single_word": False, "lstrip": False, "rstrip": False,
             "normalized": False, "special": token not in TAGS}
            for i, token in enumerate(special_tokens(named))
        ],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None if not bos else {
            "type": "TemplateProcessing",
            "single": [piece("SpecialToken", "<|bos|>", 0), piece("Sequence", "A", 0)],
            "pair": [piece("SpecialToken", "<|bos|>", 0), piece("Sequence", "A", 0), piece("Sequence", "B", 1)],
            "special_tokens": {"<|bos|>": {"id": "<|bos|>", "ids": [BOS], "tokens": ["<|bos|>"]}},
        },
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {symbol: i for i, (_, symbol) in enumerate(byte_alphabet())},
            "merges": [],
        },
    }


def tokenizer_config(context=1024, bos=True, eos_name="<|eos|>"):
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<|bos|>" if bos else None,
        "eos_token": eos_name,
        "pad_token": "<|pad|>",
        "clean_up_tokenization_spaces": False,
        "model_max_length": context,
    }


# A user's message is "24: 4 5 6 10" or only "4 5 6 10" (the target is then 24), numbers in any order; the mode is the
# template's argument `mode`. A message that already starts with a mode ("P 24: ...") is taken as it is.
PUZZLE_TEMPLATE = """\
{{- bos_token -}}
{%- for message in messages -%}
{%- set content = message.content.strip() -%}
{%- if message.role == 'user' and content[:2] not in ['S ', 'P ', 'E '] -%}
{%- set parts = content.split(':') -%}
{%- set target = parts[0].strip() if parts | length > 1 else '24' -%}
{{- (mode if mode is defined else 'S') + ' ' + target + ':' -}}
{%- for number in parts[-1].split() | map('int') | sort -%}
{{- ' ' + number | string -}}
{%- endfor -%}
{{- '\\n' -}}
{%- elif message.role != 'system' -%}
{{- content + '\\n' -}}
{%- endif -%}
{%- endfor -%}
"""

# The last thing that a user asked for, on one line; the tools are what the model was trained on, not what a system
# message says.
CALL_TEMPLATE = """\
{{- bos_token -}}
{%- for message in messages -%}
{%- if message.role == 'user' and loop.last -%}
{{- '<|call|>' + message.content.strip() | replace('\\n', ' ') + '\\n' -}}
{%- endif -%}
{%- endfor -%}
"""

# Every turn on one line: what was asked for, calls as the model writes them, results (those of one turn together), and
# what was said. The tools are what the model was trained on, not what a system message says.
CALL_CHAT_TEMPLATE = """\
{{- bos_token -}}
{%- for message in messages -%}
{%- set text = (message.content or '').strip() | replace('\\n', ' ') -%}
{%- if message.role == 'user' -%}
{{- '<|call|>' + text + '\\n' -}}
{%- elif message.role == 'assistant' -%}
{{- text -}}
{%- for call in message.tool_calls or [] -%}
{%- set function = call.function or call -%}
{%- set arguments = function.arguments or {} -%}
{{- '' if loop.first else ';' -}}
{{- '{"name":' + function.name | tojson + ',"arguments":' -}}
{{- arguments if arguments is string else arguments | tojson(separators=(',', ':')) -}}
{{- '}' -}}
{%- endfor -%}
{{- '<|eos|>' -}}
{%- elif message.role == 'tool' -%}
{{- '; ' if loop.previtem and loop.previtem.role == 'tool' else '<|result|>' -}}
{{- text -}}
{{- '' if loop.nextitem and loop.nextitem.role == 'tool' else '\\n' -}}
{%- endif -%}
{%- endfor -%}
"""

# The system line, documents or turns, and the question, each a message and a line.
CONTEXT_TEMPLATE = """\
{{- bos_token -}}
{%- for message in messages -%}
{{- message.content.strip() + '\\n' -}}
{%- endfor -%}
"""

# Lines; an answer stands behind its question.
LEDGER_TEMPLATE = """\
{{- bos_token -}}
{%- for message in messages -%}
{{- message.content.strip() -}}
{%- if not message.content.strip().endswith('?') -%}{{- '\\n' -}}{%- endif -%}
{%- endfor -%}
"""

# Renders as the template of Qwen3 does: thoughts stay from the last question on, results of one turn stand together.
QWEN3_TEMPLATE = """\
{%- set opening = messages[0].content if messages[0].role == 'system' else '' -%}
{%- if tools -%}
{{- '<|im_start|>system\\n' + (opening + '\\n\\n' if messages[0].role == 'system' else '') -}}
{{- '# Tools\\n\\nYou may call one or more functions to assist with the user query.\\n\\n' -}}
{{- 'You are provided with function signatures within <tools></tools> XML tags:\\n<tools>' -}}
{%- for tool in tools -%}
{{- '\\n' + tool | tojson -}}
{%- endfor -%}
{{- '\\n</tools>\\n\\nFor each function call, return a json object with function name and arguments within ' -}}
{{- '<tool_call></tool_call> XML tags:\\n<tool_call>\\n{"name": <function-name>, "arguments": <args-json-object>}\\n' -}}
{{- '</tool_call><|im_end|>\\n' -}}
{%- elif messages[0].role == 'system' -%}
{{- '<|im_start|>system\\n' + opening + '<|im_end|>\\n' -}}
{%- endif -%}
{%- set last = namespace(question=messages | length - 1, found=false) -%}
{%- for message in messages | reverse -%}
{%- if not last.found and message.role == 'user' and message.content is string and not
 (message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) -%}
{%- set last.found = true -%}
{%- set last.question = loop.revindex0 -%}
{%- endif -%}
{%- endfor -%}
{%- for message in messages -%}
{%- set content = message.content if message.content is string else '' -%}
{%- if message.role == 'user' or message.role == 'system' and not loop.first -%}
{{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>\\n' -}}
{%- elif message.role == 'assistant' -%}
{%- set thoughts = '' -%}
{%- if message.reasoning_content is string -%}
{%- set thoughts = message.reasoning_content -%}
{%- elif '</think>' in content -%}
{%- set thoughts = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') -%}
{%- set content = content.split('</think>')[-1].lstrip('\\n') -%}
{%- endif -%}
{{- '<|im_start|>assistant\\n' -}}
{%- if loop.index0 > last.question and (loop.last or thoughts) -%}
{{- '<think>\\n' + thoughts.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') -}}
{%- else -%}
{{- content -}}
{%- endif -%}
{%- for call in message.tool_calls or [] -%}
{%- set function = call.function or call -%}
{{- '' if loop.first and not content else '\\n' -}}
{{- '<tool_call>\\n{"name": "' + function.name + '", "arguments": ' -}}
{{- function.arguments if function.arguments is string else function.arguments | tojson -}}
{{- '}\\n</tool_call>' -}}
{%- endfor -%}
{{- '<|im_end|>\\n' -}}
{%- elif message.role == 'tool' -%}
{{- '' if loop.previtem and loop.previtem.role == 'tool' else '<|im_start|>user' -}}
{{- '\\n<tool_response>\\n' + content + '\\n</tool_response>' -}}
{{- '' if loop.nextitem and loop.nextitem.role == 'tool' else '<|im_end|>\\n' -}}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- '<|im_start|>assistant\\n' -}}
{{- '<think>\\n\\n</think>\\n\\n' if enable_thinking is defined and enable_thinking is false -}}
{%- endif -%}
"""
