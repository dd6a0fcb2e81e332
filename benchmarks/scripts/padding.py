"""How much of a batch of sequences is padding, with and without buckets (`data.bucket`).

    PYTHONPATH=. .venv/bin/python benchmarks/scripts/padding.py [--batch 64] [--epochs 3]

The sequences are the paragraphs of the documentation that ships with Python (`pydoc_data`), in words. Nothing is trained.
"""

from pydoc_data.topics import topics

import numpy as np

from benchmarks.shared import script
from control.common import text
from trainer.data.partition import EpochPlan

BUCKETS = (1, 4, 16, 64)


def main() -> None:
    """Print a table: by bucket, the share of padding, and elements of all batches for each that is no padding."""
    arguments = script.parser(__doc__, batch=64, epochs=3).parse_args()
    paragraphs = [paragraph.split() for page in topics.values() for paragraph in page.split("\n\n") if paragraph.split()]
    lengths = np.array([len(words) for words in paragraphs])
    print(f"{len(lengths):,} sequences of {lengths.min()} to {lengths.max()} words, median {np.median(lengths):.0f}")
    rows = []
    for bucket in BUCKETS:
        padded, real = _elements(lengths, arguments.batch, bucket, arguments.epochs)
        rows.append([bucket, f"{1 - real / padded:.0%}", f"{padded / real:.2f}"])
    print(text.table(["data.bucket", "padding", "elements per word"], rows))


def _elements(lengths: np.ndarray, batch: int, bucket: int, epochs: int) -> tuple[int, int]:
    """Elements of all batches of some epochs, with padding and without."""
    padded = real = 0
    for epoch in range(1, epochs + 1):
        plan = EpochPlan(len(lengths), batch, -(-len(lengths) // batch), 1, epoch, lengths, bucket)
        for step in range(plan.steps):
            union = lengths[plan.union(step)]
            padded, real = padded + int(union.max()) * len(union), real + int(union.sum())
    return padded, real


if __name__ == "__main__":
    main()
