"""Extracts the ELF kernel from a bzImage.

QEMU starts an ELF kernel directly (PVH) in 3 s. A bzImage decompresses itself under emulation, which takes 40 s.
Layout (Documentation/arch/x86/boot.rst of the kernel): byte 0x1f1 holds the number of set-up sectors, less one. The
words at 0x248 and 0x24c hold the offset of the compressed kernel and its length. The offset counts from the end of the
set-up sectors.
"""
import gzip
import lzma
import struct
import subprocess

from problem import Problem


def unpack(image):
    if len(image) < 0x250 or image[0x202:0x206] != b"HdrS":
        raise Problem("the kernel image is not a bzImage: use a kernel package of Debian or Ubuntu for amd64")
    offset, length = struct.unpack_from("<II", image, 0x248)
    start = (image[0x1F1] + 1) * 512 + offset
    kernel = _decompress(image[start:start + length])
    if kernel[:4] != b"\x7fELF":
        raise Problem("the kernel inside the bzImage is not an ELF file: use a kernel package of Debian or Ubuntu")
    return kernel


def _decompress(data):
    # A decompressor object stops at the end of its stream. Four bytes with the length follow the stream.
    if data[:6] == b"\xfd7zXZ\x00":
        return lzma.LZMADecompressor().decompress(data)
    if data[:4] == b"\x28\xb5\x2f\xfd":
        return subprocess.run(["zstd", "-dcq"], input=data[:-4], stdout=subprocess.PIPE, timeout=60, check=True).stdout
    if data[:2] == b"\x1f\x8b":
        return gzip.decompress(data[:-4])
    raise Problem("the compression of the kernel is not supported (supported: xz, zstd and gzip)")
