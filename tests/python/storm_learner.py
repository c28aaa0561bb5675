"""A learner of storm_test.py: the transformer of compare_diloco.py with DiLoCo, and a ledger of its outer steps.

The ledger is a parameter with long rows of WIDTH elements. Before each exchange a learner lowers its own column and the last
one by UNIT. Its outer gradient is then UNIT there, and 0 in the columns of the others. A step with K contributions moves K
columns by UNIT / K, and the last column by UNIT. A step can have the contribution of a killed learner in some buckets only:
a row is never cut by a bucket, so that the columns of a row agree. After each merge the learner appends a line to its file,
with the fields of storm_test.Merge.
"""
import argparse
import json
import os
import pathlib
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
UNIT = 12.0  # divisible by each number of contributions
WIDTH = 4  # elements of a row: a column for each learner, and one for all; a bucket has a multiple of it
ROWS = 3 << 18  # 12 MiB: kills also meet exchanges
APART = 1 << 15  # rows between two in the file: two of each bucket of 1 MiB
EVERY = 8  # inner steps of an outer step
OUTER_LR, OUTER_MOMENTUM = 0.7, 0.9


def target(folder):
    """Returns the last global step, or a large number while the test has not decided it."""
    try:
        return int((folder / "target").read_text(encoding="ascii"))
    except FileNotFoundError:
        return 10 ** 9


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--pause", type=float, default=0.0, help="seconds before each inner step")
    arguments = parser.parse_args()
    sys.path.insert(0, str(ROOT / "bench/python"))
    import compare_diloco
    import gradrail.torch
    import torch
    task = compare_diloco.Task(argparse.Namespace(context=24, width=32, layers=1, batch=4, lr=0.002, test_batches=16))
    rank = int(os.environ["GRADRAIL_TASK_INDEX"])
    task.model.ledger = torch.nn.Parameter(torch.zeros(ROWS, WIDTH))
    inner = task.optimizer(task.model)
    transports = "tcp" if rank % 2 else "shm,tcp"
    outer = gradrail.torch.Nesterov(OUTER_LR, OUTER_MOMENTUM)
    with (arguments.folder / f"{rank}-{os.getpid()}.jsonl").open("w", buffering=1, encoding="ascii") as lines, \
            gradrail.torch.DiLoCo(task.model, inner, sync_every=EVERY, outer=outer, transports=transports) as diloco:
        @torch.no_grad()
        def record(began, contributed):
            ended = time.monotonic()
            ledger = task.model.ledger
            steps = ledger[:, -1]
            lines.write(json.dumps([began, ended, diloco.global_step, contributed, [steps.min().item(), steps.max().item()],
                                    ledger[::APART, :-1].tolist()]) + "\n")

        record(time.monotonic(), contributed=False)
        while diloco.global_step < target(arguments.folder):
            begun = diloco.global_step
            for i in range(EVERY):
                time.sleep(arguments.pause)
                inner.zero_grad()
                task.loss(task.model, begun * EVERY + i, rank).backward()
                if i == EVERY - 1:
                    for column in (rank, WIDTH - 1):
                        task.model.ledger.data[:, column] -= UNIT
                began = time.monotonic()
                inner.step()
            record(began, contributed=diloco.global_step == begun + 1)
    task.record(task.model, diloco.global_step)
    print("final", json.dumps(task.curve[-1]), flush=True)


if __name__ == "__main__":
    main()
