"""The commands `gradrail` and `gradrail-report` of the wheel. It is a module of its own, so that they do not load NumPy."""
import os
import pathlib
import sys

PACKAGE = pathlib.Path(__file__).resolve().parent / "gradrail"


def main() -> None:
    """Replaces this process by the program of the package."""
    become(PACKAGE / "bin" / "gradrail")


def report() -> None:
    become(sys.executable, PACKAGE / "share" / "gradrail" / "report" / "gradrail-report")


def become(program, *arguments) -> None:
    try:
        os.execv(program, [str(program), *map(str, arguments), *sys.argv[1:]])
    except OSError as error:
        sys.exit(f"gradrail: cannot run {program}: {error.strerror}; install the wheel of gradrail again")
