"""Writes tests/data/text/jinja.json: what jinja2 makes of small templates, as transformers runs it.

    python3 tools/golden/text/jinja.py     (jinja2 3.1.6)
"""

import json
from pathlib import Path
from typing import Any

from jinja2.exceptions import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

CONTEXT = {
    "text": "a<b",
    "lines": "a\nb\n\nc\n",
    "words": "The quick brown fox jumps",
    "letters": "abcdefghijklmnopqrstuvwxyz",
    "items": [3, 1, 2],
    "names": ["b", "A", "c"],
    "rows": [{"k": "x", "v": 1}, {"k": "y", "v": 2}, {"k": "x", "v": 3}],
    "map": {"b": 1, "a": [1, 2]},
    "big": 123456789012345678901,
    "huge": 10**40 + 7,
    "least": -(10**40),
    "edge": 2**64,
    "fraction": 2.5,
}

TEMPLATES = r"""
{{ '"x" '|safe + text }}
{{ text + '<'|safe }}
{{ '<'|safe ~ text }}
{{ text|e ~ text }}
{{ text|e|e }}
{{ text|escape|string|e }}
{{ text|e|safe|e }}
{{ text|e|upper }}
{{ text|safe }}
{{ (text|e)|length }}
{{ 1 + 2 }} {{ items + [4] }} {{ 'a' + 'b' }}
{{ 1|e + text }}
{% for c in text %}{{ c }}{{ ',' if not loop.last }}{% endfor %}
{% for c in 'héllo' if c != 'l' %}{{ loop.index }}{{ c }}{{ loop.length }}{% endfor %}
{% for c in '' %}x{% else %}empty{% endfor %}
{% for a, b in map.items() %}{{ a }}={{ b }};{{ loop.last }}{% endfor %}
{% for x in items recursive %}{{ x }}{{ loop.last }}{% endfor %}
{% for x in (items if items else []) if x > 1 %}{{ x }}{% endfor %}
{% for x in 1, 2 %}{{ x }}{% endfor %}
{{ lines|indent(2) }}|
{{ lines|indent }}|
{{ lines|indent(2, true) }}|
{{ lines|indent(2, blank=true) }}|
{{ lines|indent(width='> ') }}|
{{ lines|indent(2, first=true, blank=true) }}|
{{ ''|indent(2) }}|
{{ 'a'|indent(2, true) }}|
{{ big|tojson }}
{{ huge|tojson }} {{ least|tojson }} {{ edge|tojson }}
{{ big }} {{ huge }} {{ least }}
{{ {'x': [big, huge]}|tojson }}
{{ [big, huge] }}
{{ huge is number }} {{ huge is integer }}
{% macro m(a, b=a) %}{{ a }}{{ b }}{% endmacro %}{{ m(1) }}
{% macro m(a, b=a, c=b) %}{{ a }}{{ b }}{{ c }}{% endmacro %}{{ m(1) }}{{ m(1, 2) }}{{ m(1, c=3) }}
{% macro m(a, b=a ~ 'x', c=[a, b]|join(',')) -%} {{ b }}{{ c }}{%- endmacro %}{{ m(1) }}
{% macro m(a='(', b=",") %}{{ a }}{{ b }}{% endmacro %}{{ m() }}{{ m(b=none) }}
{{ '%s=%d' % ('x', 3) }}
{{ '%s' % 'x' }} {{ '%5.2f|%-5s|%05d|%x|%%' % (2.5, 'a', 42, 255) }}
{{ '%s' % text }}{{ '%r' % text }}
{{ '%(a)s' % {'a': 1} }}
{{ 7 % 3 }} {{ -7 % 3 }} {{ 7.5 % 2 }}
{{ '%s and %s'|format('a', 2) }}
{{ letters|truncate(9) }}
{{ letters|truncate(9, true) }}
{{ words|truncate(12) }}
{{ words|truncate(12, false, '') }}
{{ words|truncate(12, end='…', leeway=0) }}
{{ words|truncate(22) }}
{{ words|truncate }}
{{ 'abc'|center(9) }}|
{{ words|wordcount }}
{{ words|title }} {{ "it's o'neil-x"|title }}
{{ 'hELLO wORLD'|capitalize }}
{{ items|sort }} {{ names|sort }} {{ names|sort(case_sensitive=true) }} {{ items|sort(reverse=true) }}
{{ rows|map(attribute='v')|sum }} {{ items|sum(start=10) }}
{{ rows|sum(attribute='v') }}
{{ rows|groupby('k')|list|length }}
{% for k, g in rows|groupby('k') %}{{ k }}:{{ g|map(attribute='v')|join(',') }};{% endfor %}
{{ rows|selectattr('k', 'equalto', 'x')|map(attribute='v')|list }}
{{ rows|rejectattr('k', 'eq', 'x')|list }}
{{ items|batch(2)|list }} {{ items|batch(2, 0)|list }}
{{ items|slice(2)|list }}
{{ 2.5|round }} {{ 3.5|round }} {{ 2.567|round(2) }} {{ 2.1|round(0, 'ceil') }} {{ 7|round }}
{{ '12'|int }} {{ 'x'|int(7) }} {{ '0x1f'|int(0, 16) }} {{ 3.9|int }} {{ '3.9'|int }} {{ ' 5 '|int }}
{{ '1.5'|float }} {{ 'x'|float }} {{ 3|float }}
{{ items|first }} {{ items|last }} {{ items|min }} {{ items|max }} {{ items|unique|list }}
{{ ['a', 'A', 'b']|unique|list }}
{{ letters[-3:] }} {{ letters[::5] }} {{ letters[::-1] }} {{ items[-1] }} {{ items[::-1] }} {{ letters[2:-20] }}
{{ items[1:] }} {{ items[:-1] }} {{ letters[5] }}
{{ map|dictsort }} {{ map|items|list }} {{ map.keys()|list }}
{{ map.get('zz') }} {{ map.get('zz', 5) }} {{ map['b'] }} {{ map.b }}
{{ 'a,b,c'.split(',') }} {{ 'a b'.split() }} {{ 'abc'.startswith('a') }} {{ 'abc'.endswith(('c', 'x')) }}
{{ 'Abc'.swapcase() }} {{ 'abc'.upper() }} {{ 'a-b'.replace('-', '+') }} {{ 'abc'.find('c') }}
{{ 'x'.join(['a', 'b']) }} {{ 'abc'.rjust(5) }}|{{ 'abc'.ljust(5) }}|{{ '7'.zfill(3) }}|{{ 'a'.center(5) }}|
{{ '{} {}'.format('a', 1) }} {{ '{0}-{x}'.format('a', x=2) }} {{ '{:>5}'.format('a') }}
{{ 'abc'.isdigit() }} {{ '12'.isdigit() }} {{ 'abc'.isalpha() }} {{ 'abc'.count('b') }} {{ 'a b'.title() }}
{{ none is none }} {{ 1 is odd }} {{ 2 is even }} {{ 6 is divisibleby(3) }} {{ 'a' is string }} {{ {} is mapping }}
{{ 1 is sameas(1) }} {{ 'a' is lower }} {{ true is boolean }} {{ 1.5 is float }} {{ 1 in items }} {{ 9 not in items }}
{{ 1 / 2 }} {{ 7 // 2 }} {{ -7 // 2 }} {{ 2 ** 10 }} {{ 4 / 2 }} {{ 2 ** -1 }}
{{ [1, 'a', none, true, 1.0, {'k': 'v'}, (1,)] }}
{{ 'a' ~ 1 ~ none ~ true ~ 1.0 }}
{{ "a'b" ~ ['a"b', "a'b", '\\n'] }}
{% set ns = namespace(x=1) %}{% for i in items %}{% set ns.x = ns.x + i %}{% endfor %}{{ ns.x }}
{{ range(3)|list }} {{ range(1, 10, 3)|list }}
{{ items|join(', ') }} {{ rows|join(',', attribute='v') }} {{ names|join }}
{{ text|replace('<', '>') }} {{ 'aaa'|replace('a', 'b', 2) }} {{ text|reverse }} {{ items|reverse|list }}
{{ map|length }} {{ text|count }} {{ text|list }}
{{ '  x '|trim }}| {{ 'xax'|trim('x') }} {{ text|upper }} {{ 'ABC'|lower }}
{{ nothing|default('d') }} {{ ''|default('d', true) }} {{ none|default('d') }} {{ nothing }}|
{{ 5|abs }} {{ -5|abs }} {{ items|string }} {{ true|string }} {{ 1e20 }} {{ 1e-7 }}
{{ {'a': [1, {}], 'b': []}|tojson(indent=2) }}
{{ ('a' 'b') }} {{ 'x' if false }}| {{ not 1 }} {{ 1 if 2 > 1 else 3 }} {{ 1 < 2 < 3 }}
{{ {'a': 1, 'b': 2}|urlencode }} {{ 'a b/ü'|urlencode }}
{{ items|map('string')|join('-') }} {{ names|map('upper')|list }} {{ items|select('odd')|list }} {{ items|reject('odd')|list }}
{% filter upper %}abc{% endfilter %} {% set x %}a<b{% endset %}{{ x }}
{% raw %}{{ x }}{% endraw %} {% if 1 %}{% break_ %}{% endif %}
{{ 'a\tb\u00e9' }} {{ 'a' < 'b' }} {{ [1, 2] < [1, 3] }} {{ 1 == 1.0 }} {{ true + 1 }} {{ 'ab' * 2 }} {{ [0] * 2 }}
{{ items|length > 2 and 'yes' or 'no' }} {{ cycler('a', 'b').next() }} {{ joiner(',')() }}|
{{ dict(a=1) }} {{ items.index(1) }} {{ items.count(3) }}
{% for x in items %}{{ loop.cycle('o', 'e') }}{{ loop.previtem }}{{ loop.nextitem }}{{ loop.revindex }} {% endfor %}
{% for x in items %}{% if loop.first %}{% continue %}{% endif %}{{ x }}{% break %}{% endfor %}
{% macro m() %}{{ caller() }}!{% endmacro %}{% call m() %}x{% endcall %} {% macro v() %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ v(1, k=2) }}
""".strip().split("\n")


def tojson(
    x: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """The filter of transformers."""
    return json.dumps(
        x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def rendered(template: str) -> str | None:
    """None: it fails."""
    env = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    env.filters["tojson"] = tojson
    try:
        return env.from_string(template).render(**CONTEXT)
    except (TemplateError, TypeError, ValueError):
        return None


def main() -> None:
    cases = [{"template": text, "text": rendered(text)} for text in TEMPLATES]
    out = Path(__file__).parents[3] / "tests/data/text/jinja.json"
    with out.open("w") as file:
        json.dump({"context": CONTEXT, "cases": cases}, file, ensure_ascii=False, indent=1)
        file.write("\n")


if __name__ == "__main__":
    main()
