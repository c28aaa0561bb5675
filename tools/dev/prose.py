"""Sentences of comments and of Markdown."""
import re

# A comment starts at // outside of a string. A label has two spaces behind it: "Errors   NOT_FOUND: …".
COMMENT = re.compile(r'^(?P<code>(?:"(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\])*\'|(?!//)[^"\'])*)//[/!]?<?(?P<text>.*)$')
LABEL = re.compile(r"^[A-Z][a-z-]+ {2,}")
BULLET = re.compile(r"^(?:[-*+]|\d+[.)]) ")
SENTENCE_END = re.compile(r"(?<=[.!?])[\"')\]*_]*\s+")
LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
FENCE = re.compile(r"^\s*(?:```|~~~)")


def comment_blocks(text):
    """Yields lists of comment lines. A comment behind code starts a new list."""
    block = []
    for line in text.splitlines():
        match = COMMENT.match(line)
        starts = match and match["code"].strip()
        if block and (not match or starts):
            yield block
            block = []
        if match:
            block.append(match["text"].strip())
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
    """Yields the sentences of a block. An empty line, a list item and a label start a new sentence."""
    parts = [[]]
    for line in block:
        if not line or BULLET.match(line) or LABEL.match(line):
            parts.append([])
        parts[-1].append(BULLET.sub("", line))
    for part in parts:
        text = re.sub(r"`[^`]*`", "CODE", " ".join(part)).strip()
        yield from (sentence for sentence in SENTENCE_END.split(text) if sentence)


def word_count(sentence):
    return sum(any(c.isalnum() for c in word) for word in sentence.split())
