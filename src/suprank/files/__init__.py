"""Read and write files so that a crash, a full disk, a second process or a hostile file does no harm."""
