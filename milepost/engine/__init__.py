"""The step loop over one executor, its async front and the incremental detokeniser."""
