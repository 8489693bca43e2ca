"""Shared by all web pages of suprank: styles, templates, thumbnails, security headers and the server."""
