"""`suprank hierarchy`: from a flat list of labels to a reviewed hierarchy, one file per command."""
