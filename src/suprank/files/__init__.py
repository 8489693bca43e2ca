"""ImageLoaderSettings and writing files so that a crash, a full disk or a hostile file does no harm."""
