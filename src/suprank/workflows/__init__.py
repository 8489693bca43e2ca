"""What a command does, as Python functions: they bring data, models, training and pages together."""
