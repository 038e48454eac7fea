"""A small part of SQL over Arrow, with Spark's results: what filters and sums mostly are made of.

Columns, numbers, texts in single quotes, TRUE and FALSE; comparisons, AND, OR, NOT, IS NULL, IN,
BETWEEN; casts that lose nothing; and + - * where one side is a double. Whatever is written or typed
differently is refused (`Unsupported`), and Spark does it. What looks alike and is not:

- NaN is equal to itself, and greater than every other number.
- Numbers of different types are compared only where both become one type without loss, or where
  Spark, too, makes doubles of them.
- Integers are not added: Spark fails when they overflow, and so it would have to be here.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.types as kinds

from holdfast.quiver.base import compute as pc

# An array, or a scalar; Arrow has no types for type checkers.
Value = Any
# Returns a column by its name.
ColumnOf = Callable[[str], pa.Array]


class Unsupported(Exception):
    """An expression is not of the part of SQL that is understood here."""


class SqlExpression(NamedTuple):
    """An expression that was understood."""

    names: frozenset[str]
    # Which of the literals it is, if it is one.
    literal: pa.Scalar | None
    evaluate: Callable[[ColumnOf], Value]

    def column(self, columns: ColumnOf, rows: int) -> pa.Array:
        """Return its values over some rows."""
        value = self.evaluate(columns)
        return pa.repeat(value, rows) if isinstance(value, pa.Scalar) else value


_TOKEN = re.compile(
    r"\s*(?:(?P<number>\d+(?:\.\d+)?)(?![\w.])|(?P<text>'[^'\\]*')(?!\s*')"
    r"|(?P<name>[A-Za-z_]\w*|`[^`]+`)|(?P<sign><=>|<=|>=|<>|!=|==|[-+*(),<>=]))"
)
_WORDS = {"and", "or", "not", "is", "null", "in", "between", "true", "false", "as"}
# Words that are no columns where Spark reads them as something else.
_RESERVED = _WORDS | {"case", "when", "then", "else", "end", "like", "rlike", "interval", "exists"}
_RESERVED |= {"distinct", "date", "timestamp", "current_date", "current_timestamp", "current_user"}
_RESERVED |= {"user", "div"}
_INT_MAX, _BIGINT_MAX = 2**31 - 1, 2**63 - 1
_CASTS = {
    "int": pa.int32(),
    "integer": pa.int32(),
    "bigint": pa.int64(),
    "long": pa.int64(),
    "double": pa.float64(),
}


@functools.lru_cache(256)
def parse(text: str) -> SqlExpression:
    """Return an expression; raise `Unsupported` if not all of it is understood."""
    parser = _SqlParser(tuple(_tokens(text)))
    found = parser.either()
    if parser.peek() != "":
        raise Unsupported(f"{parser.peek()!r} in {text!r}")
    return found


def _tokens(text: str) -> Iterator[str]:
    place = 0
    while place < len(text.rstrip()):
        found = _TOKEN.match(text, place)
        if found is None:
            raise Unsupported(f"{text[place:].strip()[:20]!r} in {text!r}")
        place = found.end()
        yield found.group().strip()


class _SqlParser:
    """Reads tokens from left to right; each method reads what binds closer than the one before."""

    def __init__(self, tokens: tuple[str, ...]) -> None:
        self._tokens = tokens
        self._place = 0

    def peek(self) -> str:
        """Return the next token, words in small letters; "" at the end."""
        if self._place == len(self._tokens):
            return ""
        token = self._tokens[self._place]
        return token.lower() if token.lower() in _RESERVED else token

    def _next(self) -> str:
        token = self.peek()
        self._place += 1
        return token

    def _takes(self, *tokens: str) -> bool:
        if self.peek() in tokens:
            self._place += 1
            return True
        return False

    def _expect(self, token: str) -> None:
        if not self._takes(token):
            raise Unsupported(f"{self.peek()!r} where {token!r} was expected")

    def either(self) -> SqlExpression:
        found = self._both()
        while self._takes("or"):
            found = _logic(pc.or_kleene, found, self._both())
        return found

    def _both(self) -> SqlExpression:
        found = self._not()
        while self._takes("and"):
            found = _logic(pc.and_kleene, found, self._not())
        return found

    def _not(self) -> SqlExpression:
        if self._takes("not"):
            return _logic(pc.invert, self._not())
        return self._predicate()

    def _predicate(self) -> SqlExpression:
        left = self._sum()
        sign = self.peek()
        if sign in _COMPARISONS:
            self._next()
            return _compared(sign, left, self._sum())
        if self._takes("is"):
            is_not = self._takes("not")
            self._expect("null")
            tested = pc.is_valid if is_not else pc.is_null
            return _made((left,), tested)
        is_not = self._takes("not")
        if self._takes("in"):
            found = self._among(left)
        elif self._takes("between"):
            low = self._sum()
            self._expect("and")
            high = self._sum()
            found = _logic(pc.and_kleene, _compared(">=", left, low), _compared("<=", left, high))
        elif is_not:
            raise Unsupported(f"{self.peek()!r} behind NOT")
        else:
            return left
        return _logic(pc.invert, found) if is_not else found

    def _among(self, left: SqlExpression) -> SqlExpression:
        self._expect("(")
        wanted = [self._sum()]
        while self._takes(","):
            wanted.append(self._sum())
        self._expect(")")
        if any(one.literal is None for one in wanted):
            raise Unsupported("IN with something else than literals")
        tests = [_compared("=", left, one) for one in wanted]
        return functools.reduce(lambda a, b: _logic(pc.or_kleene, a, b), tests)

    def _sum(self) -> SqlExpression:
        found = self._product()
        while self.peek() in ("+", "-"):
            made = pc.add if self._next() == "+" else pc.subtract
            found = _arithmetic(made, found, self._product())
        return found

    def _product(self) -> SqlExpression:
        found = self._value()
        while self._takes("*"):
            found = _arithmetic(pc.multiply, found, self._value())
        return found

    def _value(self) -> SqlExpression:
        if self._takes("("):
            found = self.either()
            self._expect(")")
            return found
        if self._takes("-"):
            number = _number(self._next())
            # A decimal has no negative zero.
            return _literal(pa.scalar(-number.as_py() or 0, number.type))
        token = self._next()
        if token[:1].isdigit():
            return _literal(_number(token))
        if token.startswith("'"):
            return _literal(pa.scalar(token[1:-1]))
        if token in ("true", "false"):
            return _literal(pa.scalar(token == "true"))
        if token.lower() == "cast" and self._takes("("):
            return self._cast()
        if token in _RESERVED or not re.match(r"[A-Za-z_`]", token) or self.peek() == "(":
            raise Unsupported(f"{token!r}")
        return _column(token.strip("`"))

    def _cast(self) -> SqlExpression:
        given = self.either()
        self._expect("as")
        wanted = _CASTS.get(self._next().lower())
        self._expect(")")
        if wanted is None:
            raise Unsupported("a cast to another type than int, bigint and double")
        return _made((given,), lambda value: _cast(value, wanted))


def _number(token: str) -> pa.Scalar:
    if "." in token:
        # A decimal in Spark: beside a double it becomes one; beside nothing else is it understood.
        return pa.scalar(float(token), pa.float64())
    if not token.isdigit():
        raise Unsupported(f"{token!r} where a number was expected")
    return pa.scalar(int(token), _int_type(int(token)))


def _int_type(value: int) -> pa.DataType:
    if value > _BIGINT_MAX:
        raise Unsupported(f"the number {value}")
    return pa.int32() if value <= _INT_MAX else pa.int64()


def _literal(value: pa.Scalar) -> SqlExpression:
    return SqlExpression(frozenset(), value, lambda _: value)


def _column(name: str) -> SqlExpression:
    return SqlExpression(frozenset({name}), None, lambda columns: columns(name))


def _made(parts: tuple[SqlExpression, ...], make: Callable[..., Value]) -> SqlExpression:
    names = frozenset[str]().union(*(part.names for part in parts))
    return SqlExpression(
        names, None, lambda columns: make(*(one.evaluate(columns) for one in parts))
    )


def _logic(make: Callable[..., Value], *parts: SqlExpression) -> SqlExpression:
    def checked(*values: Value) -> Value:
        if not all(kinds.is_boolean(value.type) for value in values):
            raise Unsupported("AND, OR or NOT of something else than true and false")
        return make(*values)

    return _made(parts, checked)


# ------------------------------------------------------------------------ comparing


def _compared(sign: str, left: SqlExpression, right: SqlExpression) -> SqlExpression:
    are_decimals = [
        one.literal is not None and kinds.is_float64(one.literal.type) for one in (left, right)
    ]

    def compare(a: Value, b: Value) -> Value:
        a, b = _alike(a, b, *are_decimals)
        return _COMPARISONS[sign](a, b)

    return _made((left, right), compare)


def _alike(a: Value, b: Value, is_decimal: bool, is_other_decimal: bool) -> tuple[Value, Value]:
    """Return two values in the type in which Spark compares them."""
    if kinds.is_integer(a.type) and kinds.is_integer(b.type):
        return _cast(a, pa.int64()), _cast(b, pa.int64())
    if kinds.is_floating(a.type) and kinds.is_floating(b.type):
        if (is_decimal and not kinds.is_float64(b.type)) or (
            is_other_decimal and not kinds.is_float64(a.type)
        ):
            raise Unsupported("a decimal beside a float")
        return _cast(a, pa.float64()), _cast(b, pa.float64())
    if _are_number_and_double(a, b, is_decimal or is_other_decimal):
        return _cast(a, pa.float64()), _cast(b, pa.float64())
    is_simple = kinds.is_string, kinds.is_boolean, kinds.is_date32, kinds.is_timestamp
    if a.type == b.type and any(is_kind(a.type) for is_kind in is_simple):
        return a, b
    raise Unsupported(f"{a.type} beside {b.type}")


def _are_number_and_double(a: Value, b: Value, has_decimal: bool) -> bool:
    both = {_family(a.type), _family(b.type)}
    return both == {"integer", "double"} and not has_decimal


def _family(kind: pa.DataType) -> str:
    return "integer" if kinds.is_integer(kind) else "double" if kinds.is_float64(kind) else ""


def _greater(a: Value, b: Value) -> Value:
    if not kinds.is_floating(a.type):
        return pc.greater(a, b)
    return pc.or_(pc.greater(a, b), pc.and_(pc.is_nan(a), pc.invert(pc.is_nan(b))))


def _equal(a: Value, b: Value) -> Value:
    if not kinds.is_floating(a.type):
        return pc.equal(a, b)
    return pc.or_(pc.equal(a, b), pc.and_(pc.is_nan(a), pc.is_nan(b)))


_COMPARISONS: dict[str, Callable[[Value, Value], Value]] = {
    "=": _equal,
    "==": _equal,
    "!=": lambda a, b: pc.invert(_equal(a, b)),
    "<>": lambda a, b: pc.invert(_equal(a, b)),
    ">": _greater,
    "<": lambda a, b: _greater(b, a),
    ">=": lambda a, b: pc.invert(_greater(b, a)),
    "<=": lambda a, b: pc.invert(_greater(a, b)),
}


# ----------------------------------------------------------------- numbers and casts


def _arithmetic(
    make: Callable[..., Value], left: SqlExpression, right: SqlExpression
) -> SqlExpression:
    literals = [one.literal for one in (left, right)]

    def made(a: Value, b: Value) -> Value:
        families = {_family(a.type), _family(b.type)}
        columns = [v for v, literal in zip((a, b), literals, strict=True) if literal is None]
        # A literal with a point is a decimal: beside a double it is one, too.
        if not any(kinds.is_float64(one.type) for one in columns) or "" in families:
            raise Unsupported("arithmetic without a double")
        return make(_cast(a, pa.float64()), _cast(b, pa.float64()))

    return _made((left, right), made)


def _cast(value: Value, wanted: pa.DataType) -> Value:
    """Return a value in a type that has room for all of its own type; a long may be rounded."""
    kind = value.type
    if kind == wanted:
        return value
    is_from_int = kinds.is_integer(kind) and (
        kinds.is_floating(wanted) or kind.bit_width < wanted.bit_width
    )
    is_from_float = kinds.is_float32(kind) and kinds.is_float64(wanted)
    if not (kinds.is_boolean(kind) or is_from_int or is_from_float):
        raise Unsupported(f"a cast of {kind} to {wanted}")
    if kinds.is_boolean(kind) and kinds.is_floating(wanted):
        value = pc.cast(value, pa.int32())
    return pc.cast(value, wanted, safe=False)
