"""Stand-in for the second version of the image transforms."""
