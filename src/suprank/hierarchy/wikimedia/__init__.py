"""Types of items: from Wikimedia Commons and Wikidata, or from files that say them."""
