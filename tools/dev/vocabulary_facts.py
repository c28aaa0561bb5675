"""Counts the words of tools/dev/vocabulary and the sentences that break the style rules."""
import collections
import pathlib
import re

import checklib
import prose

MAX_WORDS = 25
LISTS = ("tools/dev/vocabulary", "tools/dev/vocabulary_allow", "tools/dev/vocabulary_ceiling")
# Results are records. Data and licences are the text of others. A changelog names what was renamed.
SKIPPED_FOLDERS = ("bench/results/", "worker/data/mnist/")
SKIPPED_NAMES = ("LICENSE", "copyright", "CHANGELOG.md")
SKIPPED_SUFFIXES = (".xml", ".svg", ".json", ".jsonl", ".txt.gz", ".gz")
C_SUFFIXES = (*checklib.SOURCE_SUFFIXES, ".c")
HASH_SUFFIXES = (".py", ".sh", ".cmake")
HASH_NAMES = ("CMakeLists.txt", "Makefile")
SENTENCE_KEYS = {
    "sentence-long": f"a sentence of more than {MAX_WORDS} words",
    "sentence-of": 'a comment line that begins with "Of "',
    "sentence-what": 'a sentence with "What" as the subject',
}

Rule = collections.namedtuple("Rule", "key kind forms instead")


def read_rules():
    """Reads the vocabulary beside this file."""
    lines = (pathlib.Path(__file__).parent / "vocabulary").read_text().splitlines()
    return [Rule(*line.split(None, 3)) for line in lines if line.strip() and not line.startswith("#")]


def read_allowed(path):
    """Reads a list of contexts, such as tools/dev/vocabulary_allow."""
    lines = path.read_text().splitlines() if path.exists() else []
    return [line for line in lines if line.strip() and not line.startswith("#")]


def split_names(text):
    """Splits the parts of names: shard_map and ShardMap become two words."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", text).replace("_", " ")


def is_counted(name):
    return not (name in LISTS or name.startswith(SKIPPED_FOLDERS) or name.endswith(SKIPPED_SUFFIXES)
                or pathlib.Path(name).name in SKIPPED_NAMES)


class Counter:
    """Counts per key; `places` has the first places of each key."""

    def __init__(self, allowed=()):
        self.rules = read_rules()
        self.counts = collections.Counter({key: 0 for key in [*(rule.key for rule in self.rules), *SENTENCE_KEYS]})
        self.places = collections.defaultdict(list)
        self._allowed = re.compile("|".join(map(re.escape, allowed))) if allowed else None
        self._words = self._keys("word")
        self._names = {form: key for form, key in self._keys("name").items() if not form.endswith("*")}
        self._prefixes = {form[:-1]: key for form, key in self._keys("name").items() if form.endswith("*")}
        self._texts = self._keys("text")

    def _keys(self, kind):
        return {form: rule.key for rule in self.rules if rule.kind == kind for form in rule.forms.split("|")}

    def _key_of_name(self, name):
        if name in self._names:
            return self._names[name]
        return next((key for prefix, key in self._prefixes.items() if name.startswith(prefix)), None)

    def add_file(self, name, text):
        self._add_words(name, name, name)
        self._add_sentences(name, text)
        if text and self._allowed:
            text = self._allowed.sub(lambda match: " " * len(match[0]), text)
        self._add_words(name, text, None)

    def _add(self, key, place):
        self.counts[key] += 1
        self.places[key].append(place)

    def _add_words(self, name, text, place):
        self._add_tokens(split_names(text).lower(), r"[a-z]+", self._words.get, name, place)
        self._add_tokens(text, r"\w+", self._key_of_name, name, place)
        for form, key in self._texts.items():
            for _ in range(text.count(form)):
                self._add(key, f"{name}: {form}")

    def _add_tokens(self, text, pattern, key_of, name, place):
        # Most files have few banned words: the set of the tokens is looked up first.
        banned = {token: key for token in set(re.findall(pattern, text)) if (key := key_of(token))}
        if not banned:
            return
        for match in re.finditer(pattern, text):
            if key := banned.get(match[0]):
                self._add(key, place or f"{name}:{text.count(chr(10), 0, match.start()) + 1}")

    def _add_sentences(self, name, text):
        if name.endswith(".md"):
            blocks = list(prose.markdown_blocks(text))
        elif name.endswith(C_SUFFIXES):
            blocks = list(prose.comment_blocks(text))
        elif name.endswith(HASH_SUFFIXES) or pathlib.Path(name).name in HASH_NAMES or text.startswith("#!"):
            blocks = list(prose.hash_blocks(text))
        else:
            return
        if name.endswith(".py") or re.match(r"#!.*python", text):
            blocks += prose.docstring_blocks(text)
        if not name.endswith(".md"):
            for line in (line for block in blocks for line in block if line.startswith("Of ")):
                self._add("sentence-of", f"{name}: {line}")
        for sentence in (sentence for block in blocks for sentence in prose.sentences(block)):
            if prose.word_count(sentence) > MAX_WORDS:
                self._add("sentence-long", f"{name}: {sentence[:100]}")
            if sentence.startswith("What ") and not sentence.endswith("?"):
                self._add("sentence-what", f"{name}: {sentence[:100]}")


def count(root, names, allowed):
    """Counts over the files `names` of a repository, without the contexts `allowed`."""
    counter = Counter(allowed)
    for name in names:
        if is_counted(name):
            counter.add_file(name, checklib.read_text(root / name))
    return counter
