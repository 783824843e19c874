"""Filters: documents that pass, and reasons for those that do not."""
