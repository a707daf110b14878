"""Adapters to other packages, one a file; each is imported only when asked for."""
