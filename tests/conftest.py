"""What holds for every test."""

from __future__ import annotations

import os
import signal

os.environ["PHALANX_HOME"] = "/dev/null/no-test-uses-the-home-of-whoever-runs-it"
"""A test that forgets to say which cluster it means fails, instead of starting one in the user's home."""

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    """Whoever runs the tests in the background has it ignored, and so would have all that they start."""
