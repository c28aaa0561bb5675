"""Odd values of each flag: exit code 2 and one line that names the flag and the value, never a run with the defaults.

The flags come from the manual pages, which the program generates from its option definitions."""
import concurrent.futures
import re
import subprocess
import unittest

import cluster

# No flag takes one of these values. The second text is part of the message.
UNUSABLE = (("", "''"), ("  ", "'  '"), ("\x01", r"'\x01'"), ("a\nb", r"'a\x0ab'"),
            ("x" + "é" * 50_000, "é…' (100001 bytes)"))  # byte 100 is inside a character
ODD_NUMBERS = ("-1", "nan", "inf", "1e999", "99999999999999999999", "0x10")
ODD_HOSTS = ("-1", "99999999999999999999", "0x10", "a:b:c", "h:70000", ",")

# A path or a name can be any other text. A wrong one is an error of the run, after the parser.
FREE = {"--bind-host", "--cert-file", "--check", "--checkpoint_dir", "--cluster", "--costs", "--data_dir", "--from", "--gpu", "--json",
        "--key-file", "--limits", "--logs_path", "--matrix", "--model", "--nic", "--ofi-provider", "--ofi_provider", "--out", "--plugin-dir", "--plugin_dir", "--record",
        "--require", "--root", "--secret-file", "--svg", "--timeline_filename", "--topology", "--transport",
        "--trusted-ca-file", "cluster", "file", "first", "FOLDER", "second"}
# The other texts have a grammar: some values that do not follow it.
GRAMMAR = {"--begin": (*ODD_NUMBERS, "6x"), "--end": (*ODD_NUMBERS, "6x"), "--bind": ODD_HOSTS[:-1],
           "--cores": (*ODD_NUMBERS, "3-1"), "--reserve": (*ODD_NUMBERS, "3-1"), "--metrics_bind": (*ODD_NUMBERS, "here"),
           "--mode": (*ODD_NUMBERS, "ssp:", "ssp:-1", "backup:nan", "quorum:2,grace=nan"),
           "--on": (*ODD_NUMBERS, "gpu:-1"), "--push": (*ODD_NUMBERS, "topk", "topk:0", "topk:nan", "topk:99"),
           "--ps_device": (*ODD_NUMBERS, "gpu:", "gpu:-1"), "--ps_hosts": ODD_HOSTS, "--worker_hosts": ODD_HOSTS,
           "--aggregators": ODD_HOSTS,
           "--sweep": (*ODD_NUMBERS, "ps", "ps=", "ps=4:1:*2", "ps=1:4:*nan"),
           "--rails": (*ODD_NUMBERS, "10.0.0.1,", "10.0.0.1,10.0.0.1", "here"), "--streams": ("0", "65", "-1", "nan", "two"),
           "--rendezvous": (*ODD_NUMBERS, "etcd://", "udp://a:1/j")}
# Arguments that a command requires before it reads the value of a flag.
POSITIONALS = {("convert",): ["mnist"], ("bench", "replay"): ["resnet50"]}
BEFORE = {"second": ["first"]}
REQUIRED = {("aggregator",): ["--bind", "127.0.0.1:2300"], ("convert",): ["--out", "folder"], ("checkpoint", "import"): ["--from", "file"]}


class Option:
    def __init__(self, path, entry):
        self.path = path
        self.names = re.findall(r"\\fB(-[^\\]+)\\fR", entry)
        value = re.search(r"\\fI([^\\]+)\\fR", entry)
        self.value = value and value[1]
        if not self.names and (positional := re.match(r"\\fB([A-Za-z_]+)\\fR", entry)):
            self.names = [positional[1]]

    @property
    def name(self):
        """The name in the messages of the parser: the first long one."""
        return next((name for name in self.names if name.startswith("--")), self.names[0])

    def words(self, value):
        if not self.name.startswith("-"):
            return [value]
        return [f"{self.name}={value}"] if value and self.name.startswith("--") else [self.name, value]


class FlagValues(cluster.ClusterTest):
    def options(self):
        subprocess.run([cluster.binary(), "pages", self.folder / "pages"], check=True, timeout=cluster.START)
        found = []
        for page in sorted((self.folder / "pages/man/man1").iterdir()):
            path = tuple(page.stem.split("-")[1:])
            text = page.read_text().replace("\\-", "-")
            body = text[text.find(".SH ARGUMENTS"):] if ".SH ARGUMENTS" in text else text[text.find(".SH OPTIONS"):]
            commands = body.find(".SH COMMANDS")
            entries = re.findall(r"^\.TP\n(\\fB.*)", body[:commands] + body[body.find(".SH OPTIONS"):] if commands >= 0
                                 else body, re.M)
            found += [option for option in (Option(path, entry) for entry in entries) if option.value]
        self.assertGreater(len(found), 200)
        return found

    def assert_refused(self, option, value, shown):
        """Returns what is wrong with the answer to this value; "" if it is refused as it must be."""
        command = [*option.path, *BEFORE.get(option.name, ()), *option.words(value)]
        if option.name.startswith("-"):
            command += POSITIONALS.get(option.path, ())
        if option.name not in REQUIRED.get(option.path, ()):
            command += REQUIRED.get(option.path, ())
        case = f"{' '.join(option.path)} {option.name} {value[:30]!r}"
        try:
            ran = subprocess.run([cluster.binary(), *command], capture_output=True, text=True, errors="replace",
                                 cwd=self.folder, stdin=subprocess.DEVNULL, timeout=cluster.START)
        except subprocess.TimeoutExpired:
            return f"{case}: still runs after {cluster.START:.0f} s"
        lines = ran.stderr.splitlines()
        names = any(name in ran.stderr for name in option.names)
        if ran.returncode == cluster.USAGE and len(lines) == 1 and names and shown in ran.stderr:
            return ""
        return f"{case}: exit code {ran.returncode}\n{ran.stdout[-300:]}{ran.stderr[-600:]}"

    def assert_all_refused(self, cases):
        if cluster.instrumented():  # such a program needs a second to start
            cases = cases[::11]
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            answers = list(pool.map(lambda case: self.assert_refused(*case), cases))
        wrong = [answer for answer in answers if answer]
        self.assertEqual(wrong, [], f"{len(wrong)} of {len(cases)}:\n" + "\n".join(wrong[:30]))

    def test_empty_texts_control_characters_and_long_texts(self):
        self.assert_all_refused([(option, value, shown) for option in self.options() for value, shown in UNUSABLE])

    def test_numbers_and_choices(self):
        options = [option for option in self.options() if option.name not in FREE and option.name not in GRAMMAR]
        texts = sorted({option.name for option in options if option.value == "TEXT"})
        self.assertEqual(texts, [], "state in this file which texts these flags take")
        self.assert_all_refused([(option, value, value) for option in options for value in ODD_NUMBERS])

    def test_switches(self):
        """A switch takes no value in its usual form, so that the manual pages show none."""
        for command, switch in ((["train"], "--encrypt-data"), (["train"], "--checksums"), (["train"], "--insecure"),
                                (["train"], "--local"), (["bench", "exchange"], "--encrypt-data"), (["top"], "--once")):
            for value in ("maybe", "2", "-1"):
                with self.subTest(command=command, switch=switch, value=value):
                    ran = subprocess.run([cluster.binary(), *command, f"{switch}={value}"], capture_output=True, text=True,
                                         stdin=subprocess.DEVNULL, timeout=cluster.START)
                    self.assertEqual((ran.returncode, ran.stdout), (cluster.USAGE, ""), ran.stderr)
                    self.assertRegex(ran.stderr, rf"^gradrail: {switch}: '{value}' is not true, false, yes, no, on, off, 1 or 0")

    def test_texts_with_a_grammar(self):
        self.assert_all_refused([(option, value, value) for option in self.options() if option.name in GRAMMAR
                                 for value in GRAMMAR[option.name]])


class Variables(cluster.ClusterTest):
    def refuses(self, variable, value, says, *command, code=cluster.USAGE):
        ran = subprocess.run([cluster.binary(), *map(str, command)], capture_output=True, text=True, cwd=self.folder,
                             env={"PATH": "/usr/bin", variable: str(value)}, timeout=cluster.START)
        self.assertEqual((ran.returncode, ran.stdout), (code, ""), ran.stderr)
        self.assertRegex(ran.stderr, rf"^gradrail[a-z ]*: {variable}.*{says}")
        self.assertEqual(len(ran.stderr.splitlines()), 1, ran.stderr)

    def test_an_unknown_log_level(self):
        for command in (["train", "--model", "linear", "--epochs", 1], ["info"], ["checkpoint", "ls", self.folder]):
            with self.subTest(command=command):
                self.refuses("GRADRAIL_LOG", "loud", "loud: no such log level; there are debug, info", *command)

    def test_a_plugin_folder_that_is_no_folder(self):
        file = self.folder / "file"
        file.write_text("")
        for folder, says, code in ((self.folder / "none", "no such folder", cluster.CONFIGURATION),
                                   (file, "no such folder", cluster.CONFIGURATION),
                                   ("plugins", "absolute path", cluster.USAGE)):
            for command in (["train", "--model", "linear", "--epochs", 1], ["info"], ["doctor", "--no-proof"],
                            ["bench", "put"]):
                with self.subTest(folder=folder, command=command):
                    # The codes of `bench` are its own: 2 for each error before a measurement.
                    expected = cluster.USAGE if command[0] == "bench" else code
                    self.refuses("GRADRAIL_PLUGIN_DIR", folder, says, *command, code=expected)


if __name__ == "__main__":
    unittest.main()
