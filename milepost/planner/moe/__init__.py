"""Expert parallelism before it is booked: bytes between ranks, balance, waves, tails, and the best degree."""
