"""Own text to train tiny tokenizers on, and texts to encode with them. Everything is seeded."""

import random

PROSE = """\
A search tree is a book that nobody reads from the first page to the last. The reader opens it in the middle,
goes back two leaves, tears one out, and reads three endings at once. It's what they'd call a waste of paper,
if paper weren't shared: every page that two readers have in common is printed once.

The branch that looked best at noon is pruned at dusk; we'll keep its number, and I'm told that's enough.
"Don't count the leaves," said the gardener, "count what you'd lose if the wind took them." They've counted
anyway: 4 9 10 13, then 24; 1,048,576 pages of 16 tokens; 3.14159 and 2,71828; in 1999, 2024 and 20261.

def fork(branch, n):
    for i in range(n):
        yield branch.clone(stream=hash((branch.stream, i)))  # O(1)

int main(int argc, char** argv) { return argc > 1 ? run(argv[1]) : 0; }
{"name": "get_weather", "arguments": {"city": "Köln", "days": 3}}

Ein Baum, viele Äste: die Wörter größer, über und straße. L'été, la forêt où l'on s'égare; déjà vu, naïve.
El niño pequeño mañana. Žluťoučký kůň. Привет, мир! Дерево растёт. Γειά σου Κόσμε. שלום עולם. مرحبا بالعالم.
こんにちは世界。 木が育つ。 你好，世界！树在生长。 안녕하세요 세계. नमस्ते दुनिया। สวัสดีชาวโลก
🙂 🌳 👩‍👩‍👧‍👦 🇫🇷 é (e + ◌́) ﬁ ½ ² Ⅷ ™ … – — “quotes” ‘single’ \t tab and  two  spaces.
"""

SUBJECTS = ["the tree", "a branch", "the page", "every token", "our gardener", "one reader", "the search", "that leaf"]
VERBS = ["shares", "forks", "copies", "prunes", "keeps", "reads", "forgets", "counts", "isn't", "can't hold"]
OBJECTS = ["its pages", "the prefix", "two endings", "10 numbers", "another path", "what we'll need", "24 leaves", "nothing"]


def training_text(repeats=400):
    rng = random.Random(7)
    lines = PROSE.splitlines(keepends=True) * 3
    for _ in range(repeats):
        lines.append(f"{rng.choice(SUBJECTS).capitalize()} {rng.choice(VERBS)} {rng.choice(OBJECTS)}"
                     f"{rng.choice(['.', '!', '?', ';', ','])} {rng.randrange(10 ** rng.randrange(1, 6))}\n")
    return lines


HAND = [
    "", " ", "  ", "\n", "\r\n", "\n\n", " \n ", "\t", "a", " a", "a ", "  a  ", "A", "Hello world", "Hello  world", "Hello   world  ",
    " leading", "trailing ", "\nline", "line\n", "line\n\nline\n\n\nline", "line\r\nline\r\n", "\r\r\n\n\r", "a\u00a0b\u2003c\u3000d",
    "I'm you're we've they'll she'd it's don't", "I'M YOU'RE WE'VE THEY'LL SHE'D IT'S DON'T", "'s 't 're x's' ''s", "it\u2019s",
    "1", "12", "123", "1234", "12345", "123456", "1234567 89", "3.14159", "1,048,576", "0x1F", "v1.2.3-rc4", "10-4=6", "(10-4)*(13-9)=24",
    "٣٤٥٦", "²³¹ ½ Ⅷ", "1 2 3 4", "4 9 10 13", "1\n2\n3", "a1b22c333d4444",
    "Köln straße naïve déjà vu", "e\u0301 E\u0301 o\u0308 \u00e9", "\u1112\u1161\u11ab", "\ud55c", "A\u030a \u00c5 \u212b", "ﬁ ﬂ ſ", "n\u0303o",
    "a\u0300\u0301\u0302\u0303 zalgo", "\u0301", " \u0301", "क्षि नमस्ते", "ก็สวัสดี", "שָׁלוֹם", "مرحبًا", "こんにちは世界", "你好，世界！", "안녕하세요",
    "🙂", "🌳🌲🌴", "👩‍👩‍👧‍👦", "🇫🇷🇩🇪", "👍🏽", "❤️", "🙂a🙂 🙂", "\U0001f9d1\u200d\U0001f680", "𝔘𝔫𝔦", "\U0010ffff", "\ufeffbom", "a\u200bb\u200dc", "\u00ad",
    "\x00", "a\x00b", "\x01\x02\x1f\x7f", "\u0085\u2028\u2029", "\ue000", "\ufffd", "\ufffd\ufffd x",
    "def f(x):\n    return x + 1\n", "for (;;) {\n\t\tbreak;\n\t}", "a=b==c!=d<=e>=f&&g||h", "{{}}[]()<>/\\|~`@#$%^&*_+-=", "...", "....", "?!?!", "--- ---", "-- - -",
    "http://example.org/a?b=c&d=e#f", "foo@bar.com", "C:\\dir\\file", "\"quoted\" 'single' `code`", "<b>bold</b>", "<0x0A>", "<0x41><0xZZ>", "<unk>",
    "▁", " ▁ ▁▁", "Ġ Ċ ĉ", "the the the", "thethethe", "THE The the tHE", "a.b.c", "word,word;word:word", "   \n   x", "x   \n   ", "\n \n \n", " \t \t ", "tab\tsep\tvalues",
    "<s>", "</s>", "<s>hello</s>", "a <s> b", "<|endoftext|>", "x<|endoftext|>y", "<|im_start|>user\nhi<|im_end|>\n", "<|im_start|> <|im_end|>", "<|im_start", "|im_end|>",
    "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nhi<|eot_id|>", "<bos>", "<start_of_turn>user\nhi<end_of_turn>\n", "<think>\nhm\n</think>\n\n4", "a<think>b",
    "[INST] hi [/INST]", "<tool_call>\n{\"name\": \"f\"}\n</tool_call>", "<pad><pad>", "<mask> x", "x  <mask>  y", "[CLS] a [SEP]", "<extra>y", " <extra> y",
    "a" * 40, "ab" * 30, "ha" * 25 + "!", " " * 33 + "x", "\n" * 17, "=" * 50, "9" * 37, "é" * 20, "🙂" * 9, "- " * 20, "x\u0301" * 15,
    "The tree shares its pages. A branch can't hold 24 leaves!", "Numbers: 4 9 10 13\n", "Every token forks; 10 numbers, 2,71828 and nothing.",
]

PIECES = [
    " ", "  ", "   ", "\n", "\n\n", "\r\n", "\t", "a", "the", " the", "Tree", "'s", "'LL", "n't", "1", "23", "456", "7890", ".", ",", "!", "?", "...", "-", "_", "(", ")", "\"", "'",
    "é", "e\u0301", "ß", "ñ", "你", "好", "こ", "안", "ש", "د", "🙂", "👩‍👧", "🇫🇷", "\u0301", "\u200d", "\ufe0f", "▁", "<0x0A>", "<s>", "</s>", "<|im_end|>", "<|eot_id|>",
    "<think>", "<bos>", "<end_of_turn>", "<|endoftext|>", "<extra>", "\u00a0", "\x00", "\u2028", "Ġ", "ſ", "½", "٣", "\U0010ffff", "straße", "WORLD", "fork(", "{\"a\": 1}",
]


def golden_texts(total=215):
    rng = random.Random(11)
    texts = list(HAND)
    while len(texts) < total:
        texts.append("".join(rng.choice(PIECES) for _ in range(rng.randrange(2, 16))))
    return texts
