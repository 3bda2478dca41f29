"""What several test modules share: cases, compilers, broken templates, the original file's host."""
