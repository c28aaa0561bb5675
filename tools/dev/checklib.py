"""Parts that all rules of tools/dev/check share: the files of the repository and the report."""
import argparse
import json
import pathlib
import re
import shlex
import subprocess

SOURCE_SUFFIXES = (".cc", ".h", ".cu", ".cuh", ".proto")
CPP_SUFFIXES = (".cc", ".h", ".cu", ".cuh")
INCLUDED_SOURCE = re.compile(r'^#include "(/[^"]+\.cc)"$', re.M)


def parse_root(description):
    """Parses the command line of a rule: the optional ROOT, by default the repository of the current folder."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("root", nargs="?", type=pathlib.Path, help="repository to check")
    root = parser.parse_args().root
    return root.resolve() if root else git_root()


def git_root():
    found = subprocess.run(["git", "rev-parse", "--show-toplevel"], check=True, capture_output=True, text=True)
    return pathlib.Path(found.stdout.strip())


def list_files(root):
    """Lists tracked files and new files that git does not ignore, as paths from the root."""
    listing = subprocess.run(["git", "-C", root, "ls-files", "-z", "-co", "--exclude-standard"], check=True,
                             capture_output=True, text=True).stdout
    return sorted({name for name in listing.split("\0") if name and (root / name).is_file()})


def read_text(path):
    """Returns the text of a file, or "" for a binary file."""
    data = path.read_bytes()
    return "" if b"\0" in data else data.decode(errors="replace")


def read_entries(path):
    """Returns the first word of each line of a list file. Comments start with #; a missing file is an empty list."""
    lines = path.read_text().splitlines() if path.exists() else []
    return [line.split()[0] for line in lines if line.strip() and not line.startswith("#")]


def entries_of_sources(commands):
    """Returns the entry of compile_commands.json for each source. The members of a unity source have its command line."""
    entries = {}
    for entry in json.loads(commands.read_text()):
        path = pathlib.Path(entry["directory"], entry["file"])
        members = INCLUDED_SOURCE.findall(read_text(path)) if path.name.startswith("unity_") and path.exists() else []
        words = shlex.split(entry["command"]) if "command" in entry else list(entry["arguments"])
        # clang cannot read the precompiled headers of g++.
        headers = next((word for word in words if word.endswith("/cmake_pch.hxx")), None)
        if headers in words:
            del words[words.index(headers) - 1:words.index(headers) + 1]
        for member in [pathlib.Path(member) for member in members] or [path]:
            arguments = [str(member) if pathlib.Path(entry["directory"], word) == path else word for word in words]
            entries[member] = {"directory": entry["directory"], "file": str(member), "arguments": arguments}
    return entries


def folder_of(name):
    return name.rpartition("/")[0]


class Report:
    """Prints one line for each rule, and its violations."""

    def __init__(self):
        self.failed = False

    def rule(self, name, text, violations, measured=""):
        """Reports a rule. `text` states the rule; `measured` is the value of this tree."""
        state = f"FAIL {len(violations)}" if violations else "ok"
        print(f"check: {state:<12} {name:<18} {text}" + (f" ({measured})" if measured else ""))
        for violation in violations:
            print(f"    {violation}")
        self.failed |= bool(violations)

    def exit_status(self):
        return 1 if self.failed else 0
