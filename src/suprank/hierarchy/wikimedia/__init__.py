"""Types of items from Wikimedia Commons and Wikidata."""
