"""Malformed requests from a seed against the served engine without a model.

seeds       valid requests of every POST path
mutations   what is done to their JSON: types, sizes, numbers, nesting, unicode, names
wrappings   what is done around it: cut and broken bytes, content types, lengths, chunks, headers
"""
