"""What runs in the next step: queue, admission, chunking, preemption."""
