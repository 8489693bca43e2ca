"""What our web pages share: look, templates, pictures, and what keeps them to their own machine."""
