"""The embedded quiver in twenty lines: append, read, account.

python examples/embedded.py [DIRECTORY]
"""

import sys
import tempfile

import pyarrow as pa

from holdfast import Quiver


def main(directory: str) -> None:
    """Store two events durably, hand them out once, and show that the account adds up."""
    with Quiver.open(directory) as quiver:
        batch = pa.record_batch({"service": ["checkout", "cart"], "ms": [12.5, 3.1]})
        receipt = quiver.append(batch)  # returns when it is on stable storage
        with quiver.lease("example") as deliveries:
            delivery = next(iter(deliveries))
            delivery.ack()
        account = quiver.balance("example")
        events = account.accepted.events
        sys.stdout.write(f"bundle {receipt.seq}: {events} events, adds up: {account.holds}\n")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(sys.argv[1])
    else:
        with tempfile.TemporaryDirectory() as temporary:
            main(temporary)
