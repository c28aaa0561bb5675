"""The help of each command is grouped; manual pages and completions contain the same commands, flags and choices."""
import pathlib
import re
import shlex
import shutil
import subprocess
import unittest

import cluster

FLAG = re.compile(r"(?<![\w-])--?[A-Za-z][\w-]*")
GROUPS = {
    ("train",): ["Cluster", "Model", "Training", "Transport", "GPU", "Placement", "Checkpoint", "Monitoring", "Security"],
    ("aggregator",): ["Cluster", "Transport", "Security"],
    ("top",): ["Cluster", "Monitoring", "Security"],
    ("topo",): ["Machine", "Cluster", "GPU", "Output"],
    ("doctor",): ["Report", "Cluster", "Transport"],
    ("predict",): ["Cluster", "Network", "Training", "Costs", "Failures", "Output"],
    ("bench", "exchange"): ["Measurement", "Transport", "Output", "Training", "Cluster"],
}


def run(*words):
    return subprocess.run([str(word) for word in words], capture_output=True, text=True, stdin=subprocess.DEVNULL,
                          timeout=60 * cluster.PATIENCE)


def help_of(*path):
    return run(cluster.binary(), *path, "--help").stdout


def flags_of(text):
    """Returns the flags of the option lines. Descriptions are left out: they mention flags of other commands."""
    entries = re.findall(r"^  (-\S+)", text, re.M)
    return {flag for entry in entries for flag in FLAG.findall(entry.replace(",", " "))}


def subcommands_of(text):
    listing = text.partition("Subcommands:\n")[2]
    return re.findall(r"^  ([a-z]+)(?:\s|$)", listing, re.M)


def walk(path=()):
    text = help_of(*path)
    yield path, text
    for name in subcommands_of(text):
        yield from walk((*path, name))


class Pages(cluster.ClusterTest):
    def setUp(self):
        super().setUp()
        made = run(cluster.binary(), "pages", self.folder)
        self.assertEqual(made.returncode, 0, made.stderr)
        self.bash_script = self.folder / "bash-completion/completions/gradrail"

    def manual(self, path):
        return pathlib.Path(self.folder, "man/man1", "-".join(["gradrail", *path]) + ".1")

    def test_help_is_grouped(self):
        for path, groups in GROUPS.items():
            text = help_of(*path)
            with self.subTest(path=path):
                self.assertEqual([g for g in re.findall(r"^(\w+):$", text, re.M) if g in groups], groups, text)
                ungrouped = re.search(r"^Options:\n((?:  .*\n)+)", text, re.M)[1]
                self.assertEqual(flags_of(ungrouped), {"-h", "--help"})

    def test_commands_of_gradrail_itself_are_hidden(self):
        self.assertNotRegex(help_of("bench"), r"(?m)^ +job\b")
        self.assertFalse(self.manual(["bench", "job"]).exists())
        self.assertNotIn("'gradrail bench job'", self.bash_script.read_text())

    def test_manual_pages_have_each_flag_of_the_help(self):
        seen = 0
        for path, text in walk():
            with self.subTest(path=path):
                page = self.manual(path).read_text().replace("\\-", "-")
                named = {flag for line in re.findall(r"^\.TP\n(.*)", page, re.M) for flag in re.findall(r"\\fB(-[^\\]+)", line)}
                flags = flags_of(text)
                self.assertEqual(named, flags)
                self.assertEqual(set(re.findall(r"^\.SS (\w+)", page, re.M)),
                                 set(re.findall(r"^(\w+):$", text, re.M)) - {"Positionals", "Subcommands"})
                seen += len(flags)
        self.assertGreater(seen, 300)
        self.assertEqual(len(list(self.manual(()).parent.iterdir())), len(list(walk())))

    def test_manual_pages_are_correct_roff(self):
        if shutil.which("groff") is None:
            cluster.skip("groff is not installed")
        for page in sorted(self.manual(()).parent.iterdir()):
            result = run("groff", "-man", "-ww", "-Tutf8", page)
            self.assertEqual((result.returncode, result.stderr), (0, ""), page)
            self.assertIn("NAME", re.sub(".\b", "", result.stdout))  # bold text is overstruck

    def complete(self, line):
        """Returns the completions that bash offers at the end of the line."""
        words = shlex.split(line.replace("=", " = ")) + ([""] if line.endswith((" ", "=")) else [])
        script = (f"source {shlex.quote(str(self.bash_script))}\nCOMP_WORDS=({' '.join(map(shlex.quote, words))})\n"
                  f"COMP_CWORD={len(words) - 1}\n_gradrail\nprintf '%s\\n' \"${{COMPREPLY[@]}}\"")
        result = run("bash", "-c", script)
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        return result.stdout.split()

    def test_bash_completes_commands_flags_and_choices(self):
        self.assertEqual(run("bash", "-n", self.bash_script).stderr, "")
        self.assertEqual(self.complete("gradrail "), subcommands_of(help_of()))
        self.assertEqual(self.complete("gradrail to"), ["topo", "top"])
        self.assertEqual(self.complete("gradrail checkpoint "), ["ls", "verify", "export", "import"])
        self.assertEqual(self.complete("gradrail train --model "), ["mlp", "cnn", "linear"])
        self.assertEqual(self.complete("gradrail train --ps 2 --model=c"), ["cnn"])
        self.assertEqual(self.complete("gradrail train --batch_s"), ["--batch_size"])
        self.assertEqual(self.complete("gradrail train --batch-s"), ["--batch-size"])
        self.assertEqual(self.complete("gradrail train --cluster "), [], "bash completes file names")
        self.assertEqual(self.complete("gradrail bench put --format "), ["table", "osu", "csv", "json"])
        self.assertEqual(self.complete("gradrail convert "), ["mnist"])
        proposed = {flag for path, _ in walk() for flag in self.complete(" ".join(["gradrail", *path, "-"]))}
        self.assertLessEqual({"--model", "--version", "--help", "-J", "--explain"}, proposed)

    def test_zsh_and_fish_accept_their_scripts(self):
        scripts = {"zsh": self.folder / "zsh/site-functions/_gradrail",
                   "fish": self.folder / "fish/vendor_completions.d/gradrail.fish"}
        for script in scripts.values():
            for word in ("train", "batch_size", "batch-size", "mlp", "checkpoint"):
                self.assertIn(word, script.read_text())
        missing = [shell for shell in scripts if shutil.which(shell) is None]
        for shell in scripts.keys() - missing:
            result = run(shell, "-n", scripts[shell])
            self.assertEqual((result.returncode, result.stderr), (0, ""), shell)
        if missing:
            cluster.skip(f"{' and '.join(missing)} not installed")


if __name__ == "__main__":
    unittest.main()
