"""What pages show, read from the project: SQL in, frozen dataclasses out. Nothing here changes anything."""
