"""The pieces of the reference model, one published formula a function; see `milepost.testing.reference_model`.

Nothing here comes from `milepost.models` or `milepost.kernels`: the reference judges those.
"""
