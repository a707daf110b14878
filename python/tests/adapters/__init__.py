"""Adapters, each with the real package that it is for."""
