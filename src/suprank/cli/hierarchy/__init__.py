"""suprank hierarchy: from a flat list of labels to a reviewed hierarchy, one verb a file."""
