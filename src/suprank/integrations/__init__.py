"""Our losses in the trainers of other libraries, one module for each library."""
