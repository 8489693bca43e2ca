"""What this machine and this installation offer: processors, platforms and optional packages."""
