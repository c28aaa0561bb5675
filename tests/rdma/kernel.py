"""Prepares the boot files of the guests once: a kernel of a distribution with soft-RoCE, and an initial RAM disk.

    build/rdma-lab/<kernel version>/vmlinux          the kernel as an ELF file
                                    modules/         lib/modules/<version> with only the modules that the lab needs
                                    initrd-<hash>    busybox, the modules that mount the files of the host, guest/init
"""
import gzip
import hashlib
import os
import pathlib
import shutil
import stat
import subprocess
import tempfile
from dataclasses import dataclass

from problem import CannotRun, Problem
import vmlinux

HERE = pathlib.Path(__file__).resolve().parent
# On Debian the PATH of a user lacks the folders of modprobe and depmod.
PATH = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
DOWNLOAD_SECONDS = 120  # 70 MB
UNPACK_SECONDS = 120

# The initial RAM disk must contain the modules that mount the files of the host.
FIRST_MODULES = ("virtio_pci", "virtio_rng", "9pnet_virtio", "9p", "overlay")
LATER_MODULES = ("virtio_net", "sch_netem", "rdma_rxe", "rdma_ucm")
# rdma_rxe requests CRC-32 by name, and modules.dep does not list it. Without it, "failed to add eth0". Other kernels
# have CRC-32 built in, or do not use these modules.
OPTIONAL_MODULES = ("crc32_generic", "crc32_pclmul")


@dataclass(frozen=True)
class Kernel:
    version: str
    image: pathlib.Path
    modules: pathlib.Path  # holds lib/modules/<version>
    first_root: pathlib.Path


def prepare(cache, say):
    """Returns the kernel of the cache, and makes it first if the cache is empty. `say` reports slow steps."""
    cache.mkdir(parents=True, exist_ok=True)
    folder = _cached(cache)
    if folder is None:
        folder = _make(cache, say)
    return Kernel(folder.name, folder / "vmlinux", folder / "modules", _first_root(folder))


def _cached(cache):
    # Folders appear under their final name only when they are complete.
    made = [f for f in cache.iterdir() if (f / "vmlinux").is_file()]
    return max(made, key=lambda f: (f / "vmlinux").stat().st_mtime, default=None)


def _make(cache, say):
    with tempfile.TemporaryDirectory(dir=cache, prefix="making-") as scratch:
        scratch = pathlib.Path(scratch)
        version, tree = _find(scratch, say)
        made = scratch / "made"
        _copy_modules(tree, version, made / "modules")
        (made / "vmlinux").write_bytes(vmlinux.unpack((tree / "boot" / f"vmlinuz-{version}").read_bytes()))
        made.chmod(0o755)
        target = cache / version
        try:
            made.rename(target)
        except OSError:
            if not (target / "vmlinux").is_file():  # a concurrent run may have made the kernel first
                raise
    return target


def _find(scratch, say):
    """Returns (version, root of a tree with boot/ and lib/modules/) of a downloaded or an installed kernel."""
    try:
        return _download(scratch, say)
    except (Problem, OSError, subprocess.SubprocessError) as why:
        installed = _installed()
        if installed:
            say(f"no kernel package ({why}); the lab uses the installed kernel {installed}")
            return installed, pathlib.Path("/")
        raise CannotRun(
            f"no kernel with soft-RoCE: {why}; and /boot has no readable kernel with rdma_rxe and 9p in /lib/modules. "
            "Run apt-get update with a network once, or install linux-image-amd64") from why


def _download(scratch, say):
    """Downloads and unpacks the newest kernel package of the distribution. On Ubuntu, other packages have modules."""
    if not shutil.which("apt-get"):
        raise Problem("apt-get is missing, which downloads the kernel package")
    version = _newest_version()
    names = [f"linux-image-{version}"]
    for extra in (f"linux-modules-{version}", f"linux-modules-extra-{version}"):  # only on Ubuntu
        if _run(["apt-cache", "show", extra], check=False).returncode == 0:
            names.append(extra)
    say(f"downloading {' '.join(names)} (once)")
    _run(["apt-get", "-q", "-o", "Acquire::Retries=2", "-o", "APT::Sandbox::User=root", "download", *names],
         cwd=scratch, seconds=DOWNLOAD_SECONDS)
    tree = scratch / "package"
    for package in sorted(scratch.glob("*.deb")):
        _run(["dpkg-deb", "-x", str(package), str(tree)], seconds=UNPACK_SECONDS)
    return version, tree


def _newest_version():
    # Images of cloud providers prefer the -cloud- flavour, which has neither rdma_rxe nor 9p.
    for package, flavour in (("linux-image-amd64", "-amd64"), ("linux-image-generic", "-generic")):
        for line in _run(["apt-cache", "depends", package], check=False).stdout.splitlines():
            name = line.split()[-1] if line.split() else ""
            if line.strip().startswith("Depends: linux-image-") and name.endswith(flavour):
                return name[len("linux-image-"):]
    raise Problem("apt has neither linux-image-amd64 nor linux-image-generic (apt-get update?)")


def _installed():
    for image in sorted(pathlib.Path("/boot").glob("vmlinuz-*"), reverse=True):
        version = image.name[len("vmlinuz-"):]
        names = {f.name.split(".ko")[0] for f in pathlib.Path("/lib/modules", version).rglob("*.ko*")}
        if {"rdma_rxe", "9p", "9pnet_virtio"} <= names and os.access(image, os.R_OK):
            return version
    return None


def _copy_modules(tree, version, target):
    """Copies the modules of the lab and their dependencies uncompressed: insmod of busybox does not read zstd."""
    if not (tree / "lib/modules" / version / "modules.dep").exists():
        _run(["depmod", "-b", str(tree), version], seconds=UNPACK_SECONDS)
    for module in FIRST_MODULES + LATER_MODULES + OPTIONAL_MODULES:
        for source in _with_dependencies(tree, version, module, must=module not in OPTIONAL_MODULES):
            copy = target / source.relative_to(tree)
            if source.suffix in (".zst", ".xz"):
                copy = copy.with_suffix("")
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(_plain(source))
    for name in ("modules.order", "modules.builtin", "modules.builtin.modinfo"):
        source = tree / "lib/modules" / version / name
        if source.exists():
            shutil.copy(source, target / "lib/modules" / version / name)
    _run(["depmod", "-b", str(target), version])


def _with_dependencies(tree, version, module, must=True):
    shown = _run(["modprobe", "-d", str(tree), "-S", version, "--show-depends", module], check=must).stdout
    return [pathlib.Path(line.split()[1]) for line in shown.splitlines() if line.startswith("insmod ")]


def _plain(source):
    tool = {".zst": ["zstd", "-dcq"], ".xz": ["xz", "-dc"]}.get(source.suffix)
    if tool is None:
        return source.read_bytes()
    return subprocess.run([*tool, str(source)], stdout=subprocess.PIPE, timeout=60, check=True).stdout


def _first_root(folder):
    """Returns the initial RAM disk. Its name has a hash of its content, so that a changed guest/init makes a new file
    and concurrent runs keep the old one."""
    script = (HERE / "guest/init").read_bytes()
    busybox = pathlib.Path(shutil.which("busybox", path=PATH) or "/bin/busybox")
    if not busybox.is_file():
        raise CannotRun("busybox is missing: install busybox-static")
    digest = hashlib.sha256(script + busybox.read_bytes() + " ".join(FIRST_MODULES).encode()).hexdigest()[:12]
    target = folder / f"initrd-{digest}"
    if not target.exists():
        with tempfile.NamedTemporaryFile(dir=folder, delete=False) as file:
            file.write(gzip.compress(_archive(folder, busybox, script), compresslevel=1))
        os.chmod(file.name, 0o644)
        os.replace(file.name, target)
    return target


def _archive(folder, busybox, script):
    """Returns a cpio archive in the "newc" format, which the kernel reads. cpio(1) would need a tree on disk."""
    entries = [(name, stat.S_IFDIR | 0o755, b"") for name in ("bin", "proc", "sys", "dev", "mods", "root", "lower", "top")]
    entries += [("bin/busybox", stat.S_IFREG | 0o755, busybox.read_bytes()), ("bin/sh", stat.S_IFLNK | 0o777, b"busybox"),
                ("init", stat.S_IFREG | 0o755, script)]
    loaded = []
    for module in FIRST_MODULES:
        for source in _with_dependencies(folder / "modules", folder.name, module):
            if source.name not in loaded:
                entries.append((f"mods/{len(loaded):02}-{source.name}", stat.S_IFREG | 0o644, source.read_bytes()))
                loaded.append(source.name)
    parts = [_cpio_entry(i + 1, *entry) for i, entry in enumerate(entries)]
    return b"".join(parts) + _cpio_entry(0, "TRAILER!!!", 0, b"")


def _cpio_entry(inode, name, mode, data):
    name = name.encode() + b"\0"
    numbers = (inode, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name), 0)
    head = b"070701" + b"".join(b"%08X" % n for n in numbers) + name
    return head + b"\0" * (-len(head) % 4) + data + b"\0" * (-len(data) % 4)


def _run(command, check=True, seconds=60, cwd=None):
    environment = {**os.environ, "PATH": PATH, "LC_ALL": "C"}
    if not shutil.which(command[0], path=PATH):
        raise Problem(f"{command[0]} is missing: run tools/setup --for test")
    done = subprocess.run(command, cwd=cwd, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True, timeout=seconds)
    if check and done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines()
        raise Problem(f"{' '.join(command[:2])} failed: {said[-1] if said else done.returncode}")
    return done
