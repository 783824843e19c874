"""Steps that take the text out of pages."""
