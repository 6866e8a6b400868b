r"""The models bundled with the package, a folder each."""
