"""Tools for tests: what a build computes, against references."""
