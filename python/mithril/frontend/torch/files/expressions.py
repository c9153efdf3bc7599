"""Symbolic sizes in files, which PyTorch would evaluate as Python: parsed, checked and written again."""

from __future__ import annotations

import ast
import re

__all__ = ["SYMBOL", "Malformed", "expression"]

#: What PyTorch calls the symbols of sizes and floats.
SYMBOL = re.compile(r"(s|u|z|zf|zuf)\d{1,5}")
#: Characters and levels of an expression.
_LENGTH, _DEPTH = 20_000, 60
#: Powers that are computed when an expression is made must stay small.
_EXPONENT = 16

#: Functions that PyTorch writes, of SymPy and of its own.
_FUNCTIONS = frozenset(
    (
        *("Add", "Mul", "Max", "Min", "Mod", "Abs", "floor", "ceiling", "Integer", "Rational", "Float"),
        *("Equality", "Unequality", "StrictLessThan", "StrictGreaterThan", "LessThan", "GreaterThan"),
        *("Eq", "Ne", "Lt", "Le", "Gt", "Ge", "And", "Or", "Not"),
        *("FloorDiv", "ModularIndexing", "Where", "PythonMod", "CleanDiv", "CeilToInt", "FloorToInt", "CeilDiv"),
        *("FloatTrueDiv", "IntTrueDiv", "TruncToFloat", "TruncToInt", "RoundToInt", "ToFloat", "Identity"),
    )
)
_POWERS = frozenset(("Pow", "PowByNatural", "FloatPow"))
_NAMES = {"true": "true", "false": "false"}
_OPERATORS: dict[type[ast.AST], str] = {
    **{ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.FloorDiv: "//", ast.Mod: "%", ast.Pow: "**"},
    **{ast.Eq: "==", ast.NotEq: "!=", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">="},
    **{ast.BitAnd: "&", ast.BitOr: "|"},
}


class Malformed(Exception):
    """A file holds what ``torch.export`` does not write."""


def expression(text: str) -> str:
    """Check an expression of symbols, and write it as SymPy may evaluate it.

    Raises
    ------
    Malformed
        If it holds anything but arithmetic with sizes.
    """
    if len(text) > _LENGTH:
        raise Malformed(f"an expression of a size has {len(text)} characters")
    try:
        tree = ast.parse(text, mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise Malformed(f"{_quoted(text)} is not an expression of sizes") from error
    return _written(tree.body, text, 0)


def _written(node: ast.expr, text: str, depth: int) -> str:
    if depth > _DEPTH:
        raise Malformed("an expression of a size is nested too deeply")

    def inner(part: ast.expr) -> str:
        return _written(part, text, depth + 1)

    if isinstance(node, ast.Constant):
        if isinstance(node.value, (int, float)) and abs(node.value) < 2**64:
            return repr(node.value)
    elif isinstance(node, ast.Name):
        if SYMBOL.fullmatch(node.id):
            return node.id
        if node.id in _NAMES:
            return _NAMES[node.id]
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.UAdd)):
        return f"(-{inner(node.operand)})" if isinstance(node.op, ast.USub) else inner(node.operand)
    elif isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        if isinstance(node.op, ast.Pow):
            _check_power([node.left, node.right], text)
        return f"({inner(node.left)}{_OPERATORS[type(node.op)]}{inner(node.right)})"
    elif isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in _OPERATORS:
        return f"({inner(node.left)}{_OPERATORS[type(node.ops[0])]}{inner(node.comparators[0])})"
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        return _call(node, node.func.id, text, depth)
    raise Malformed(f"{_quoted(text)} is not an expression of sizes")


def _call(node: ast.Call, name: str, text: str, depth: int) -> str:
    if name == "Symbol":
        # Symbol('s0', positive=True, integer=True)
        argument = node.args[0] if len(node.args) == 1 else None
        symbol = argument.value if isinstance(argument, ast.Constant) else None
        flags = [k for k in node.keywords if isinstance(k.value, ast.Constant) and isinstance(k.value.value, bool)]
        if isinstance(symbol, str) and SYMBOL.fullmatch(symbol) and len(flags) == len(node.keywords):
            allowed = {"positive", "nonnegative", "integer", "real", "zero", "nonzero", "commutative", "finite"}
            if all(k.arg in allowed for k in node.keywords):
                return f"Symbol('{symbol}'{''.join(f', {k.arg}={k.value.value}' for k in flags)})"  # type: ignore[attr-defined]
    elif name == "Float":
        # Float('0.5', precision=53): the precision could be any number.
        argument = node.args[0] if node.args else None
        number = argument.value if isinstance(argument, ast.Constant) else None
        if isinstance(number, str) and re.fullmatch(r"-?\d{1,30}(\.\d{0,30})?(e[+-]?\d{1,3})?", number):
            return f"Float('{number}', precision=53)"
    elif name in _POWERS and len(node.args) == 2 and not node.keywords:
        _check_power(node.args, text)
        return f"{name}({', '.join(_written(part, text, depth + 1) for part in node.args)})"
    elif name in _FUNCTIONS and node.args and not node.keywords:
        return f"{name}({', '.join(_written(part, text, depth + 1) for part in node.args)})"
    raise Malformed(f"{_quoted(text)} is not an expression of sizes")


def _check_power(args: list[ast.expr], text: str) -> None:
    """Refuse powers of powers and large exponents: 9**9**9 would be computed."""
    base, exponent = args
    number = exponent
    if isinstance(number, ast.Call) and isinstance(number.func, ast.Name) and number.func.id == "Integer":
        number = number.args[0] if number.args else number
    if isinstance(number, ast.UnaryOp) and isinstance(number.op, ast.USub):
        number = number.operand
    is_small = isinstance(number, ast.Constant) and type(number.value) is int and abs(number.value) <= _EXPONENT
    is_nested = any(
        isinstance(part, ast.Pow) or (isinstance(part, ast.Name) and part.id in _POWERS) for part in ast.walk(base)
    )
    if not is_small or is_nested:
        raise Malformed(f"{_quoted(text)} is not an expression of sizes")


def _quoted(text: str) -> str:
    return repr(text if len(text) <= 60 else f"{text[:57]}...")
