"""Settings of every test process: one thread, so that runs side by side don't fight for cores."""

from __future__ import annotations

import os
import signal

# Before torch and numba are imported by any test; not by importing them, which takes seconds. Tests of
# parallel kernels ask for a second thread themselves.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MKL_NUM_THREADS", "1")
os.environ.setdefault("NUMBA_NUM_THREADS", "2")

# A shell that starts a command in the background lets it ignore Ctrl-C, and what it starts too.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
