"""The command `gradrail` of the wheel. It is a module of its own, so that the command does not load NumPy."""
import os
import pathlib
import sys


def main() -> None:
    """Replaces this process by the program of the package."""
    program = pathlib.Path(__file__).resolve().parent / "gradrail" / "bin" / "gradrail"
    try:
        os.execv(program, [str(program), *sys.argv[1:]])
    except OSError as error:
        sys.exit(f"gradrail: cannot run {program}: {error.strerror}; install the wheel of gradrail again")
