"""The command line: a module for each verb, and how it prints."""
