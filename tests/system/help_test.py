"""The help of each command is grouped, and the completion of bash proposes what the help has."""
import pathlib
import re
import shlex
import subprocess
import unittest

import cluster

COMPLETION = pathlib.Path(__file__).parents[2] / "tools/gradrail/completion.bash"
FLAG = re.compile(r"(?<![\w-])--?[A-Za-z][\w-]*")
GROUPS = {
    ("train",): ["Cluster", "Model", "Training", "Transport", "GPU", "Placement", "Checkpoint", "Monitoring", "Security"],
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


class Help(cluster.ClusterTest):
    def test_help_is_grouped(self):
        for path, groups in GROUPS.items():
            text = help_of(*path)
            with self.subTest(path=path):
                self.assertEqual([g for g in re.findall(r"^(\w+):$", text, re.M) if g in groups], groups, text)
                ungrouped = re.search(r"^Options:\n((?:  .*\n)+)", text, re.M)[1]
                self.assertEqual(flags_of(ungrouped), {"-h", "--help"})

    def test_commands_of_gradrail_itself_are_hidden(self):
        self.assertNotRegex(help_of("bench"), r"(?m)^ +job\b")

    def complete(self, line):
        """Returns the completions that bash offers at the end of the line."""
        words = shlex.split(line.replace("=", " = ")) + ([""] if line.endswith((" ", "=")) else [])
        folder = pathlib.Path(cluster.binary()).parent
        script = (f"PATH={shlex.quote(str(folder))}:$PATH\nsource {shlex.quote(str(COMPLETION))}\nCOMP_WORDS=({' '.join(map(shlex.quote, words))})\n"
                  f"COMP_CWORD={len(words) - 1}\n_gradrail\nprintf '%s\\n' \"${{COMPREPLY[@]}}\"")
        result = run("bash", "-c", script)
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        return result.stdout.split()

    def test_bash_completes_commands_flags_and_choices(self):
        self.assertEqual(run("bash", "-n", COMPLETION).stderr, "")
        self.assertEqual(self.complete("gradrail "), subcommands_of(help_of()))
        self.assertEqual(self.complete("gradrail to"), ["topo", "top"])
        self.assertEqual(self.complete("gradrail checkpoint "), ["ls", "verify"])
        self.assertEqual(self.complete("gradrail train --model "), ["mlp", "cnn", "linear"])
        self.assertEqual(self.complete("gradrail train --ps 2 --model=c"), ["cnn"])
        self.assertEqual(self.complete("gradrail train --batch_s"), ["--batch_size"])
        self.assertEqual(self.complete("gradrail train --batch-s"), ["--batch-size"])
        self.assertEqual(self.complete("gradrail train --cluster "), [], "bash completes file names")
        self.assertEqual(self.complete("gradrail bench put --format "), ["table", "json"])
        self.assertEqual(self.complete("gradrail convert "), ["mnist"])
        proposed = {flag for path, _ in walk() for flag in self.complete(" ".join(["gradrail", *path, "-"]))}
        self.assertLessEqual({"--model", "--version", "--help", "-J", "--explain"}, proposed)


if __name__ == "__main__":
    unittest.main()
