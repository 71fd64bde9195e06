"""The pieces of the reference model: one published formula a function.

`milepost.testing.reference_model` puts them together. Nothing here comes from `milepost.models` or
`milepost.kernels`: the reference judges those.
"""
