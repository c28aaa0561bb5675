#!/usr/bin/env python3
"""Checks the output of nvcc for gpu/kernels: native code for each documented architecture, and PTX for later ones. The
programs contain the same bytes. No kernel spills registers or has a stack.

Reads the fatbin's own table of contents and what ptxas reported when it was made; asks cuobjdump as well where the
toolkit has one.

Usage: kernel_image_test.py --image FATBIN --report PTXAS_OUTPUT --kernels LIST [--program PROGRAM]
"""
import argparse
import pathlib
import re
import shutil
import struct
import subprocess
import sys
import unittest

NATIVE = {80, 90, 100}
PTX = {80, 100}

# struct fatBinHeader and the head of each entry behind it, as every toolkit since CUDA 4 lays them out.
MAGIC = 0xBA55ED50
FILE_HEADER = struct.Struct("<IHHQ")  # magic, version, header bytes, bytes behind the header
ENTRY_HEADER = struct.Struct("<HHIQ12xI")  # kind, version, header bytes, payload bytes, …, architecture
KIND_PTX, KIND_ELF = 1, 2

options = None


def entries(image):
    """(kind, architecture, head) of each entry; the head of PTX holds the options for the driver's compiler."""
    magic, _, header_bytes, body_bytes = FILE_HEADER.unpack_from(image)
    if magic != MAGIC:
        raise ValueError(f"not a fatbin: begins with {magic:#x}")
    at, end = header_bytes, header_bytes + body_bytes
    found = []
    while at < end:
        kind, _, entry_header, payload, architecture = ENTRY_HEADER.unpack_from(image, at)
        found.append((kind, architecture, image[at:at + entry_header]))
        at += entry_header + payload
    if at != end or end != len(image):
        raise ValueError(f"entries end at {at}, the file at {len(image)}")
    return found


def reported(text):
    """{(kernel, architecture): {"registers": n, "stack": n, "stores": n, "loads": n}} of ptxas -v."""
    pattern = re.compile(
        r"Compiling entry function '(?P<kernel>\w+)' for 'sm_(?P<architecture>\d+)'"
        r".*?(?P<stack>\d+) bytes stack frame, (?P<stores>\d+) bytes spill stores, (?P<loads>\d+) bytes spill loads"
        r".*?Used (?P<registers>\d+) registers", re.DOTALL)
    return {(m["kernel"], int(m["architecture"])): {k: int(m[k]) for k in ("registers", "stack", "stores", "loads")}
            for m in pattern.finditer(text)}


def included_by(source, root):
    """The files of this repository that a source includes, directly or through others."""
    found = set()
    for name in re.findall(r'^\s*#\s*include\s+"([^"]+)"', source.read_text(), re.MULTILINE):
        if (root / name).exists():
            found |= {root / name} | included_by(root / name, root)
    return found


class KernelImage(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.image = options.image.read_bytes()
        cls.report = reported(options.report.read_text())
        cls.kernels = set(re.findall(r"^GRADRAIL_KERNEL\((\w+),", options.kernels.read_text(), re.MULTILINE))

    def test_native_code_and_ptx_for_what_we_promise(self):
        found = entries(self.image)
        self.assertEqual({arch for kind, arch, _ in found if kind == KIND_ELF}, NATIVE)
        self.assertEqual({arch for kind, arch, _ in found if kind == KIND_PTX}, PTX)
        if tool := shutil.which("cuobjdump"):  # a second opinion, where the toolkit has one
            self.assertEqual(run_cuobjdump(tool, options.image), (NATIVE, PTX))

    def test_nothing_is_contracted_into_fma(self):
        # FMA would change the bits of an update. The rule also covers the PTX that a driver compiles.
        for kind, architecture, head in entries(self.image):
            if kind == KIND_PTX:
                with self.subTest(architecture=architecture):
                    self.assertRegex(head, rb"--?fmad[ =]false")

    def test_every_kernel_for_every_architecture(self):
        self.assertGreater(len(self.kernels), 10)
        self.assertEqual(set(self.report), {(kernel, arch) for kernel in self.kernels for arch in NATIVE})

    def test_nothing_spills(self):
        for (kernel, arch), used in self.report.items():
            with self.subTest(kernel=kernel, architecture=arch):
                self.assertEqual((used["stack"], used["stores"], used["loads"]), (0, 0, 0))

    def test_updates_leave_room_for_enough_threads(self):
        # 65,536 registers for 768 threads: with 2 × 2 × 16 bytes each, 48 KiB under way in a multiprocessor.
        for (kernel, arch), used in self.report.items():
            if kernel.startswith("gradrail_update_"):
                with self.subTest(kernel=kernel, architecture=arch):
                    self.assertLessEqual(used["registers"], 80)

    def test_the_build_knows_all_headers(self):
        # A header that this file lacks can change without a new image.
        rule = pathlib.Path(f"{options.image}.d").read_text().replace("\\\n", " ")
        target, sources = re.split(r"\s*:\s", rule, maxsplit=1)
        self.assertEqual(pathlib.Path(target).resolve(), options.image.resolve())
        kernels = options.kernels.resolve().parent
        wanted = {kernels / "kernels.cu"} | included_by(kernels / "kernels.cu", kernels.parent.parent)
        self.assertGreater(len(wanted), 5)
        self.assertEqual(wanted - {pathlib.Path(source).resolve() for source in sources.split()}, set())

    def test_programs_carry_these_bytes(self):
        self.assertIn(self.image, options.program.read_bytes())


class KernelCode(unittest.TestCase):
    def test_blocks_are_read_before_they_are_converted(self):
        # A conversion waits for its load, and all loads behind it would wait as well. Two gradients with two quads each
        # are under way together: two pairs of codes and a scale for each, beside the parameters and the state.
        # mean reads no parameters, which its result does not depend on.
        vectors = {"sgd": 1, "mean": 0, "momentum": 2, "nesterov": 2, "collect": 2, "adam": 3, "delayed_nesterov": 3}
        for kernel, code in self.disassembled().items():
            loads = [i for i, operation in enumerate(code) if operation.startswith("LDG")]
            with self.subTest(kernel=kernel):
                if found := re.fullmatch(r"gradrail_update_(\w+)_int[48]", kernel):
                    first = next(i for i, operation in enumerate(code) if operation.startswith("I2F"))
                    self.assertGreaterEqual(sum(i < first for i in loads), 2 * vectors[found[1]] + 2 * 2 * 3)
                elif re.fullmatch(r"gradrail_pack_int[48]", kernel):  # gradient and rest of 64 elements
                    self.assertGreaterEqual(sum(code[i] == "LDG.E.128" for i in loads), 2 * 64 / 4)

    def disassembled(self):
        """{kernel: names of its instructions, in their order} for Hopper."""
        tool = shutil.which("cuobjdump")
        if tool is None or shutil.which("nvdisasm", path=pathlib.Path(tool).parent) is None:
            self.skipTest("no cuobjdump with nvdisasm beside it (CUDA toolkit, or nvidia-cuda-cuobjdump of PyPI)")
        text = subprocess.run([tool, "-sass", "-arch", "sm_90", options.image], check=True, capture_output=True,
                              text=True, timeout=60).stdout
        functions = re.split(r"Function : (\w+)", text)[1:]
        instruction = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]+)")
        return {name: instruction.findall(code) for name, code in zip(functions[::2], functions[1::2])}


def run_cuobjdump(tool, image):
    """The architectures of native code and of PTX, as NVIDIA's own reader sees them."""
    said = subprocess.run([tool, "--list-elf", "--list-ptx", image], check=True, capture_output=True, text=True,
                          timeout=60).stdout
    return ({int(a) for a in re.findall(r"sm_(\d+)\.cubin", said)}, {int(a) for a in re.findall(r"_(\d+)\.ptx", said)})


def main():
    global options
    parser = argparse.ArgumentParser()
    for name in ("--image", "--report", "--kernels", "--program"):
        parser.add_argument(name, type=pathlib.Path, required=True)
    options, rest = parser.parse_known_args()
    unittest.main(argv=[sys.argv[0], *rest], verbosity=2)


if __name__ == "__main__":
    main()
