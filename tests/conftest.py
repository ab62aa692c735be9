"""What holds for every test."""

from __future__ import annotations

import os

os.environ["PHALANX_HOME"] = "/dev/null/no-test-uses-the-home-of-whoever-runs-it"
"""A test that forgets to say which cluster it means fails, instead of starting one in the user's home."""
