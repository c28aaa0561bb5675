"""Extracts the sentences of comments, docstrings and Markdown."""
import ast
import re

# A comment starts at // outside of a string. Two or more spaces follow a label: "Errors   NOT_FOUND: …".
COMMENT = re.compile(r'^(?P<code>(?:"(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\])*\'|(?!//)[^"\'])*)//[/!]?<?(?P<text>.*)$')
LABEL = re.compile(r"^[A-Z][a-z-]+ {2,}")
HASH_COMMENT = re.compile(r"^\s*#(?: (?P<text>.*))?$")
STAR_COMMENT = re.compile(r"^\s*(?:/\*+!?<?|\*(?!/))\s?(?P<text>.*?)\s*(?:\*/)?$")
# A drawing, a table, a format or code: arrows, box characters, two spaces inside of the line, a | b, an assignment.
MAX_INDENT = 14  # below a label
DRAWING = re.compile(r"[─-╿▀-▟←-⇿▲▶▼◀]|--+>|<--+|\S {2,}\S|\S\t| \| |\w = .*;$|\);$")
BULLET = re.compile(r"^(?:[-*+]|\d+[.)]) ")
SENTENCE_END = re.compile(r"(?<=[.!?])[\"')\]*_]*\s+")
LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
FENCE = re.compile(r"^\s*(?:```|~~~)")


def comment_blocks(text):
    """Yields lists of lines of C++ comments. A comment after code starts a new list."""
    yield from blocks_of(text, COMMENT)
    # A line that begins with * outside of a comment is code, such as a dereference.
    for comment in re.findall(r"^[ \t]*/\*.*?\*/[ \t]*$", text, re.M | re.S):
        yield from blocks_of(comment, STAR_COMMENT)


def hash_blocks(text):
    """Yields lists of lines of comments that begin with #. A comment after code is left out."""
    yield from blocks_of(text, HASH_COMMENT)


def docstring_blocks(text):
    """Yields lists of lines of Python docstrings, without their indented examples."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and (found := ast.get_docstring(node)):
            yield ["" if line.startswith("  ") else line for line in found.splitlines()]


def blocks_of(text, comment):
    block, column = [], 0
    for line in text.splitlines():
        match = comment.match(line)
        begin = len(match.groupdict().get("code", "")) if match else 0
        starts = match and (match.groupdict().get("code", "").strip() or begin != column)
        column = begin
        if block and (not match or starts):
            yield block
            block = []
        if match:
            text_of_line = match["text"] or ""
            deep = len(text_of_line) - len(text_of_line.lstrip()) > MAX_INDENT  # a part of a drawing or of a format
            block.append("" if deep else text_of_line.strip())
    if block:
        yield block


def markdown_blocks(text):
    """Yields lists of lines of paragraphs and list items. Code, tables and headings are left out."""
    block, fenced = [], False
    for line in [*text.splitlines(), ""]:
        if FENCE.match(line):
            fenced = not fenced
        stripped = line.strip()
        skipped = fenced or not stripped or FENCE.match(line) or stripped.startswith(("|", "#", "<"))
        if block and (skipped or BULLET.match(stripped)):
            yield block
            block = []
        if not skipped:
            block.append(LINK.sub(r"\1", stripped))


def sentences(block):
    """Yields the sentences of a block. An empty line, a list item and a label start a new sentence. A colon at the end
    of a line ends a sentence. Drawings are left out."""
    parts = [[]]
    for line in block:
        text = LABEL.sub("", BULLET.sub("", line))
        drawing = DRAWING.search(text)
        if not line or drawing or text != line:
            parts.append([])
        if not drawing:
            parts[-1].append(text)
        if line.endswith(":"):
            parts.append([])
    for part in parts:
        text = re.sub(r"`[^`]*`", "CODE", " ".join(part)).strip()
        yield from (sentence for sentence in SENTENCE_END.split(text) if sentence)


def word_count(sentence):
    return sum(any(c.isalnum() for c in word) for word in sentence.split())
