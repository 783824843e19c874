"""Readers: files to documents, one module a format."""
