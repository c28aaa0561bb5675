"""Virtual machines that share the files of the host. Programs built on the host run in them, on a soft-RoCE kernel.

The root of a guest is the root of the host, read-only, below a writable layer in memory. All guests and the host can
write to the folder /out. QEMU emulates the processor (TCG), which needs no privilege and no /dev/kvm. Programs are
about eleven times slower than on the host.
"""
import ctypes
import functools
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import time

from cable import Cable
from monitor import Monitor
from problem import CannotRun, GuestLost, Problem
from switch import Switch

HERE = pathlib.Path(__file__).resolve().parent
QEMU = "qemu-system-x86_64"
BOOT_SECONDS = 90  # measured: 5-14 s; a loaded machine can need several times as long
MEMORY_MB = 1024  # the host allocates only the pages that the guest touches
POLL_SECONDS = 0.02
SHELL_ROLE = 0
PR_SET_PDEATHSIG = 1


class Guests:
    """A context manager: all guests are stopped when the `with` block ends."""

    def __init__(self, kernel, count, out, build, options, deadline):
        self.count = count
        self.out = out
        self._kernel = kernel
        self._build = build
        self._options = options
        self._deadline = deadline
        self._processes = []
        self._switch = Switch(count)
        self._monitors = [Monitor() for _ in range(count)]
        plugs = [functools.partial(monitor.set_link, "link") for monitor in self._monitors]
        self.cable = Cable(self._switch, out / "cable", plugs)

    def __enter__(self):
        try:
            self._start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_):
        self.stop()

    def _start(self):
        words = {"LAB": HERE, "BUILD": self._build, "MODULES": self._kernel.modules, "RANKS": self.count,
                 "SHELL_ROLE": SHELL_ROLE if self._options.shell else ""}
        (self.out / "lab.env").write_text("".join(f"{k}={shlex.quote(str(v))}\n" for k, v in words.items()))
        for role in range(self.count):
            (self.out / f"up.{role}").unlink(missing_ok=True)
            self._processes.append(self._launch(role))
        for end in self._switch.guest_sockets + [monitor.guest_socket for monitor in self._monitors]:
            end.close()  # each guest has inherited its own copy
        self._switch.start()
        deadline = min(time.monotonic() + BOOT_SECONDS, self._deadline)
        while not all((self.out / f"up.{role}").exists() for role in range(self.count)):
            self.check_alive()
            if time.monotonic() > deadline:
                raise Problem(f"a guest did not boot within {BOOT_SECONDS} s: see {self.out}/console.*")
            time.sleep(POLL_SECONDS)

    def _launch(self, role):
        sockets = [self._switch.guest_sockets[role].fileno(), self._monitors[role].guest_socket.fileno()]
        command = qemu_command(self._kernel, role, self.out, *sockets, self._options)
        if self._options.shell and role == SHELL_ROLE:
            # This guest uses the terminal. Only the process group of the lab may read the terminal.
            return subprocess.Popen(command, pass_fds=sockets, preexec_fn=_kill_with_parent)
        with open(self.out / f"console.{role}", "ab") as console:
            # The guest has its own process group, so that the lab handles Ctrl-C.
            return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=console, stderr=subprocess.STDOUT,
                                    pass_fds=sockets, start_new_session=True, preexec_fn=_kill_with_parent)

    def wait_for_shell(self):
        """Waits until the guest with the shell has ended."""
        while self._processes[SHELL_ROLE].poll() is None:
            self.cable.serve()
            time.sleep(POLL_SECONDS)

    def check_alive(self):
        for role, process in enumerate(self._processes):
            if process.poll() is not None:
                console = self.out / f"console.{role}"
                raise GuestLost(role, f"guest {role} stopped: {_last_words(console)} (see {console})")

    def send(self, role, line):
        """Writes one line to the console of a guest. guest/start reads it."""
        try:
            self._processes[role].stdin.write(line.encode() + b"\n")
            self._processes[role].stdin.flush()
        except OSError:
            self.check_alive()
            raise

    def stop(self):
        for process in self._processes:
            process.kill()  # QEMU has no children
            if process.stdin:
                process.stdin.close()
            process.wait()
        self._switch.stop()
        for monitor in self._monitors:
            monitor.close()


def qemu_command(kernel, role, out, link, monitor, options):
    def path(text):
        return str(text).replace(",", ",,")  # QEMU escapes a comma as two commas

    arguments = [
        "console=ttyS0 quiet loglevel=4 mitigations=off nokaslr panic=-1 rdinit=/init", clock(), f"role={role}"]
    return [
        shutil.which(QEMU), "-accel", options.accel, "-M", "q35", "-cpu", "max", "-smp", "1",
        "-m", str(options.memory_mb), "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-chardev", "stdio,id=console,signal=off", "-serial", "chardev:console",
        "-kernel", str(kernel.image), "-initrd", str(kernel.first_root), "-append", " ".join(arguments),
        "-fsdev", "local,id=root,path=/,security_model=none,readonly=on,multidevs=remap",
        "-device", "virtio-9p-pci,fsdev=root,mount_tag=hostroot",
        "-fsdev", f"local,id=out,path={path(out)},security_model=none",
        "-device", "virtio-9p-pci,fsdev=out,mount_tag=out",
        "-device", "virtio-rng-pci",
        "-netdev", f"socket,id=net,fd={link}",
        # 4200 bytes hold the largest RoCE packet with its headers.
        "-device", f"virtio-net-pci,netdev=net,mac=52:54:00:00:07:{role + 1:02x},host_mtu=4200,id=link,romfile=",
        "-chardev", f"socket,id=monitor,fd={monitor}", "-mon", "chardev=monitor,mode=control"]


def clock():
    """Returns the clock argument for the kernel of the guest. TCG passes the time stamp counter of the host through.
    The argument states its frequency: on a loaded host, a measurement against an emulated timer is wrong.
    `tsc=reliable` is not used: one boot ran 2.4 times too fast with it. HPET is slow but correct. It replaces a
    counter that stops or changes its frequency."""
    text = pathlib.Path("/proc/cpuinfo").read_text()
    steady = "constant_tsc" in text and "nonstop_tsc" in text
    pace = re.search(r"^bogomips\s*:\s*([\d.]+)", text, re.M)  # two per cycle on processors with a constant counter
    return f"tsc_early_khz={round(float(pace.group(1)) * 500)}" if steady and pace else "clocksource=hpet"


def check_machine():
    if os.uname().machine != "x86_64":
        raise CannotRun(f"the guests run programs of this machine, which must be x86_64; it is {os.uname().machine}")
    if not shutil.which(QEMU):
        raise CannotRun(f"{QEMU} is missing: run tools/setup --for test (package qemu-system-x86)")


def _kill_with_parent():
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _last_words(console):
    """Returns the line that states why a guest stopped. A kernel prints the reason of a panic before the backtrace."""
    lines = console.read_text(errors="replace").strip().splitlines() or ["no output"]
    return next((line for line in reversed(lines) if "Kernel panic" in line), lines[-1])
