"""Properties of this machine and this installation: CPU features, operating system and optional packages."""
