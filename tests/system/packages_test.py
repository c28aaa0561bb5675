"""Tests the Debian packages of the build folder: their files, their control fields and their dependencies.

`tools/package/check_packages` installs them in a new Debian 12.
"""
import pathlib
import re
import shutil
import subprocess
import tarfile
import tempfile
import unittest

import cluster

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(cluster.binary()).resolve().parents[1]
BUILDER = ROOT / "tools/package/build_packages"
BUILD_TIME = 120 * cluster.PATIENCE  # s
DOCUMENTS = "usr/share/doc/"
PATH = re.compile(re.escape(str(ROOT)).encode() + rb"[^\0]*")  # in a program or a text

# Some of the files of each package, as regular expressions.
FILES = {
    "gradrail": ["usr/bin/gradrail", "usr/bin/gradrail-report", "usr/share/gradrail/report/runs.py", "usr/share/gradrail/python/gradrail/checkpoint.py", r"usr/share/gradrail/mnist/train-images-idx3-ubyte\.gz", r"usr/share/man/man1/gradrail\.1\.gz",
                 r"usr/share/gradrail/launch/kubernetes\.yaml", "usr/share/bash-completion/completions/gradrail",
                 "usr/share/doc/gradrail/docs/quickstart.md"],
    "libgradrail1": [r"usr/lib/.*libgradrail\.so\.1", r"usr/lib/.*libgradrail\.so\.\d+\.\d+\.\d+"],
    "gradrail-plugins": [r"usr/lib/.*gradrail/libgradrail_transport_(ucx|ofi)\.so"],
    "libgradrail-dev": ["usr/include/gradrail/gradrail.h", r"usr/lib/(.*/)?libgradrail\.so",
                        r"usr/lib/.*pkgconfig/gradrail\.pc", r"usr/lib/.*cmake/gradrail/gradrailConfig\.cmake",
                        r"usr/share/doc/libgradrail-dev/examples/logistic\.c"],
}
# Each file of a package matches this expression, or is a document.
FOLDERS = {
    "gradrail": r"usr/bin/gradrail(-report)?$|usr/share/(gradrail|man|bash-completion)/",
    "libgradrail1": r"usr/lib/.*libgradrail\.so\.\d",
    "gradrail-plugins": r"usr/lib/.*gradrail/libgradrail_transport_\w+\.so$",
    "libgradrail-dev": r"usr/include/gradrail/.*\.h$|usr/lib/.*(libgradrail\.so|gradrail\.pc|gradrail\w*(-\w+)?\.cmake)$",
}


def run(*command, **options):
    return subprocess.run([str(word) for word in command], check=True, capture_output=True, text=True,
                          timeout=BUILD_TIME, **options).stdout


def has_git():
    return shutil.which("git") is not None and (ROOT / ".git").exists()


def maintainers():
    """Returns the permitted maintainers. The build may be that of an earlier commit."""
    chosen = re.search("^GRADRAIL_PACKAGE_MAINTAINER:STRING=(.+)", (BUILD / "CMakeCache.txt").read_text(), re.M)
    if chosen:
        return {chosen.group(1)}
    if has_git():
        return set(run("git", "log", "--format=%aN <%aE>", cwd=ROOT).splitlines())
    return {(ROOT / "base/commit").read_text().splitlines()[1]}


class Packages(unittest.TestCase):
    def build(self, build=BUILD):
        """Calls the builder. Returns the finished process and the folder of the packages."""
        for program in ("dpkg-deb", "dpkg-shlibdeps"):
            if shutil.which(program) is None:
                cluster.skip(f"no {program} (dpkg-dev)")
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        folder = pathlib.Path(scratch.name)
        done = subprocess.run([BUILDER, "--quick", build, folder], capture_output=True, text=True, timeout=BUILD_TIME)
        return done, folder

    def packages(self):
        """Builds the packages. Returns their files by name of the package."""
        done, folder = self.build()
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return {run("dpkg-deb", "-f", path, "Package").strip(): path for path in folder.glob("*.deb")}

    def test_packages_without_a_maintainer_are_refused(self):
        with tempfile.TemporaryDirectory() as folder:
            text, count = re.subn('(set\\(CPACK_DEBIAN_PACKAGE_MAINTAINER) ".*"', r'\1 ""', (BUILD / "CPackConfig.cmake").read_text())
            self.assertEqual(count, 1)
            (pathlib.Path(folder) / "CPackConfig.cmake").write_text(text)
            done, packages = self.build(folder)
        self.assertNotEqual(done.returncode, 0, done.stdout)
        self.assertIn("-DGRADRAIL_PACKAGE_MAINTAINER=", done.stderr)
        self.assertEqual(list(packages.glob("*.deb")), [])

    def test_packages_hold_their_files_and_depend_on_their_libraries(self):
        packages = self.packages()
        version = run(cluster.binary(), "--version").split()[1]
        has_plugins = any((BUILD / "lib/gradrail").glob("libgradrail_transport_[uo]*.so"))
        self.assertEqual(set(packages), set(FILES) - (set() if has_plugins else {"gradrail-plugins"}))
        fields = {}
        for name, path in packages.items():
            with self.subTest(package=name):
                self.check_files(name, path)
                fields[name] = dict(re.findall(r"^([\w-]+): (.*)", run("dpkg-deb", "-f", path), re.M))
                self.assertEqual(fields[name]["Version"], version)
                self.assertIn(fields[name]["Maintainer"], maintainers())
                self.assertRegex(path.name, rf"^{name}_{re.escape(version)}_\w+\.deb$")
        self.assertRegex(fields["gradrail"]["Depends"], r"libc6 \(>= .*libgrpc\+\+")
        self.assertNotIn("libucx", fields["gradrail"]["Depends"])
        self.assertRegex(fields["libgradrail-dev"]["Depends"], rf"libgradrail1 \(= {re.escape(version)}\), libabsl-dev")
        self.assertIn("libgrpc++", fields["libgradrail1"]["Depends"])
        if has_plugins:
            self.assertRegex(fields["gradrail-plugins"]["Depends"], r"gradrail \(= .*libc6 \(>= .*lib(ucx|fabric)")
        self.check_library(packages["libgradrail1"], version)
        self.check_paths(packages)

    def check_files(self, name, path):
        lines = [line.split(maxsplit=5) for line in run("dpkg-deb", "-c", path).splitlines()]
        self.assertEqual({line[1] for line in lines}, {"root/root"})
        files = [line[5].split(" -> ")[0].removeprefix("./") for line in lines if not line[0].startswith("d")]
        for pattern in [*FILES[name], f"{DOCUMENTS}{name}/copyright", rf"{DOCUMENTS}{name}/changelog\.gz"]:
            self.assertTrue(any(re.fullmatch(pattern, file) for file in files), f"{name} has no {pattern}")
        strange = [file for file in files if not re.match(FOLDERS[name], file) and not file.startswith(DOCUMENTS)]
        self.assertEqual(strange, [])

    def check_library(self, path, version):
        """Programs that link the library get the right dependency, and ldconfig runs."""
        with tempfile.TemporaryDirectory() as folder:
            run("dpkg-deb", "-e", path, folder)
            stated = (pathlib.Path(folder) / "shlibs").read_text()
            self.assertEqual(stated, f"libgradrail 1 libgradrail1 (= {version})\n")
            self.assertIn("ldconfig", (pathlib.Path(folder) / "triggers").read_text())

    def check_paths(self, packages):
        """A program must not run or read files from a folder that another user of another machine can create."""
        with tempfile.TemporaryDirectory() as folder:
            for path in packages.values():
                run("dpkg-deb", "-x", path, folder)
            files = [path for path in pathlib.Path(folder).rglob("*") if path.is_file() and not path.is_symlink()]
            named = {text for path in files for text in PATH.findall(path.read_bytes())}
        # Checks (GRADRAIL_CHECK) print the name of their source.
        self.assertEqual([text for text in named if not text.endswith((b".cc", b".h"))], [])


class Archive(unittest.TestCase):
    def test_source_archive_states_its_commit_and_its_author(self):
        if not has_git():
            cluster.skip("no git repository")
        with tempfile.TemporaryDirectory() as folder:
            archive = pathlib.Path(folder) / "sources.tar"
            run("git", "archive", f"--output={archive}", "HEAD", "base", cwd=ROOT)
            with tarfile.open(archive) as sources:
                stated = sources.extractfile("base/commit").read().decode().strip()
        self.assertEqual(stated, run("git", "log", "-1", "--format=%h%n%aN <%aE>", cwd=ROOT).strip())


if __name__ == "__main__":
    unittest.main()
