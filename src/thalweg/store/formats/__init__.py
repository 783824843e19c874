"""One module a format: what its units are, how one is decoded, how rows are written."""
