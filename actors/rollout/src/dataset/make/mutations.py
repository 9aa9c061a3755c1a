"""Small edits of Python sources that may be bugs, as JSON lines; standard library only, Python 3.9 or newer.

usage: mutations.py FOLDER SEED LIMIT

Prints at most LIMIT edits, drawn evenly over files and kinds, each {file, function, strategy, text}: `text` is the whole
file after the edit, which compiles. Tests, documents and set-up scripts are left alone.
"""
import ast
import json
import pathlib
import random
import sys

FLIPPED = {ast.Lt: (">", "<="), ast.Gt: ("<", ">="), ast.LtE: (">=", "<"), ast.GtE: ("<=", ">"), ast.Eq: ("!=",),
           ast.NotEq: ("==",), ast.In: ("not in",), ast.NotIn: ("in",), ast.Is: ("is not",), ast.IsNot: ("is",)}
SIGN = {ast.Lt: "<", ast.Gt: ">", ast.LtE: "<=", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!=", ast.In: "in",
        ast.NotIn: "not in", ast.Is: "is", ast.IsNot: "is not", ast.And: "and", ast.Or: "or", ast.Add: "+", ast.Sub: "-",
        ast.Mult: "*", ast.FloorDiv: "//", ast.Mod: "%"}
OTHER = {ast.Add: "-", ast.Sub: "+", ast.Mult: "//", ast.FloorDiv: "*", ast.Mod: "//"}
SKIPPED_FOLDERS = {"test", "tests", "testing", "doc", "docs", "example", "examples", "benchmarks", ".git", "build"}


class Source:
    """A file's text with places by node."""

    def __init__(self, text):
        self.text = text
        self.lines = text.splitlines(keepends=True)
        self.starts = [0]
        for line in self.lines:
            self.starts.append(self.starts[-1] + len(line))

    def place(self, line, byte_column):
        return self.starts[line - 1] + len(self.lines[line - 1].encode()[:byte_column].decode(errors="ignore"))

    def span(self, node):
        return self.place(node.lineno, node.col_offset), self.place(node.end_lineno, node.end_col_offset)

    def sign_between(self, left, right, old, new):
        start, end = self.span(left)[1], self.span(right)[0]
        found = self.text.find(old, start, end)
        return None if found < 0 or "#" in self.text[start:end] else (found, found + len(old), new)


def edits_of(source, node):
    """Yields (strategy, (start, end, new text)) for one node."""
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in FLIPPED:
        for new in FLIPPED[type(node.ops[0])]:
            yield "comparison_change", source.sign_between(node.left, node.comparators[0], SIGN[type(node.ops[0])], new)
    elif isinstance(node, ast.BoolOp) and len(node.values) == 2:
        new = "or" if isinstance(node.op, ast.And) else "and"
        yield "boolean_change", source.sign_between(*node.values, SIGN[type(node.op)], new)
    elif isinstance(node, ast.BinOp) and type(node.op) in OTHER and not isinstance(node.left, (ast.Constant, ast.JoinedStr)):
        yield "operator_change", source.sign_between(node.left, node.right, SIGN[type(node.op)], OTHER[type(node.op)])
    elif isinstance(node, ast.Constant) and type(node.value) is int and 0 <= node.value <= 400:
        start, end = source.span(node)
        if source.text[start:end].isdigit():
            yield "constant_change", (start, end, str(node.value + 1))
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield "negation_removed", (source.span(node)[0], source.span(node.operand)[0], "")
    elif isinstance(node, ast.Call) and len(node.args) >= 2 and not any(isinstance(a, ast.Starred) for a in node.args[:2]):
        (first, first_end), (second, second_end) = source.span(node.args[0]), source.span(node.args[1])
        text = source.text
        swapped = text[second:second_end] + text[first_end:second] + text[first:first_end]
        if swapped != text[first:second_end]:
            yield "arguments_swapped", (first, second_end, swapped)
    elif isinstance(node, ast.If) and not node.orelse:
        start = source.starts[node.lineno - 1]
        if source.text[start:source.span(node)[0]].strip() == "":
            yield "condition_removed", (start, source.starts[node.end_lineno], " " * node.col_offset + "pass\n")
    elif isinstance(node, ast.AugAssign):
        start, end = source.starts[node.lineno - 1], source.starts[node.end_lineno]
        yield "assignment_removed", (start, end, " " * node.col_offset + "pass\n")


def edits_of_file(folder, path):
    try:
        source = Source(path.read_text(encoding="utf-8"))
        tree = ast.parse(source.text)
    except (SyntaxError, UnicodeDecodeError, ValueError):
        return
    seen = set()
    for function in ast.walk(tree):
        if not isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        for node in ast.walk(function):
            for strategy, edit in edits_of(source, node):
                if edit is None or edit in seen:
                    continue
                seen.add(edit)
                text = source.text[:edit[0]] + edit[2] + source.text[edit[1]:]
                try:
                    compile(text, str(path), "exec")
                except (SyntaxError, ValueError):
                    continue
                name = path.relative_to(folder).as_posix()
                yield {"file": name, "function": function.name, "strategy": strategy, "text": text}


def main():
    folder, seed, limit = pathlib.Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    groups = {}
    for path in sorted(folder.rglob("*.py")):
        parts = path.relative_to(folder).parts
        if set(parts[:-1]) & SKIPPED_FOLDERS or path.name.startswith("test_") or path.name.endswith("_test.py"):
            continue
        if path.name in ("setup.py", "conftest.py", "noxfile.py") or path.is_symlink():
            continue
        for edit in edits_of_file(folder, path):
            groups.setdefault((edit["file"], edit["strategy"]), []).append(edit)
    order = random.Random(seed)
    for key in sorted(groups):
        order.shuffle(groups[key])
    printed = 0
    while groups and printed < limit:
        keys = sorted(groups)
        order.shuffle(keys)
        for key in keys:
            print(json.dumps(groups[key].pop()))
            printed += 1
            if not groups[key]:
                del groups[key]
            if printed == limit:
                break


main()
