"""The `suprank` command: one file a verb. Each parses, calls and prints."""
