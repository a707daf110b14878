"""Whether a text is what a schema describes: by jsonschema, and by a constraint."""

from __future__ import annotations

import decimal
import itertools
import json
import re
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

from jsonschema import Draft202012Validator, FormatChecker, TypeChecker
from jsonschema.validators import extend

from dendrite import Branch, Error

ORDERS = 1500  # of objects' members that are tried: a constraint wants the schema's

decimal.getcontext().prec = 1000  # numbers are compared as they are written


def _exact(text: str) -> Decimal:
    try:
        return Decimal(text)
    except decimal.InvalidOperation:  # an exponent of more than 18 digits
        return Decimal("Infinity")


def _is_number(_: TypeChecker, value: Any) -> bool:
    return isinstance(value, (int, Decimal)) and not isinstance(value, bool)


def _is_integer(checker: TypeChecker, value: Any) -> bool:
    if isinstance(value, Decimal):
        return value.is_finite() and value == value.to_integral_value()
    return _is_number(checker, value)


_Validator: Any = extend(
    Draft202012Validator,
    type_checker=Draft202012Validator.TYPE_CHECKER.redefine_many(
        {"number": _is_number, "integer": _is_integer}
    ),
)
_formats = FormatChecker()
_formats.checkers = dict(Draft202012Validator.FORMAT_CHECKER.checkers)  # type: ignore[misc]


def _as_of_a_common_year(text: str) -> str:
    """Formats are regular: they know neither leap years nor when there are leap seconds."""
    return re.sub(":60", ":59", re.sub("-02-29", "-02-28", text))


for _name in ("date", "date-time", "time"):

    def _check(value: object, _plain: Any = _formats.checkers[_name][0]) -> bool:
        return not isinstance(value, str) or _plain(_as_of_a_common_year(value))

    _formats.checkers[_name] = (_check, ValueError)


def problem(schema: Any, text: str) -> str:
    """Why `text` is not valid; empty: it is."""
    try:
        value = json.loads(text, parse_float=_exact)
    except ValueError as error:
        return f"not JSON: {error}"
    exact = json.loads(json.dumps(schema), parse_float=_exact)
    errors = _Validator(exact, format_checker=_formats).iter_errors(value)
    return "; ".join(error.message for error in errors)


def orders(value: Any) -> Iterator[Any]:
    """The same value with its objects' members in every order."""
    if isinstance(value, list):
        yield from map(list, itertools.product(*(list(orders(element)) for element in value)))
    elif isinstance(value, dict):
        for keys in itertools.permutations(value):
            for members in itertools.product(*(list(orders(value[key])) for key in keys)):
                yield dict(zip(keys, members, strict=True))
    else:
        yield value


def accepts(start: Branch, value: Any) -> bool:
    """Whether a branch, under a constraint, takes the value as its whole text."""
    for ordered in itertools.islice(orders(value), ORDERS):
        with start.fork() as branch:
            try:
                branch.append(json.dumps(ordered, separators=(",", ":"), ensure_ascii=False))
            except Error:
                continue
            if branch.is_accepted:
                return True
    return False
