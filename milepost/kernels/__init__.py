"""One folder per operation: signature and checks, a plain reference, the backends beside it."""
