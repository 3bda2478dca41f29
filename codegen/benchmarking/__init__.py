"""Times algorithms side by side."""
