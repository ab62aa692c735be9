"""Checks what happened against what may happen. Shares no code with the product: the standard library only.

Reads the event history (one batch of the log per line, raw) and the marker files that ranks wrote themselves, and
reports every broken invariant. It never repairs, never guesses, and knows no product class: a fault in the product's
own reducer cannot hide here.

    I1  an accepted call reaches exactly one terminal state          I6  gangs start whole or not at all
    I2  a result is stored once; nothing follows a terminal state    I7  leases end, on GPUs that exist and are sound
    I3  one live attempt per call; attempts and fences rise          I9  charged milliseconds lie inside the lease
    I4  a GPU serves one lease at a time, on paper and in fact       I13 cancelled work is not started again
    I5  what is stale changes nothing                                I15 one leader: epochs rise, batches are dense
                                                                     I22 the state is the fold of the history
"""

from tests.support.history_checker.check import check, check_batches
from tests.support.history_checker.records import Batch, Marker, Violation, batch_of_entry, read_history, read_markers

__all__ = ["Batch", "Marker", "Violation", "batch_of_entry", "check", "check_batches", "read_history", "read_markers"]
