"""Extractors: what a page says, without its markup, one module a library."""
