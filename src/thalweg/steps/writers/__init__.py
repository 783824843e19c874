"""Writers: documents to files, one module a format."""
