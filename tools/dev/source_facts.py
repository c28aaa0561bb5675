"""Measures sources: classes and functions by universal-ctags, comment lines, assertions."""
import collections
import json
import re
import shutil
import subprocess

import checklib

# ctags reports a macro with parentheses after a field as a function. Each of these macros is defined as empty.
THREAD_MACROS = ("GUARDED_BY", "PT_GUARDED_BY", "ACQUIRED_AFTER", "ACQUIRED_BEFORE", "EXCLUSIVE_LOCKS_REQUIRED",
                 "SHARED_LOCKS_REQUIRED", "LOCKS_EXCLUDED", "LOCK_RETURNED", "EXCLUSIVE_LOCK_FUNCTION",
                 "SHARED_LOCK_FUNCTION", "UNLOCK_FUNCTION", "EXCLUSIVE_TRYLOCK_FUNCTION", "ASSERT_EXCLUSIVE_LOCK")
ASSERTION = re.compile(r"\b(?:GRADRAIL_D?CHECK\w*|assert)\s*\(")

ClassFacts = collections.namedtuple("ClassFacts", "name path line functions inline fields constructors")
FunctionFacts = collections.namedtuple("FunctionFacts", "name path line lines")


class NoCtags(Exception):
    pass


def read_tags(root, names):
    """Returns the tags of the C++ and CUDA sources among `names`. Raises NoCtags without universal-ctags."""
    sources = [name for name in names if name.endswith(checklib.CPP_SUFFIXES)]
    program = shutil.which("ctags-universal") or shutil.which("ctags")
    if not program:
        raise NoCtags("universal-ctags is missing: run tools/setup --for check")
    command = [program, "--options=NONE", "--output-format=json", "--languages=C++,CUDA", "--langmap=CUDA:+.cuh",
               "--kinds-C++=+p", "--kinds-CUDA=+p", "--fields=+neSKZ", "--sort=no", "-L", "-", "-f", "-"]
    command += [word for macro in THREAD_MACROS for word in ("-D", f"ABSL_{macro}(...)=")]
    run = subprocess.run(command, cwd=root, input="\n".join(sources), capture_output=True, text=True)
    if run.returncode:
        raise NoCtags(f"{program} is not universal-ctags with JSON output: run tools/setup --for check")
    tags = (json.loads(line) for line in run.stdout.splitlines())
    return [tag for tag in tags if tag["_type"] == "tag"]


def qualified(tag):
    return f"{tag['scope']}::{tag['name']}" if "scope" in tag else tag["name"]


def short_name(name):
    """Removes the namespaces of a qualified name: they start with a lower-case letter."""
    parts = name.split("::")
    while len(parts) > 1 and (parts[0][:1].islower() or parts[0].startswith("__anon")):
        parts.pop(0)
    return "::".join(parts)


def classes(tags):
    """Returns each class and struct with its declared functions (inline bodies included) and fields.

    A deleted function is not counted. An out-of-class definition repeats a declaration and is not counted.
    """
    members = collections.defaultdict(list)
    for tag in tags:
        if "scope" in tag:
            members[tag["path"], tag["scope"]].append(tag)
    facts = []
    for tag in tags:
        if tag["kind"] not in ("class", "struct") or "end" not in tag:
            continue
        name = qualified(tag)
        inside = [m for m in members[tag["path"], name] if tag["line"] <= m["line"] <= tag["end"]]
        functions = [m for m in inside if m["kind"] in ("function", "prototype")
                     and not re.search(r"=\s*delete\b", m.get("pattern", ""))]
        facts.append(ClassFacts(
            short_name(name), tag["path"], tag["line"], len(functions), sum(m["kind"] == "function" for m in functions),
            sum(m["kind"] == "member" for m in inside),
            sum(m["name"].lstrip("~") == tag["name"] for m in functions)))
    return facts


def functions(tags):
    """Returns each function that has a body, with the number of its lines."""
    return [FunctionFacts(short_name(qualified(tag)), tag["path"], tag["line"], tag["end"] - tag["line"] + 1)
            for tag in tags if tag["kind"] == "function" and "end" in tag]


def comment_lines(text):
    """Returns (comment lines, lines). A comment line contains only a comment. Blank lines do not count."""
    comments = lines = 0
    in_block = False
    for line in text.splitlines():
        line = line.strip()
        lines += bool(line)
        comments += bool(line) and (in_block or line.startswith(("//", "/*")))
        if in_block or line.startswith("/*"):
            in_block = "*/" not in line
    return comments, lines


def assertions(text):
    """Counts the run-time assertions in a source."""
    return len(ASSERTION.findall(text))
