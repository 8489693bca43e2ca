"""Our losses in the trainers of other libraries, and our models in their benchmarks; one module for each library."""
